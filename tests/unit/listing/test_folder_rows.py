"""The rows of this machine's runs: their state, their progress and what is worth a note."""

import pytest

from tests.builders.listed_runs import FAILED, RUNNING, SUBMIT, build_folder
from tests.conftest import Write, load, plan_of
from torchyard.listing.folder_rows import FolderLister
from torchyard.listing.listed_run import ListedRun
from torchyard.model.run import JobProgress
from torchyard.run.folder import RunFolder


@pytest.fixture
def folder(write: Write) -> RunFolder:
    """A run that trains, with the plan of its attempt."""
    folder = build_folder(*RUNNING)
    build_folder(plan=plan_of(load(write(launcher="baremetal", nodes=2)), folder.path))
    return folder


def read_row(lister: FolderLister | None = None) -> ListedRun:
    """The only row."""
    (row,) = (lister or FolderLister(with_finished=True)).list_runs()
    return row


def test_row_has_the_size_and_the_progress(folder: RunFolder) -> None:
    """A run that trains has its nodes, its processes per node, its progress, and a warning as its note."""
    folder.save_progress(JobProgress(attempt=1, updated_at=1.0, done="epoch 3 of 10", warning="rank 1 hangs"))
    with folder.owned():
        row = read_row()
    assert row.progress
    assert (row.state, row.nodes, row.processes, row.attempt) == ("running", 2, 8, 1)
    assert (row.progress.done, row.note, row.user, row.location) == (
        "epoch 3 of 10",
        "rank 1 hangs",
        "alice",
        "login-1",
    )


def test_progress_of_an_earlier_attempt_does_not_count(folder: RunFolder) -> None:
    """While a new attempt starts, the file still has the progress of the last one."""
    folder.save_progress(JobProgress(attempt=2, updated_at=1.0, done="epoch 3 of 10"))
    with folder.owned():
        assert read_row().progress is None


def test_waiting_run_has_its_reason() -> None:
    """The note of a run that waits is what its job waits for."""
    folder = build_folder(*SUBMIT)
    (folder.attempt(1)).mkdir()
    (folder.attempt(1) / "plan.json").write_text("")
    folder.save_progress(JobProgress(attempt=1, updated_at=1.0, reason="no node has 8 GPUs"))
    with folder.owned():
        row = read_row()
    assert row.state == "waiting"
    assert "plan.json cannot be read" in row.note
    (folder.attempt(1) / "plan.json").unlink()
    with folder.owned():
        assert read_row().note == ""


@pytest.mark.parametrize(("lease_s", "note"), [(600.0, "may run on until its lease ends"), (None, "has ended")])
def test_lost_run_has_its_lease(folder: RunFolder, lease_s: float | None, note: str) -> None:
    """A run that no process owns may have a job only as long as its lease lasts."""
    if lease_s is not None:
        folder.renew(lease_s)
    row = read_row()
    assert row.state == "lost"
    assert note in row.note


def test_folder_that_cannot_be_read_is_a_row(folder: RunFolder) -> None:
    """A torn journal takes no line from the list, and no other run."""
    (build_folder(name="torn-a1b2c3d4").path / "journal").write_text("{torn")
    rows = {row.name: row for row in FolderLister(with_finished=True).list_runs()}
    assert set(rows) == {"torn-a1b2c3d4", folder.name}
    assert (rows["torn-a1b2c3d4"].state, rows["torn-a1b2c3d4"].note) == (
        "unreadable",
        "no line of its journal can be read",
    )


def test_finished_run_is_read_again_only_if_it_changes(folder: RunFolder) -> None:
    """The row of a run that is over is kept; once the run is started again, it is read."""
    build_folder(*FAILED[len(RUNNING) :])
    lister = FolderLister(with_finished=True)
    row = read_row(lister)
    assert (row.state, row.note, row.is_over) == ("failed", "it broke", True)
    (folder.attempt(1) / "plan.json").write_text("")
    assert read_row(lister) is row
    folder.record_event("start", entry="fresh")
    with folder.owned():
        assert read_row(lister).state == "preparing"
