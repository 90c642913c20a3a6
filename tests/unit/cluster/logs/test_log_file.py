"""The file of a pod's log: each line once, and what a later process finds in it."""

import resource
import shutil
import tracemalloc
from pathlib import Path

import pytest

from torchyard.cluster.logs import log_file as module
from torchyard.cluster.logs.log_file import (
    MAX_LINE_BYTES,
    WINDOW_BYTES,
    GapError,
    LineSplitter,
    LogWriter,
    read_recent_lines,
)

SECOND = b"2026-01-01T00:00:07"
STAMP_BYTES = len(SECOND + b"Z ")


def write(path: Path, *lines: bytes) -> LogWriter:
    writer = LogWriter(path, "worker-0")
    overlap = writer.resume_point()
    for line in lines:
        writer.append([line], overlap)
    return writer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker-0" / "log"


@pytest.mark.parametrize("line", [b"\xff\xfe", b"", b"a | b", b"1%\r2%", "ü".encode(), b" x "])
def test_repeated_line_is_written_once(path: Path, line: bytes) -> None:
    """A later process that gets the same line again, whatever its content, does not write it twice."""
    write(path, SECOND + b".5Z " + line)
    content = path.read_bytes()
    write(path, SECOND + b".5Z " + line)
    assert path.read_bytes() == content


def test_two_equal_lines_stay_two(path: Path) -> None:
    """If only one of two lines with the same text and time stamp is on disk, the second one is written."""
    write(path, SECOND + b"Z same")
    write(path, SECOND + b"Z same", SECOND + b"Z same")
    assert path.read_bytes().count(b"same") == 2


@pytest.mark.parametrize("stamp", [b"2026-01-01T00:00:07.123456789Z", b"2026-01-01T01:00:07.1+01:00"])
def test_log_is_requested_in_universal_time(path: Path, stamp: bytes) -> None:
    """The log is requested from some seconds before its last time stamp on, in UTC, whatever the node's time zone."""
    assert write(path, stamp + b" text").resume_point().since == "2026-01-01T00:00:05Z"


def test_new_log_is_requested_from_its_beginning(path: Path) -> None:
    """With nothing on disk the log is requested from its beginning."""
    assert LogWriter(path, "worker-0").resume_point().since is None


def test_line_without_a_time_stamp_is_kept(path: Path) -> None:
    """A kubelet's line without a time stamp, in place of a removed log, is written and not read as a time."""
    writer = write(path, SECOND + b"Z text", b"unable to retrieve container logs for containerd://0123")
    assert writer.resume_point().since == "2026-01-01T00:00:05Z"
    assert path.read_bytes().endswith(b"unable worker-0 | to retrieve container logs for containerd://0123\n")


def test_line_with_an_earlier_time_stamp_is_written(path: Path) -> None:
    """A line that is a little older than the previous one is written: stdout and stderr are stamped separately."""
    write(path, b"2026-01-01T00:00:08.001Z out")
    later_writer = LogWriter(path, "worker-0")
    assert later_writer.resume_point().since == "2026-01-01T00:00:06Z"
    write(path, b"2026-01-01T00:00:08.001Z out", b"2026-01-01T00:00:07.999Z err")
    assert b"err" in path.read_bytes()


def test_incomplete_line_is_removed(path: Path) -> None:
    """The incomplete line of a killed process is removed, and the complete line is written."""
    write(path, SECOND + b".1Z one")
    with path.open("ab") as file:
        file.write(SECOND + b".2Z worker-0 | tw")
    write(path, SECOND + b".1Z one", SECOND + b".2Z two")
    assert path.read_bytes().splitlines() == [SECOND + b".1Z worker-0 | one", SECOND + b".2Z worker-0 | two"]


def test_lines_that_cannot_be_written_are_counted(tmp_path: Path) -> None:
    """If the log's folder cannot be created, the lost lines are counted."""
    (tmp_path / "worker-0").write_text("in the way")
    writer = write(tmp_path / "worker-0" / "log", SECOND + b"Z text")
    assert (writer.lost, writer.write_error) == (1, "File exists")


# --- repeated and missing lines


def test_lines_after_an_unknown_gap_are_not_written(path: Path) -> None:
    """If new lines arrive without the newest line on disk before them, nothing is written."""
    write(path, SECOND + b".1Z one")
    later_writer = LogWriter(path, "worker-0")
    with pytest.raises(GapError):
        later_writer.append([SECOND + b".9Z three"], later_writer.resume_point())
    assert path.read_bytes().count(b"\n") == 1


def test_known_gap_is_reported_by_a_later_process_too(path: Path) -> None:
    """If a gap cannot be closed, the lines after it are written, and the gap is recorded beside the log."""
    write(path, SECOND + b".1Z one")
    later_writer = LogWriter(path, "worker-0")
    overlap = later_writer.resume_point()
    overlap.loss = "possibly some lines"
    later_writer.append([SECOND + b".9Z three"], overlap)
    assert (path.read_bytes().count(b"\n"), LogWriter(path, "worker-0").gaps) == (2, ["possibly some lines"])


