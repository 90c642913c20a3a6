"""The lines of a log on disk: a stamp, the node, the text (torchyard/host/supervisor.py writes them)."""

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from torchyard.model.hang import RECORD_PREFIX
from torchyard.model.run import LogLine

BLOCK_BYTES = 1 << 18
_LINE_STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,9}Z [^ ]* \| ")
_EMPTY_LINE = re.compile(r"(?:\[[a-z_-]{0,40}\d{1,6}\]:)?\s*")  # but for the rank that torchrun names


def parse_log_line(text: str, node: str) -> LogLine:
    """`2026-11-21T08:00:47.123Z node-0 | text`; a line without a stamp (torn by a full disk) is kept as it is."""
    timestamp_text, _, rest = text.partition(" ")
    try:
        timestamp = datetime.fromisoformat(timestamp_text).timestamp()
    except ValueError:
        return LogLine(0.0, node, text)
    return LogLine(timestamp, node, rest.partition(" | ")[2])


def parse_log_line_text(raw: bytes, node: str) -> str:
    """The text of a line after its stamp."""
    match = _LINE_STAMP.match(raw)
    return (
        raw[match.end() :].decode(errors="replace")
        if match
        else parse_log_line(raw.decode(errors="replace"), node).text
    )


def read_new_lines(path: Path, offset: int) -> Iterator[tuple[str, int]]:
    """The complete lines that a growing file has gained since `offset`, each with the offset after it."""
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


def strip_record(text: str) -> str | None:
    """What of a line the job itself has printed: all of it, but for a record of the recorder; None if that is nothing.

    A record may follow a line that the program has not ended yet.
    """
    output, marker, _ = text.partition(RECORD_PREFIX)
    return output if not marker or not _EMPTY_LINE.fullmatch(output) else None
