"""The lines of a log on disk: time stamp, node and text, and the new lines of a growing file."""

from pathlib import Path

import pytest

from torchyard.common.log_lines import (
    parse_log_line,
    parse_log_line_text,
    read_new_lines,
    split_after_progress_bar,
    split_teed_line,
    strip_record,
)
from torchyard.model.hang import RECORD_PREFIX
from torchyard.model.run import LogLine


def test_line_with_a_time_stamp_is_parsed() -> None:
    """The time stamp is in seconds since the epoch, and the text may contain the separator."""
    assert parse_log_line("1970-01-01T00:00:01.500Z node-0 | a | b", "node-0") == LogLine(1.5, "node-0", "a | b")


def test_line_without_a_time_stamp_is_kept() -> None:
    """A truncated line is kept unchanged."""
    assert parse_log_line("half of", "node-0") == LogLine(0.0, "node-0", "half of")


@pytest.mark.parametrize(
    "line",
    [
        b"2026-11-21T08:00:47.123Z node-0 | a | b",
        b"2026-11-21T08:00:47.123456789Z node-0 | ",
        b"2026-11-21T08:00:47+00:00 node-0 | a",
        b"torn | a",
        b"\xff\xfe",
        b"",
    ],
)
def test_text_of_a_line_follows_its_time_stamp(line: bytes) -> None:
    """The quick parser of a line's text agrees with the one that parses its time, for any line."""
    assert parse_log_line_text(line, "node-0") == parse_log_line(line.decode(errors="replace"), "node-0").text


def test_only_complete_new_lines_are_read(tmp_path: Path) -> None:
    """Each line is read once, as soon as it is complete, if the reader continues at the last offset."""
    path = tmp_path / "log"
    assert list(read_new_lines(path, 0)) == []
    path.write_bytes(b"one\ntw")
    assert list(read_new_lines(path, 0)) == [("one", 4)]
    path.write_bytes(b"one\ntwo\n\xff\n")
    assert list(read_new_lines(path, 4)) == [("two", 8), ("\ufffd", 10)]


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("a line", "a line"),
        ("", ""),
        (RECORD_PREFIX + "{}", None),
        (f"[default3]:{RECORD_PREFIX}{{}}", None),
        (f"[default3]:50 %{RECORD_PREFIX}{{}}", "[default3]:50 %"),
    ],
)
def test_record_is_removed_from_a_line(text: str, output: str | None) -> None:
    """Only the text before a record was printed by the program."""
    assert strip_record(text) == output


AGENT_LINES = [
    "I1128 07:19:11.789000 17072 torch/distributed/elastic/agent/server/api.py:931] [default] worker group finished.",
    "[2024-02-03 10:00:00,123] torch.distributed.elastic.agent.server.api: [INFO] [default] worker group finished.",
    "INFO:torch.distributed.elastic.agent.server.api:[default] worker group finished.",
]


@pytest.mark.parametrize("agent_line", AGENT_LINES)
def test_line_of_an_agent_behind_a_progress_bar_is_apart(agent_line: str) -> None:
    """What torchrun itself writes behind a line that a rank has not ended is no output of that rank."""
    bar = "[default0]:  3%|#  | 146/5000 [00:05<02:50, 28.48it/s]"
    assert split_teed_line(bar + agent_line) == [bar, agent_line]
    assert split_teed_line(f"{bar}[default1]:x{agent_line}") == [bar, "[default1]:x", agent_line]


@pytest.mark.parametrize(
    "text", [*AGENT_LINES, f"[default0]:{AGENT_LINES[0]}", f"[default0]:[rank0]:{AGENT_LINES[0]}", "[default0]:", ""]
)
def test_whole_line_is_not_split(text: str) -> None:
    """A line of an agent, or one that a rank logs by torch itself, is one line."""
    assert split_teed_line(text) == [text]


BAR = " 10%|#         | 1/10 [00:00<00:01,  9.1it/s, loss=0.5]"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (f"{BAR}Killed", [BAR, "Killed"]),
        (f"{BAR}{BAR}   [rank0]: x", [f"{BAR}{BAR}", "   [rank0]: x"]),
        ("5it [00:01,  4.5it/s]Killed", ["5it [00:01,  4.5it/s]", "Killed"]),
        (
            "train: 100%|###| 9/9 [1:02:03<00:00, 2.1s/b]{}",
            ["train: 100%|###| 9/9 [1:02:03<00:00, 2.1s/b]", "{}"],
        ),
        (f"{BAR}   ", [f"{BAR}   "]),
        ("sample [00:01] Killed", ["sample [00:01] Killed"]),
        ("Memory 91%| on [gpu:0]: x", ["Memory 91%| on [gpu:0]: x"]),
        ("", [""]),
    ],
)
def test_what_follows_a_progress_bar_is_apart(text: str, parts: list[str]) -> None:
    """What is printed behind a bar of tqdm, with or without a total, is a message of its own; the bar alone is not."""
    assert split_after_progress_bar(text) == parts
