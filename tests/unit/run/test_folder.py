"""A run's folder after crashes, power cuts and on odd filesystems."""

import errno
import fcntl
import os
import subprocess
import sys

import pytest

from tests.conftest import Write, load, plan_of
from torchyard.model.errors import FolderError, RunInUseError
from torchyard.model.profile import Deadlines
from torchyard.run.folder import AttemptPlan, RunFolder


def planned(folder: RunFolder, write: Write) -> AttemptPlan:
    return AttemptPlan(plan=plan_of(load(write()), folder.path), deadlines=Deadlines(lease=700))


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b'{"plan": '])
def test_broken_plan_is_a_fault_of_its_run(folder: RunFolder, write: Write, content: bytes) -> None:
    """A broken plan is reported as an error, and not taken for an attempt that started nothing."""
    folder.save_attempt_plan(1, planned(folder, write))
    (folder.attempt(1) / "plan.json").write_bytes(content)
    with pytest.raises(FolderError, match=r"attempt-1/plan.json cannot be read .*end it by hand"):
        folder.plans()


def test_broken_outcome_is_found_out_again(folder: RunFolder) -> None:
    """A torn outcome file counts as no outcome, so that the supervisors are asked again."""
    folder.attempt(1).mkdir()
    (folder.attempt(1) / "outcome.json").write_bytes(b"\0" * 100)
    assert folder.outcome(1) is None


def test_torn_lease_lasts_as_the_plan_says(folder: RunFolder, write: Write) -> None:
    """If a power cut has emptied the lease file, the lease lasts as long as the plan says."""
    folder.save_attempt_plan(1, planned(folder, write))
    (folder.path / "lease").write_bytes(b"")
    assert 690 < folder.lease_left() <= 700


def test_run_without_a_lease_can_come_back(folder: RunFolder) -> None:
    """Extending the lease of a run that has none does nothing and does not fail."""
    folder.extend()
    assert folder.lease_left() < 0


# --- which process owns the run


def test_lock_of_a_living_process_is_seen(folder: RunFolder) -> None:
    """While a process owns the run, a second one is refused, and other processes can see that it is owned."""
    with folder.owned():
        assert folder.is_owned()
        with pytest.raises(RunInUseError, match=f"process {os.getpid()}"), RunFolder(folder.path).owned():
            pass
    assert not folder.is_owned()


def test_glance_does_not_keep_a_process_away(folder: RunFolder) -> None:
    """A process that starts while another one briefly checks the lock still gets the run."""
    glance = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print(1, flush=True)"
    command = [sys.executable, "-c", f"{glance}; time.sleep(0.05)", str(folder.path / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as onlooker:
        assert onlooker.stdout
        onlooker.stdout.readline()
        with folder.owned():
            pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_filesystem_without_locks_is_told(folder: RunFolder, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be locked is not taken for one that is in use: the error says what to do."""

    def refuse(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(FolderError, match=r"cannot lock files \(.*\); choose another folder with TORCHYARD_RUNS"):
        folder.owned().__enter__()
