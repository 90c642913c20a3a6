"""The file of a pod's log: what a later process finds in it."""

import resource
import shutil
import tracemalloc
from pathlib import Path

import pytest

from torchyard.cluster import log_file as module
from torchyard.cluster.log_file import (
    _MAX_LINE_BYTES,
    _WINDOW_BYTES,
    GapError,
    LineSplitter,
    LogWriter,
    _read_recent_lines,
)
from torchyard.cluster.pod_logs import _has_begun, _is_over

SECOND = b"2026-01-01T00:00:07"
STAMP = len(SECOND + b"Z ")


def written(path: Path, *lines: bytes) -> LogWriter:
    tail = LogWriter(path, "worker-0")
    overlap = tail.ask()
    for line in lines:
        tail.take([line], overlap)
    return tail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "worker-0" / "log"


@pytest.mark.parametrize("line", [b"\xff\xfe", b"", b"a | b", b"1%\r2%", "ü".encode(), b" x "])
def test_line_is_known_again(path: Path, line: bytes) -> None:
    """Whatever a line holds, a later process that is given it again writes it no second time."""
    written(path, SECOND + b".5Z " + line)
    before = path.read_bytes()
    written(path, SECOND + b".5Z " + line)
    assert path.read_bytes() == before


def test_line_that_was_said_twice_stays_twice(path: Path) -> None:
    """Of two lines that are alike in text and stamp, one written and one not, the second is written."""
    written(path, SECOND + b"Z same")
    written(path, SECOND + b"Z same", SECOND + b"Z same")
    assert path.read_bytes().count(b"same") == 2


@pytest.mark.parametrize("stamp", [b"2026-01-01T00:00:07.123456789Z", b"2026-01-01T01:00:07.1+01:00"])
def test_log_is_asked_for_in_universal_time(path: Path, stamp: bytes) -> None:
    """A node's stamps may be in its own time zone; some seconds are asked for again."""
    assert written(path, stamp + b" text").ask().since == "2026-01-01T00:00:05Z"


def test_new_log_is_asked_for_from_its_beginning(path: Path) -> None:
    """Nothing on disk means everything."""
    assert LogWriter(path, "worker-0").ask().since is None


def test_words_of_the_kubelet_are_no_time(path: Path) -> None:
    """A line without a stamp, in which a kubelet says that a log is gone, is kept and asks for nothing strange."""
    tail = written(path, SECOND + b"Z text", b"unable to retrieve container logs for containerd://0123")
    assert tail.ask().since == "2026-01-01T00:00:05Z"
    assert path.read_bytes().endswith(b"unable worker-0 | to retrieve container logs for containerd://0123\n")


def test_late_stamp_does_not_hide_earlier_ones(path: Path) -> None:
    """The two outputs of a container are stamped apart: a line may be a little older than the one before it."""
    written(path, b"2026-01-01T00:00:08.001Z out")
    later = LogWriter(path, "worker-0")
    assert later.ask().since == "2026-01-01T00:00:06Z"
    written(path, b"2026-01-01T00:00:08.001Z out", b"2026-01-01T00:00:07.999Z err")
    assert b"err" in path.read_bytes()


def test_half_a_line_is_taken_off(path: Path) -> None:
    """A process that was killed while it wrote leaves half a line, which is written again as a whole."""
    written(path, SECOND + b".1Z one")
    with path.open("ab") as file:
        file.write(SECOND + b".2Z worker-0 | tw")
    written(path, SECOND + b".1Z one", SECOND + b".2Z two")
    assert path.read_bytes().splitlines() == [SECOND + b".1Z worker-0 | one", SECOND + b".2Z worker-0 | two"]


def test_folder_that_cannot_be_made_loses_lines_only(tmp_path: Path) -> None:
    """Where there is no place for the log, the lines are counted."""
    (tmp_path / "worker-0").write_text("in the way")
    tail = written(tmp_path / "worker-0" / "log", SECOND + b"Z text")
    assert (tail.lost, tail.why) == (1, "File exists")


# --- what comes again, and what should


def test_gap_is_not_written_over(path: Path) -> None:
    """Where new lines come and the newest one on disk does not come before them, nothing is written."""
    written(path, SECOND + b".1Z one")
    later = LogWriter(path, "worker-0")
    with pytest.raises(GapError):
        later.take([SECOND + b".9Z three"], later.ask())
    assert path.read_bytes().count(b"\n") == 1


def test_known_gap_is_told_also_by_a_later_process(path: Path) -> None:
    """Where nothing can be done about a gap the lines after it are written, and what is missing is kept beside them."""
    written(path, SECOND + b".1Z one")
    later = LogWriter(path, "worker-0")
    overlap = later.ask()
    overlap.otherwise = "perhaps some lines"
    later.take([SECOND + b".9Z three"], overlap)
    assert (path.read_bytes().count(b"\n"), LogWriter(path, "worker-0").missed) == (2, ["perhaps some lines"])


