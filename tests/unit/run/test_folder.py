"""RunFolder after crashes and power cuts, and on filesystems without locks."""

import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.conftest import Write, load, plan_of
from torchyard.host.identity import read_boot_clock
from torchyard.model.errors import FolderError, RunInUseError
from torchyard.model.profile import Deadlines
from torchyard.run.folder import AttemptPlan, RunFolder, list_run_folders


def create_attempt_plan(folder: RunFolder, write: Write) -> AttemptPlan:
    return AttemptPlan(plan=plan_of(load(write()), folder.path), deadlines=Deadlines(lease=700))


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b'{"plan": '])
def test_unreadable_plan_is_an_error(folder: RunFolder, write: Write, content: bytes) -> None:
    """An unreadable plan is a FolderError, not an attempt that started nothing."""
    folder.save_attempt_plan(1, create_attempt_plan(folder, write))
    (folder.attempt(1) / "plan.json").write_bytes(content)
    with pytest.raises(FolderError, match=r"attempt-1/plan.json cannot be read .*end the job by hand"):
        folder.plans()


def test_unreadable_outcome_is_ignored(folder: RunFolder) -> None:
    """A torn outcome file counts as no outcome, so that the supervisors are queried again."""
    folder.attempt(1).mkdir()
    (folder.attempt(1) / "outcome.json").write_bytes(b"\0" * 100)
    assert folder.outcome(1) is None


def test_torn_lease_has_the_duration_of_the_plan(folder: RunFolder, write: Write) -> None:
    """If a power cut has emptied the lease file, the duration of the lease comes from the attempt's plan."""
    folder.save_attempt_plan(1, create_attempt_plan(folder, write))
    (folder.path / "lease").write_bytes(b"")
    assert 690 < folder.remaining_lease_s() <= 700


def test_extending_a_missing_lease_does_nothing(folder: RunFolder) -> None:
    """Extending the lease of a run that has none does nothing and does not fail."""
    folder.extend()
    assert folder.remaining_lease_s() < 0


@pytest.mark.parametrize("jump_s", [86400.0, -86400.0])
def test_changed_clock_does_not_end_a_lease(folder: RunFolder, monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    """A lease that has just been renewed does not end because this machine's clock is set."""
    folder.renew(600.0)
    real_time = time.time
    monkeypatch.setattr(time, "time", lambda: real_time() + jump_s)
    assert 590 < folder.remaining_lease_s() <= 600


@pytest.mark.parametrize(("uptime_s", "has_ended"), [(300.0, False), (900.0, True)])
def test_lease_is_at_least_as_old_as_the_boot(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, uptime_s: float, has_ended: bool
) -> None:
    """After a restart of the machine, a clock alone does not end a lease that may have been renewed just before."""
    (folder.path / "lease").write_text("600 0190c7f0-before 1000000.000")
    os.utime(folder.path / "lease", (1, 1))
    monkeypatch.setattr(time, "clock_gettime", lambda _: uptime_s)
    assert (folder.remaining_lease_s() < 0) == has_ended


def test_lease_is_renewed_on_a_full_disk(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the time of a renewal cannot be written, the file's own time counts."""
    boot_id, seconds = read_boot_clock()
    (folder.path / "lease").write_text(f"600 {boot_id} {seconds - 900:.3f}")
    os.utime(folder.path / "lease", (1, 1))
    monkeypatch.setattr("torchyard.run.folder._format_lease", lambda _: "")
    assert folder.remaining_lease_s() < 0
    folder.renew(600.0)
    assert folder.remaining_lease_s() > 590


# --- which process owns the run


def test_lock_of_a_living_process_refuses_a_second_one(folder: RunFolder) -> None:
    """While a process owns the run, `is_owned` is true and a second process gets RunInUseError."""
    with folder.owned():
        assert folder.is_owned()
        with pytest.raises(RunInUseError, match=f"process {os.getpid()}"), RunFolder(folder.path).owned():
            pass
    assert not folder.is_owned()


def test_brief_check_of_the_lock_does_not_refuse_a_process(folder: RunFolder) -> None:
    """A process that starts while another one briefly checks the lock still gets the run."""
    check_lock = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print(1, flush=True)"
    command = [sys.executable, "-c", f"{check_lock}; time.sleep(0.05)", str(folder.path / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        with folder.owned():
            pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_filesystem_without_locks_is_an_error(folder: RunFolder, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be locked is a FolderError with a remedy, not a run in use."""

    def refuse(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(FolderError, match=r"cannot lock files \(.*\); choose another folder with TORCHYARD_RUNS"):
        folder.owned().__enter__()


@pytest.mark.parametrize(
    "read", [RunFolder.checkpoints, lambda folder: folder.outcome(1), lambda folder: folder.ended(1)]
)
def test_file_that_cannot_be_read_now_is_not_a_missing_one(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, read: Callable[[RunFolder], object]
) -> None:
    """An error of the disk or of this process proves nothing about a file of the run: a retry may read it."""
    monkeypatch.setattr(Path, "read_bytes", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
    with pytest.raises(FolderError, match="Too many open files"):
        read(folder)


@pytest.fixture
def stale(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of which every stat fails, as on a network filesystem whose server was restarted; a test adds to them."""
    stale: list[str] = []
    stat = os.stat

    def fail(path: Any, *args: Any, **options: Any) -> os.stat_result:
        if str(path) in stale:
            raise OSError(errno.ESTALE, "Stale file handle")
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", fail)
    return stale


def test_attempt_that_cannot_be_read_is_not_a_missing_one(folder: RunFolder, stale: list[str]) -> None:
    """A run whose attempts cannot be read has not none: it would be ended without its job."""
    plan = folder.attempt(1) / "plan.json"
    plan.parent.mkdir()
    plan.touch()
    folder.attempt(2).mkdir()  # without a plan
    assert folder.attempts() == [1]
    stale.append(str(plan))
    with pytest.raises(FolderError, match="Stale file handle"):
        folder.attempts()


def test_folder_that_cannot_be_read_is_listed(
    folder: RunFolder, stale: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of which nothing can be read is listed, so that whoever lists it reports that; the others are too."""
    other = folder.path.with_name("sample-00000000")
    other.mkdir()
    for path in (folder.path, other):
        (path / "journal").touch()
    (folder.path.parent / "history").mkdir()
    stale.append(str(other / "journal"))
    assert [listed.path for listed in list_run_folders()] == sorted([folder.path, other])
    monkeypatch.setattr(os, "listdir", Mock(side_effect=OSError(errno.ESTALE, "Stale file handle")))
    with pytest.raises(FolderError, match="it cannot be listed"):
        list_run_folders()


def test_damaged_time_of_a_lease_is_not_read(folder: RunFolder) -> None:
    """The time of the file's last change is enough for a lease whose content was damaged."""
    (folder.path / "lease").write_text("600 a-boot-id 12.\x00\x00")
    assert 590 < folder.remaining_lease_s() <= 600


def test_unreadable_report_has_its_own_remedy(folder: RunFolder) -> None:
    """A damaged report loses nothing else, and the remedy does not ask for the end of the job."""
    (folder.path / "report.json").write_text("{")
    with pytest.raises(FolderError, match=r"report.json cannot be read .*; move it away"):
        folder.report()