@pytest.mark.parametrize("is_later_process", [True, False])
def test_clock_that_is_set_back_loses_no_line(path: Path, is_later_process: bool) -> None:
    """The log is requested from its last line on, also if lines before it have later time stamps: these are dropped."""
    lines = [b"2026-01-01T00:05:%02dZ before %d" % (second, second) for second in range(20)]
    lines.append(b"2026-01-01T00:05:04Z last")
    writer = write(path, *lines)
    if is_later_process:
        writer = LogWriter(path, "worker-0")
    overlap = writer.resume_point()
    assert overlap.since == "2026-01-01T00:05:02Z"
    new_lines = [b"2026-01-01T00:05:05Z new", b"2026-01-01T00:05:30Z newest"]
    for batch in (lines[2:10], [*lines[10:], *new_lines]):
        writer.append(batch, overlap)
    texts = [line.partition(b" | ")[2] for line in path.read_bytes().splitlines()]
    assert texts == [line.partition(b" ")[2] for line in (*lines, *new_lines)]


def test_rotation_after_a_clock_was_set_back_is_a_gap(path: Path) -> None:
    """If the last line does not come again, a line that is newer than all before it shows that lines may be missing."""
    writer = write(path, SECOND + b"Z one", b"2026-01-01T00:00:01Z last")
    overlap = writer.resume_point()
    writer.append([b"2026-01-01T00:00:03Z later"], overlap)
    with pytest.raises(GapError):
        writer.append([b"2026-01-01T00:00:08Z newest"], overlap)


def test_only_the_end_of_a_long_log_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later process recognizes repeated lines even if it reads only the end of a long log."""
    lines = [b"2026-01-01T00:00:%02dZ step %d" % (number // 100, number) for number in range(5000)]
    write(path, *lines)
    monkeypatch.setattr(module, "WINDOW_BYTES", 4000)
    later_writer = LogWriter(path, "worker-0")
    overlap = later_writer.resume_point()
    assert (overlap.since, overlap.drop_written([*lines[-300:], b"new"])) == ("2026-01-01T00:00:47Z", [b"new"])


def test_end_of_a_log_is_read_in_windows(path: Path) -> None:
    """However many lines a log has in its last seconds, only a window of them is in memory at once."""
    path.parent.mkdir()
    with path.open("wb") as file:
        file.writelines(SECOND + b"Z worker-0 | %s %d\n" % (b"x" * 990, number) for number in range(20_000))
    tracemalloc.start()
    count = sum(1 for _ in read_recent_lines(path))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_000
    assert peak_bytes < 5 * WINDOW_BYTES


def test_log_of_a_removed_file_is_read_again(path: Path) -> None:
    """If the file was removed, the log is read once more from its beginning."""
    writer = write(path, SECOND + b".1Z one")
    shutil.rmtree(path.parent)
    with pytest.raises(GapError):
        writer.append([SECOND + b".2Z two"], writer.resume_point())
    overlap = writer.resume_point()
    writer.append([SECOND + b".1Z one", SECOND + b".2Z two"], overlap)
    assert (overlap.since, path.read_bytes().count(b"\n"), writer.lost) == (None, 2, 0)


def test_line_without_a_descriptor_is_not_lost(path: Path) -> None:
    """While no file can be opened, a line does not count as written, and is written later."""
    writer = LogWriter(path, "worker-0")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            writer.append([SECOND + b"Z text"], writer.resume_point())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    writer.append([SECOND + b"Z text"], writer.resume_point())
    assert (writer.lost, path.read_bytes().count(b"text")) == (0, 1)


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 22])
def test_lines_are_complete_for_any_chunking(size: int) -> None:
    """Lines are complete wherever the stream is cut into chunks."""
    text = b"one\n\ntwo\r\n" + b"x" * 5000 + b"\nrest"
    splitter = LineSplitter()
    lines = []
    for offset in range(0, len(text), size):
        lines += splitter.split(text[offset : offset + size])
    assert [*lines, splitter.rest] == text.split(b"\n")


@pytest.mark.parametrize("size", [100_003, 1 << 20, 1 << 23])
def test_long_line_is_written_in_pieces(size: int) -> None:
    """At most one MiB of a line is held; its pieces have its time stamp and are the same for any chunks."""
    text = SECOND + b"Z " + b"x" * (2 * MAX_LINE_BYTES) + b"\n"
    splitter = LineSplitter()
    lines = []
    for offset in range(0, len(text), size):
        lines += splitter.split(text[offset : offset + size])
    assert [len(line) for line in lines] == [MAX_LINE_BYTES, MAX_LINE_BYTES, 3 * STAMP_BYTES]
    assert {line[:21] for line in lines} == {SECOND + b"Z "}


def test_pieces_of_a_long_line_without_a_time_stamp_are_bounded() -> None:
    """A long line without a time stamp is written in pieces too, which repeat at most its first 64 bytes."""
    splitter = LineSplitter()
    lines = splitter.split(b"x" * (2 * MAX_LINE_BYTES) + b"\n")
    assert [len(line) for line in lines] == [MAX_LINE_BYTES, MAX_LINE_BYTES, 2 * (64 + len(" "))]