def test_late_line_is_not_waited_for(path: Path) -> None:
    """A line that was stamped before the seconds that are asked for again will not come again, and is no gap."""
    written(path, b"2026-01-01T00:00:08.001Z out", b"2026-01-01T00:00:01.999Z err")
    written(path, b"2026-01-01T00:00:08.001Z out", b"2026-01-01T00:00:09.001Z more")
    assert path.read_bytes().endswith(b"more\n")


def test_only_the_end_of_a_long_log_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of a log that a later process finds does not depend on how much of it is read."""
    lines = [b"2026-01-01T00:00:%02dZ step %d" % (number // 100, number) for number in range(5000)]
    written(path, *lines)
    monkeypatch.setattr(module, "_WINDOW_BYTES", 4000)
    later = LogWriter(path, "worker-0")
    overlap = later.ask()
    assert (overlap.since, overlap.new([*lines[-300:], b"new"])) == ("2026-01-01T00:00:47Z", [b"new"])


def test_end_of_a_log_is_read_in_pieces(path: Path) -> None:
    """However much a log says in its last seconds, no more than a window of it is held at once."""
    path.parent.mkdir()
    with path.open("wb") as file:
        file.writelines(SECOND + b"Z worker-0 | %s %d\n" % (b"x" * 990, number) for number in range(20_000))
    tracemalloc.start()
    count = sum(1 for _ in _read_recent_lines(path))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 20_000
    assert most < 5 * _WINDOW_BYTES


def test_log_of_a_removed_file_is_asked_for_anew(path: Path) -> None:
    """Where the file was removed nothing of the log is here any more: it is read from its beginning, once."""
    tail = written(path, SECOND + b".1Z one")
    shutil.rmtree(path.parent)
    with pytest.raises(GapError):
        tail.take([SECOND + b".2Z two"], tail.ask())
    overlap = tail.ask()
    tail.take([SECOND + b".1Z one", SECOND + b".2Z two"], overlap)
    assert (overlap.since, path.read_bytes().count(b"\n"), tail.lost) == (None, 2, 0)


def test_line_without_a_descriptor_is_not_lost(path: Path) -> None:
    """Where no file can be opened just now nothing counts as written: the line comes again."""
    tail, before = LogWriter(path, "worker-0"), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            tail.take([SECOND + b"Z text"], tail.ask())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    tail.take([SECOND + b"Z text"], tail.ask())
    assert (tail.lost, path.read_bytes().count(b"text")) == (0, 1)


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 22])
def test_lines_are_whole_however_they_come(size: int) -> None:
    """Where a stream is cut into parts does not matter."""
    text = b"one\n\ntwo\r\n" + b"x" * 5000 + b"\nrest"
    lines = LineSplitter()
    found = [line for at in range(0, len(text), size) for line in lines.cut(text[at : at + size])]
    assert ([*found, lines.rest]) == text.split(b"\n")


@pytest.mark.parametrize("size", [100_003, 1 << 20, 1 << 23])
def test_line_without_an_end_is_written_in_pieces(size: int) -> None:
    """No more than a MiB of a line is held; its pieces have its stamp, and are the same wherever the stream is cut."""
    text = SECOND + b"Z " + b"x" * (2 * _MAX_LINE_BYTES) + b"\n"
    lines = LineSplitter()
    found = [line for at in range(0, len(text), size) for line in lines.cut(text[at : at + size])]
    assert [len(line) for line in found] == [_MAX_LINE_BYTES, _MAX_LINE_BYTES, 3 * STAMP]
    assert {line[:21] for line in found} == {SECOND + b"Z "}


# --- containers


def pod(policy: str, phase: str = "Running", **status: object) -> dict[str, object]:
    known = {"name": "main", **status}
    spec = {"restartPolicy": policy, "containers": [{"name": "main"}]}
    return {"spec": spec, "status": {"phase": phase, "containerStatuses": [known]}}


ENDED, FAILED = {"terminated": {"exitCode": 0}}, {"terminated": {"exitCode": 1}}


@pytest.mark.parametrize(
    ("seen", "over"),
    [
        (pod("Never", state=FAILED), True),
        (pod("OnFailure", state=ENDED), True),
        (pod("OnFailure", state=FAILED), False),
        (pod("OnFailure", state={"waiting": {}}, lastState=FAILED), False),
        (pod("Always", state=ENDED), False),
        (pod("Always", "Failed", state={"waiting": {}}), True),
    ],
)
def test_container_is_over_when_it_does_not_begin_again(seen: dict[str, object], over: bool) -> None:
    """Its pod's policy and its exit code say so, or the end of its pod."""
    assert _is_over(seen, "main") is over


@pytest.mark.parametrize(("last", "begun"), [({}, False), (FAILED, True)])
def test_container_that_waits_may_have_a_log(last: dict[str, object], begun: bool) -> None:
    """One that crashed waits for its next beginning, and its log is there."""
    assert _has_begun(pod("OnFailure", state={"waiting": {}}, lastState=last), "main") is begun
