"""The rows of archived runs, of which other machines have the folders."""

import json
from pathlib import Path

import pytest

from tests.builders.archives import archive_run, create_archive
from tests.builders.listed_runs import FAILED, RUNNING, build_folder
from tests.conftest import Write, load, plan_of
from torchyard.archive.store import Store
from torchyard.listing.archive_rows import list_archived_runs


@pytest.fixture
def store(write: Write, tmp_path: Path) -> Store:
    """An archive with a run that goes on, one that has failed, and one with a damaged journal."""
    store = create_archive(tmp_path / "archive")
    runs = tmp_path / "other-machine"
    plan = plan_of(load(write(launcher="baremetal", nodes=2)), runs / "mine-00000001")
    for name, events in (("mine-00000001", RUNNING), ("mine-00000002", FAILED)):
        archive_run(tmp_path / "archive", build_folder(*events, name=name, plan=plan, runs=runs))
    archived = archive_run(tmp_path / "archive", build_folder(name="torn-00000003", runs=runs))
    (archived / "journal-0").write_text("{torn")
    return store


def test_archived_runs_are_listed(store: Store) -> None:
    """A run that goes on has the time of its last event; a journal that cannot be read is a row."""
    torn, running = list_archived_runs(store, set(), with_finished=False)
    assert (torn.name, torn.state) == ("torn-00000003", "unreadable")
    assert (running.name, running.state, running.nodes, running.host, running.source) == (
        "mine-00000001",
        "running",
        2,
        "login-1",
        "archive",
    )
    assert running.note.startswith("as archived: its last event was at 20")


def test_finished_and_local_runs_are_selected(store: Store) -> None:
    """All runs include those that are over; a run of this machine is not read from the archive."""
    rows = list_archived_runs(store, {"mine-00000001", "torn-00000003"}, with_finished=True)
    assert [(row.name, row.state, row.note, row.is_over) for row in rows] == [
        ("mine-00000002", "failed", "it broke", True)
    ]


def test_run_with_an_impossible_time_does_not_hide_the_others(store: Store) -> None:
    """A journal with a time that no calendar has is one unreadable row, and the other runs are listed."""
    start = {"at": 1e20, "event": "start", "run": "an-id", "profile": "mine"}
    store.write("late-00000004/journal-0", json.dumps(start).encode() + b"\n")
    rows = {row.name: row.state for row in list_archived_runs(store, set(), with_finished=True)}
    assert rows == {
        "torn-00000003": "unreadable",
        "mine-00000001": "running",
        "mine-00000002": "failed",
        "late-00000004": "unreadable",
    }
