"""The lines of a log on disk: stamp, node and text, and the lines that a growing file has gained."""

from pathlib import Path

import pytest

from torchyard.common.log_lines import parse_log_line, parse_log_line_text, read_new_lines, strip_record
from torchyard.model.hang import RECORD_PREFIX
from torchyard.model.run import LogLine


def test_line_with_a_time_stamp_is_parsed() -> None:
    """The stamp is seconds since the epoch, and the text may hold the separator."""
    assert parse_log_line("1970-01-01T00:00:01.500Z node-0 | a | b", "node-0") == LogLine(1.5, "node-0", "a | b")


def test_line_without_a_time_stamp_is_kept() -> None:
    """A torn line is kept whole."""
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
    """The quick reader of a line's text agrees with the one that parses its time, whatever the line holds."""
    assert parse_log_line_text(line, "node-0") == parse_log_line(line.decode(errors="replace"), "node-0").text


def test_only_complete_new_lines_are_read(tmp_path: Path) -> None:
    """A reader that returns with the last offset gets each line once; half a line is left until it is complete."""
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
    """Of a line with a record only what stands before it is the job's own."""
    assert strip_record(text) == output
