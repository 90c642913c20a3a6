"""A run's folder is fetched from the archive to this machine."""

import errno
import json
import time
from pathlib import Path

import pytest

from tests.builders.archives import archive_run
from tests.conftest import Write, command_plan_of
from tests.processes.lone_processes import build_lone_profile
from torchyard.archive.fetch import fetch_run, fetch_to_read
from torchyard.archive.store import Store
from torchyard.model.errors import ArchiveError
from torchyard.model.profile import Deadlines
from torchyard.model.run import Outcome, Status
from torchyard.run.folder import AttemptPlan, RunFolder, list_run_folders, runs_folder

ENDED = Outcome(status=Status(state="succeeded", reason="done"), exit_codes={})


@pytest.fixture
def remote(folder: RunFolder, write: Write, root: Path, store: Store, tmp_path: Path) -> RunFolder:
    """The folder of a run on another machine, archived after its job has ended, and without its log."""
    remote = RunFolder(tmp_path / "other-machine" / folder.name)
    remote.path.mkdir(parents=True)
    remote.record_event("start", run="an-id", folder="/pod/runs/" + folder.name)
    plan = command_plan_of(build_lone_profile(write), Path("/pod/runs", folder.name))
    remote.save_attempt_plan(1, AttemptPlan(plan=plan, deadlines=Deadlines()))
    remote.save_outcome(1, ENDED)
    archive_run(root, remote)
    folder.path.rmdir()
    return remote


def test_folder_is_fetched_completely(remote: RunFolder, folder: RunFolder, store: Store) -> None:
    """Journal, plan and outcome are fetched, and the plan's logs are in the local folder."""
    assert fetch_run(store, folder.path)
    assert (folder.events(), folder.attempts()) == (remote.events(), [1])
    assert folder.plans()[0].nodes == {"node-0": f"{folder.attempt(1)}/node-0/log"}


def test_log_that_was_not_archived_is_reported_as_lost(remote: RunFolder, folder: RunFolder, store: Store) -> None:
    """An ended attempt whose log was not archived is recorded as one with a lost log."""
    fetch_run(store, folder.path)
    outcome = folder.outcome(1)
    assert outcome is not None
    assert outcome.lost == {"node-0": "its machine was lost before the log was archived"}


def test_full_disk_loses_no_outcome(
    remote: RunFolder, folder: RunFolder, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the missing logs cannot be recorded, the outcome stays as it was archived, and the fetch is repeated."""
    replace = Path.replace
    replaced_names: list[str] = []

    def replace_until_full(path: Path, target: Path) -> Path:
        replaced_names.append(target.name)
        if replaced_names.count("outcome.json") == 2:  # first as it was archived
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", replace_until_full)
    monkeypatch.setattr(Path, "write_text", lambda path, text, encoding: path.write_bytes(b""))
    with pytest.raises(ArchiveError, match="No space left on device"):
        fetch_run(store, folder.path)
    assert (folder.outcome(1), folder.events()) == (ENDED, [])


def test_archived_log_is_fetched(remote: RunFolder, folder: RunFolder, store: Store) -> None:
    """An archived log is fetched completely, and is not recorded as lost."""
    store.write(f"{folder.name}/attempt-1/node-0/log", b"1 | a line\n")
    fetch_run(store, folder.path)
    outcome = folder.outcome(1)
    assert outcome is not None
    assert outcome.lost == {}
    assert (folder.attempt(1) / "node-0" / "log").read_bytes() == b"1 | a line\n"


def test_complete_folder_is_not_changed(remote: RunFolder, folder: RunFolder, store: Store) -> None:
    """A folder whose journal contains every line of the archived one is not written."""
    fetch_run(store, folder.path)
    folder.record_event("step", name="teardown")
    (folder.attempt(1) / "plan.json").unlink()
    assert not fetch_run(store, folder.path)
    assert folder.attempts() == []


def test_older_folder_is_updated(remote: RunFolder, folder: RunFolder, store: Store, root: Path) -> None:
    """A machine with an older folder of the run fetches what another machine has recorded since."""
    fetch_run(store, folder.path)
    remote.record_event("end", end="succeeded", sentence="done")
    archive_run(root, remote)
    assert fetch_run(store, folder.path)
    assert folder.events()[-1]["end"] == "succeeded"


def test_run_that_was_never_archived_is_not_fetched(store: Store, folder: RunFolder) -> None:
    """Without an archived journal nothing is fetched."""
    assert not fetch_run(store, folder.path)
    assert fetch_to_read(store, runs_folder(), "none-1") is None


def test_copy_to_read_is_not_a_run_of_this_machine(remote: RunFolder, store: Store, root: Path) -> None:
    """A copy to read is not among the runs of this machine, where recovery would treat it as a lost run."""
    copy = fetch_to_read(store, runs_folder(), remote.name)
    assert copy is not None
    assert (RunFolder(copy).attempts(), list_run_folders()) == ([1], [])
    remote.record_event("end", end="succeeded", sentence="done")
    archive_run(root, remote)
    assert fetch_to_read(store, runs_folder(), remote.name) == copy
    assert RunFolder(copy).read_record().find_last("end")


def test_archive_that_fails_in_the_middle_leaves_no_journal(
    remote: RunFolder, folder: RunFolder, store: Store, root: Path
) -> None:
    """A folder with only some of the records gets no journal, so that the next process fetches it again."""
    archived = root / remote.name / "attempt-2"
    archived.mkdir()
    (archived / "plan.json").symlink_to(root)  # listed, but not a readable file
    with pytest.raises(ArchiveError, match="cannot"):
        fetch_run(store, folder.path)
    assert folder.events() == []


def test_journals_of_all_processes_are_fetched(remote: RunFolder, folder: RunFolder, store: Store, root: Path) -> None:
    """The lines of every process are fetched, also if one that has lost the run wrote its journal last."""
    store.write(f"{folder.name}/journal-1", (remote.path / "journal").read_bytes() + build_end_line())
    archive_run(root, remote, process_id="2")
    fetch_run(store, folder.path)
    assert [event["event"] for event in folder.events()] == ["start", "end"]


def test_interrupted_fetch_of_a_log_is_continued(remote: RunFolder, folder: RunFolder, store: Store) -> None:
    """A folder with all lines of the journal gets the logs that it lacks, unless their job may still run here."""
    fetch_run(store, folder.path)
    store.write(f"{folder.name}/attempt-1/node-0/log", b"1 | a line\n")
    store.write(f"{folder.name}/attempt-2/node-0/log", b"1 | a line of a job without an outcome here\n")
    assert not fetch_run(store, folder.path)
    assert (folder.attempt(1) / "node-0" / "log").read_bytes() == b"1 | a line\n"
    assert not (folder.attempt(2) / "node-0" / "log").exists()


def build_end_line() -> bytes:
    return json.dumps({"at": time.time(), "event": "end", "end": "succeeded"}).encode() + b"\n"
