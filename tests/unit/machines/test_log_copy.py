"""A copy of a log: it continues at its own size, whatever happened to it meanwhile."""

import errno
import os
from pathlib import Path

import pytest

from tests.doubles.scripted_hosts import build_process
from tests.support.failing_reads import fail_to_stat
from tests.support.waiting import wait_until
from torchyard.machines.log_copy import LogCopy


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of the copy, which does not exist yet."""
    return Path(build_process(tmp_path, "").log)


@pytest.fixture
def log_copy(tmp_path: Path) -> LogCopy:
    return LogCopy(build_process(tmp_path, ""))


def test_only_the_next_piece_is_expected(log_copy: LogCopy, path: Path) -> None:
    """A piece is the next one only if it starts at the size of the copy."""
    assert log_copy.reopen() == 0
    assert (log_copy.write(b"one\n"), path.read_bytes()) == (True, b"one\n")
    assert [log_copy.expects(offset) for offset in (0, 4, 5, None, "4")] == [False, True, False, False, False]


def test_copy_is_complete_only_at_the_end_of_the_log(log_copy: LogCopy) -> None:
    """The end of the log completes a copy that has all of it."""
    log_copy.reopen()
    log_copy.write(b"one\n")
    log_copy.end(9)
    assert not log_copy.is_complete
    log_copy.end(4)
    assert log_copy.is_complete


def test_failed_copy_is_tried_again_later(log_copy: LogCopy, path: Path) -> None:
    """After a full disk no piece is expected, until the log is requested again from the size of the copy."""
    log_copy.reopen()
    path.parent.mkdir(parents=True)
    os.symlink("/dev/full", path)
    assert (log_copy.write(b"one\n"), "No space left" in log_copy.reason) == (False, True)
    assert (log_copy.expects(0), log_copy.is_retry_due) == (False, False)
    path.unlink()
    path.write_bytes(b"on")
    wait_until(lambda: log_copy.is_retry_due)
    assert (log_copy.reopen(), log_copy.expects(2), log_copy.reason) == (2, True, "")


def test_removed_copy_starts_again(log_copy: LogCopy, path: Path) -> None:
    """A copy that was removed does not continue in the middle of the log."""
    log_copy.reopen()
    log_copy.write(b"one\n")
    path.unlink()
    assert not log_copy.write(b"two\n")
    assert log_copy.reopen() == 0


def test_copy_that_cannot_be_read_is_tried_again_later(log_copy: LogCopy, path: Path) -> None:
    """While the size of the copy cannot be read, no byte is requested, and the log may grow unseen."""
    log_copy.reopen()
    log_copy.write(b"one\n")
    with fail_to_stat(path, errno.EACCES):
        assert log_copy.reopen() is None
    assert "Permission denied" in log_copy.reason
    assert (log_copy.expects(4), log_copy.is_behind(4)) == (False, True)
    wait_until(lambda: log_copy.is_retry_due)
    assert (log_copy.reopen(), log_copy.is_behind(4), log_copy.reason) == (4, False, "")
