"""A run's folder after crashes, power cuts and on odd filesystems."""

import errno
import fcntl
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Write, load, plan_of
from torchyard.common.identity import _former_identity, holder_identity, is_holder
from torchyard.loading.profile import ROOT
from torchyard.model.errors import FolderError, RunInUseError
from torchyard.model.profile import Deadlines
from torchyard.model.run import Outcome, Status
from torchyard.run.folder import AttemptPlan, RunFolder, runs_folder

TORN = [
    b'{"at": 1, "event": "st',
    b'{"at": 1, "event": "step", "name": "wa\xff\xfe"}',
    b'{"at": 1, "event": "step", "name": }',
    b'"a string"}',
    b'{"event": "step"}',
    b"[]",
    b"\0" * 40,
]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    path = tmp_path / "runs" / "sample-a1b2c3d4"
    path.mkdir(parents=True)
    return RunFolder(path)


def planned(folder: RunFolder, write: Write) -> AttemptPlan:
    return AttemptPlan(plan=plan_of(load(write()), folder.path), deadlines=Deadlines(lease=700))


@pytest.mark.parametrize("line", TORN)
def test_torn_line_is_left_out(folder: RunFolder, line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A line of the journal that is not an event is reported, and the others are read."""
    folder.note("start", run="r")
    with (folder.path / "journal").open("ab") as file:
        file.write(line + b"\n")
    folder.note("step", name="wait")
    with caplog.at_level(logging.WARNING):
        assert [event["event"] for event in folder.events()] == ["start", "step"]
    assert f"{folder.path}: line 2 of its journal is torn" in caplog.text


def test_event_behind_a_torn_line_is_kept(folder: RunFolder) -> None:
    """What is written after a line that a full disk or a crash broke off begins on a line of its own."""
    folder.note("start", run="r")
    with (folder.path / "journal").open("ab") as file:
        file.write(TORN[0])
    folder.note("end", end="failed")
    assert [event["event"] for event in folder.events()] == ["start", "end"]


def test_journal_is_on_the_disk_before_the_next_step(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event and each plan survive a power cut: they are synced, and the folder that lists them as well."""
    synced: list[str] = []

    def note(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fsync", note)
    folder.note("start", run="r")
    folder.save_outcome(1, Outcome(status=Status(state="failed", reason=""), exits={}))
    attempt = folder.attempt(1)
    listed = [str(folder.path / "journal"), str(folder.path), str(folder.path.parent)]
    assert synced == [*listed, str(attempt / "outcome.part"), str(attempt)]


def test_journal_that_may_not_be_read_is_not_empty(folder: RunFolder) -> None:
    """A journal that cannot be read is a fault with a sentence, and not a run that never was."""
    (folder.path / "journal").mkdir()
    with pytest.raises(FolderError, match="Is a directory"):
        folder.events()


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b'{"plan": '])
def test_broken_plan_is_a_fault_of_its_run(folder: RunFolder, write: Write, content: bytes) -> None:
    """What an attempt started is not known where its plan is broken: that is said, and not taken for nothing."""
    folder.save_intent(1, planned(folder, write))
    (folder.attempt(1) / "plan.json").write_bytes(content)
    with pytest.raises(FolderError, match=r"attempt-1/plan.json cannot be read .*end it by hand"):
        folder.plans()


def test_broken_outcome_is_found_out_again(folder: RunFolder) -> None:
    """How an attempt ended is asked of its keepers again where its file is torn."""
    folder.attempt(1).mkdir()
    (folder.attempt(1) / "outcome.json").write_bytes(b"\0" * 100)
    assert folder.outcome(1) is None


def test_torn_lease_lasts_as_the_plan_says(folder: RunFolder, write: Write) -> None:
    """A lease file that a power cut has emptied ends no run."""
    folder.save_intent(1, planned(folder, write))
    (folder.path / "lease").write_bytes(b"")
    assert 690 < folder.lease_left() <= 700


def test_run_without_a_lease_can_come_back(folder: RunFolder) -> None:
    """A process that was lost before it renewed a lease leaves none to begin anew."""
    folder.extend()
    assert folder.lease_left() < 0


# --- who carries the run


def test_lock_of_a_living_process_is_seen(folder: RunFolder) -> None:
    """While a process carries the run, a second one is refused, and who looks sees it."""
    with folder.owned():
        assert folder.is_owned()
        with pytest.raises(RunInUseError, match=f"process {os.getpid()}"), RunFolder(folder.path).owned():
            pass
    assert not folder.is_owned()


def test_glance_does_not_keep_a_process_away(folder: RunFolder) -> None:
    """A process that starts in the moment in which another one looks at the lock carries the run all the same."""
    glance = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print(1, flush=True)"
    command = [sys.executable, "-c", f"{glance}; time.sleep(0.05)", str(folder.path / "lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as onlooker:
        assert onlooker.stdout
        onlooker.stdout.readline()
        with folder.owned():
            pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_filesystem_without_locks_is_told(folder: RunFolder, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that cannot be locked is not one that another process holds: the sentence says what to do."""

    def refuse(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(FolderError, match=r"cannot lock files \(.*\); choose another place with TORCHYARD_RUNS"):
        folder.owned().__enter__()


# --- which place it is


def test_place_is_the_same_in_every_process(folder: RunFolder) -> None:
    """A run's folder is the same place for a process that comes back, after a restart as well."""
    code = "import sys; from torchyard.common.identity import holder_identity; print(holder_identity(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder.path)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == holder_identity(str(folder.path))
    assert done.stdout.startswith(f"{socket.gethostname()}:{folder.path}#")


def test_containers_with_one_name_are_two_places(folder: RunFolder) -> None:
    """Two containers of the same name and path have a disk each, and so are not taken for each other."""
    mine = holder_identity(str(folder.path))
    (folder.path.parent / ".id").unlink()
    holder_identity.cache_clear()  # as in a process of the other container
    assert not is_holder(mine, str(folder.path))


def test_run_of_the_version_before_is_ours(folder: RunFolder) -> None:
    """A run that is held as `host:folder` is held by this machine, as the version before wrote it."""
    assert is_holder(f"{socket.gethostname()}:{folder.path}", str(folder.path))
    assert not is_holder(f"elsewhere:{folder.path}", str(folder.path))


def test_place_without_a_disk_is_host_and_folder() -> None:
    """Where no id can be kept nothing fails, and nothing is made."""
    assert holder_identity("/proc/no-such-folder/run") == _former_identity("/proc/no-such-folder/run")


def test_torn_id_is_made_anew(folder: RunFolder) -> None:
    """An id that a power cut has emptied does not make all places alike."""
    (runs_folder() / ".id").write_bytes(b"\0" * 13)
    assert len(holder_identity(str(folder.path)).rpartition("#")[2]) == 12
