"""The file of a pod's log: what a later process finds in it."""

from pathlib import Path

import pytest

from tasks.pump import Tail

SECOND = b"2026-01-01T00:00:07"


def written(path: Path, *lines: bytes) -> Tail:
    tail = Tail(path, "worker-0")
    for line in lines:
        tail.take(line)
    return tail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker-0" / "log"


@pytest.mark.parametrize("line", [b"\xff\xfe", b"", b"a | b", b"1%\r2%", "ü".encode(), b" x "])
def test_line_is_known_again(path: Path, line: bytes) -> None:
    """Whatever a line holds, a later process that is given it again writes it no second time."""
    written(path, SECOND + b".5Z " + line)
    before = path.read_bytes()
    later = Tail(path, "worker-0")
    later.since()
    later.take(SECOND + b".5Z " + line)
    assert path.read_bytes() == before


def test_line_that_was_said_twice_stays_twice(path: Path) -> None:
    """Of two lines that are alike in text and stamp, one written and one not, the second is written."""
    written(path, SECOND + b"Z same")
    later = Tail(path, "worker-0")
    later.since()
    later.take(SECOND + b"Z same")
    later.take(SECOND + b"Z same")
    assert path.read_bytes().count(b"same") == 2


@pytest.mark.parametrize("stamp", [b"2026-01-01T00:00:07.123456789Z", b"2026-01-01T01:00:07.1+01:00"])
def test_log_is_asked_for_in_universal_time(path: Path, stamp: bytes) -> None:
    """A node's stamps may be in its own time zone; some seconds are asked for again."""
    assert written(path, stamp + b" text").since() == "2026-01-01T00:00:05Z"


def test_new_log_is_asked_for_from_its_beginning(path: Path) -> None:
    """Nothing on disk means everything."""
    assert Tail(path, "worker-0").since() is None


def test_words_of_the_kubelet_are_no_time(path: Path) -> None:
    """A line without a stamp, in which a kubelet says that a log is gone, is kept and asks for nothing strange."""
    tail = written(path, SECOND + b"Z text", b"unable to retrieve container logs for containerd://0123")
    assert tail.since() == "2026-01-01T00:00:05Z"
    assert path.read_bytes().endswith(b"unable worker-0 | to retrieve container logs for containerd://0123\n")


def test_late_stamp_does_not_hide_earlier_ones(path: Path) -> None:
    """The two outputs of a container are stamped apart: a line may be a little older than the one before it."""
    written(path, b"2026-01-01T00:00:08.001Z out")
    later = Tail(path, "worker-0")
    assert later.since() == "2026-01-01T00:00:06Z"
    later.take(b"2026-01-01T00:00:07.999Z err")
    assert b"err" in path.read_bytes()


def test_half_a_line_is_taken_off(path: Path) -> None:
    """A process that was killed while it wrote leaves half a line, which is written again as a whole."""
    written(path, SECOND + b".1Z one")
    with path.open("ab") as file:
        file.write(SECOND + b".2Z worker-0 | tw")
    later = Tail(path, "worker-0")
    later.since()
    later.take(SECOND + b".2Z two")
    assert path.read_bytes().splitlines() == [SECOND + b".1Z worker-0 | one", SECOND + b".2Z worker-0 | two"]


def test_folder_that_cannot_be_made_loses_lines_only(tmp_path: Path) -> None:
    """Where there is no place for the log, the lines are counted."""
    (tmp_path / "worker-0").write_text("in the way")
    tail = written(tmp_path / "worker-0" / "log", SECOND + b"Z text")
    assert (tail.lost, tail.why) == (1, "Not a directory")
