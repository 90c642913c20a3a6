"""The lines of a log on disk: a time stamp, the node, the text (torchyard/host/supervisor.py writes them)."""

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from torchyard.model.hang import RECORD_PREFIX
from torchyard.model.run import LogLine

BLOCK_BYTES = 1 << 18
_LINE_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,9}Z [^ ]* \| ")
_EMPTY_LINE = re.compile(r"(?:\[[a-z_-]{0,40}\d{1,6}\]:)?\s*")  # only torchrun's prefix, which names the rank
# What torchrun writes behind a line that a rank has not ended: the prefix of a rank, or the beginning of a line of its
# own, by the version of torch. A line of that form that a rank prints has a prefix, whose colon precedes it.
_JOINED_LINE = re.compile(
    r"(?=\[default\d{1,6}\]:)|(?<!:)(?=[DIWEF]\d{4} \d\d:\d\d:\d\d\.\d{1,9} \d{1,10} torch/distributed/elastic/"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\] torch\.distributed\.elastic\.|[A-Z]{4,8}:torch\.distributed\.elastic\.)"
)

# tqdm's bar: ` 10%|#   | 1/10 [00:00<00:01,  9.1it/s]`, and `5it [00:01,  4.5it/s]` without a total.
_PROGRESS_BAR = re.compile(
    r"(?:\d{1,3}%\|[^|\[\r\n]{0,300}\|[^|\[\r\n]{0,60}\[[\d:]{5,9}<|\dit \[[\d:]{5,9}, )[^\]\r\n]{1,200}\]"
)


def parse_log_line(text: str, node: str) -> LogLine:
    """Parse `2026-11-21T08:00:47.123Z node-0 | text`.

    A line without a time stamp (a full disk truncated it) is returned unchanged, with the time stamp 0.
    """
    timestamp_text, _, rest = text.partition(" ")
    try:
        timestamp = datetime.fromisoformat(timestamp_text).timestamp()
    except ValueError:
        return LogLine(0.0, node, text)
    return LogLine(timestamp, node, rest.partition(" | ")[2])


def parse_log_line_text(raw: bytes, node: str) -> str:
    """The text of a line, as `parse_log_line` returns it. It is quicker, because the time stamp is not parsed."""
    match = _LINE_STAMP.match(raw)
    if match is None:
        return parse_log_line(raw.decode(errors="replace"), node).text
    return raw[match.end() :].decode(errors="replace")


def read_new_lines(path: Path, offset: int) -> Iterator[tuple[str, int]]:
    """The complete lines of a growing file from `offset` on, each with the offset after it; none if there is no file.

    OSError if the file cannot be read.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield line[:-1].decode(errors="replace"), offset


def split_teed_line(text: str) -> list[str]:
    """The lines of ranks and of their agent in one line of torchrun, those of ranks with their prefix.

    torchrun writes the next line behind one that a rank has not ended, such as a progress bar.
    """
    may_end_with_agent_line = text.startswith("[default") and "distributed" in text
    if text.find("[default", 1) < 0 and not may_end_with_agent_line:
        return [text]
    return [line for line in _JOINED_LINE.split(text) if line]


def split_after_progress_bar(text: str) -> list[str]:
    """The text up to the end of its last progress bar, and what was printed behind it; the whole text without either.

    A program does not end the line of a bar that it still redraws, so its next message is in the same line.
    """
    if "%|" not in text and "it [" not in text:
        return [text]
    end = 0
    for bar in _PROGRESS_BAR.finditer(text):
        end = bar.end()
    if end == 0 or not text[end:].strip():
        return [text]
    return [text[:end], text[end:]]


def strip_record(text: str) -> str | None:
    """The part of a line that the program printed, without a record of the recorder; None if the line is only a record.

    A record may follow a line that the program has not ended yet.
    """
    output, prefix, _ = text.partition(RECORD_PREFIX)
    if prefix and _EMPTY_LINE.fullmatch(output):
        return None
    return output
