"""What the archive has of a run comes to this machine."""

from pathlib import Path

import pytest

from tests.conftest import Write, command_plan_of
from tests.lone_processes import lone_profile
from torchyard.archive.fetch import fetch_run, fetch_to_read
from torchyard.archive.store import Store
from torchyard.model.errors import ArchiveError
from torchyard.model.profile import Deadlines
from torchyard.model.run import Outcome, Status
from torchyard.run.folder import AttemptPlan, RunFolder, list_run_folders, runs_folder

ENDED = Outcome(status=Status(state="succeeded", reason="done"), exit_codes={})


@pytest.fixture
def archived(folder: RunFolder, write: Write, root: Path, store: Store) -> RunFolder:
    """A run that another machine has archived, and no folder of it here: its job has ended, and no log was copied."""
    remote = RunFolder(root / folder.name)
    remote.path.mkdir(parents=True)
    remote.record_event("start", run="an-id", folder="/pod/runs/" + folder.name)
    plan = command_plan_of(lone_profile(write), Path("/pod/runs", folder.name))
    remote.save_attempt_plan(1, AttemptPlan(plan=plan, deadlines=Deadlines()))
    remote.save_outcome(1, ENDED)
    folder.path.rmdir()
    return remote


def test_folder_is_as_it_was(archived: RunFolder, folder: RunFolder, store: Store) -> None:
    """Journal, plan and outcome are here, and the plan's logs are those of the folder here."""
    assert fetch_run(store, folder.path)
    assert (folder.events(), folder.attempts()) == (archived.events(), [1])
    assert folder.plans()[0].nodes == {"node-0": f"{folder.attempt(1)}/node-0/log"}


def test_log_that_was_not_archived_is_reported_as_lost(archived: RunFolder, folder: RunFolder, store: Store) -> None:
    """An attempt that has still to be collected does not pass for one that printed nothing."""
    fetch_run(store, folder.path)
    outcome = folder.outcome(1)
    assert outcome is not None
    assert outcome.lost == {"node-0": "its machine was lost before the log was archived"}


def test_archived_log_is_fetched(archived: RunFolder, folder: RunFolder, store: Store) -> None:
    """A log comes whole, unless there is one here that is as long; then nothing is lost."""
    store.write(f"{folder.name}/attempt-1/node-0/log", b"1 | a line\n")
    fetch_run(store, folder.path)
    outcome = folder.outcome(1)
    assert outcome is not None
    assert outcome.lost == {}
    assert (folder.attempt(1) / "node-0" / "log").read_bytes() == b"1 | a line\n"


def test_folder_that_knows_all_is_left_alone(archived: RunFolder, folder: RunFolder, store: Store) -> None:
    """A folder whose journal has every line of the archive's is not written."""
    fetch_run(store, folder.path)
    folder.record_event("step", name="teardown")
    (folder.attempt(1) / "plan.json").unlink()
    assert not fetch_run(store, folder.path)
    assert folder.attempts() == []


def test_folder_learns_how_the_run_went_on(archived: RunFolder, folder: RunFolder, store: Store) -> None:
    """A machine that comes back with its own older folder sees what another one did since."""
    fetch_run(store, folder.path)
    archived.record_event("end", end="succeeded", sentence="done")
    assert fetch_run(store, folder.path)
    assert folder.events()[-1]["end"] == "succeeded"


def test_run_that_nobody_archived_is_not_there(store: Store, folder: RunFolder) -> None:
    """Without a journal there is nothing to fetch."""
    assert not fetch_run(store, folder.path)
    assert fetch_to_read(store, runs_folder(), "none-1") is None


def test_copy_to_read_is_no_run_of_this_machine(archived: RunFolder, store: Store) -> None:
    """Recovery would take a run that goes on elsewhere for lost, if its journal lay among the runs here."""
    copy = fetch_to_read(store, runs_folder(), archived.name)
    assert copy is not None
    assert (RunFolder(copy).attempts(), list_run_folders()) == ([1], [])
    archived.record_event("end", end="succeeded", sentence="done")
    assert fetch_to_read(store, runs_folder(), archived.name) == copy
    assert RunFolder(copy).last("end")


def test_archive_that_fails_in_the_middle_leaves_no_journal(
    archived: RunFolder, folder: RunFolder, store: Store
) -> None:
    """The next process fetches again: a folder that has only some of the records has no journal."""
    (archived.attempt(2)).mkdir()
    (archived.attempt(2) / "plan.json").symlink_to(archived.path)  # listed, and no file that can be read
    with pytest.raises(ArchiveError, match="cannot"):
        fetch_run(store, folder.path)
    assert folder.events() == []
