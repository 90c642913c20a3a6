"""The list of all sources: each run once, and what could not be read."""

import os
from pathlib import Path

import pytest

from tests.builders.archives import archive_run, create_archive
from tests.builders.listed_runs import FAILED, MOVED, RUNNING, build_folder
from tests.doubles.fake_api import FakeApi
from tests.doubles.leases import RUN, OrphanedRun, build_lease
from torchyard.archive.store import ARCHIVE_VARIABLE
from torchyard.listing.all_sources import RunLister
from torchyard.listing.listed_run import RunList


def list_states(run_list: RunList) -> list[tuple[str, str, str]]:
    return [(row.name, row.state, row.source) for row in run_list.runs]


def test_only_runs_that_go_on_are_listed_by_default() -> None:
    """A run that is over is listed only on request; the newest is first, after those that cannot be read."""
    build_folder(*FAILED, name="over-a1b2c3d4")
    lost = build_folder(("start", {"entry": "fresh"}), name="lost-a1b2c3d4")
    (build_folder(name="torn-a1b2c3d4").path / "journal").write_text("{torn")
    rows = [("torn-a1b2c3d4", "unreadable", "folder"), (lost.name, "lost", "folder")]
    assert list_states(RunLister(with_finished=False, context=None).list_runs()) == rows
    rows.append(("over-a1b2c3d4", "failed", "folder"))
    assert sorted(list_states(RunLister(with_finished=True, context=None).list_runs())) == sorted(rows)


def test_moved_run_is_read_from_the_archive(tmp_path: Path) -> None:
    """A run that another machine has taken over is listed as that machine archives it."""
    create_archive(tmp_path / "archive")
    build_folder(*MOVED)
    archive_run(tmp_path / "archive", build_folder(*RUNNING, runs=tmp_path / "other-machine"))
    run_list = RunLister(with_finished=False, context=None).list_runs()
    assert list_states(run_list) == [("mine-a1b2c3d4", "running", "archive")]


def test_lease_counts_for_a_run_that_does_not_go_on_here(fake_api: FakeApi) -> None:
    """The Lease of another machine's run is listed; that of a run of this machine only if the run has moved."""
    OrphanedRun(fake_api, build_lease(ago=10))
    fake_api.put(build_lease("other-a1b2c3d4", ago=10), "team-b")
    assert list_states(RunLister(with_finished=False, context="").list_runs()) == [
        ("other-a1b2c3d4", "preparing", "cluster"),
        (RUN, "preparing", "cluster"),
    ]
    folder = build_folder(*RUNNING, name=RUN)
    with folder.owned():
        states = list_states(RunLister(with_finished=False, context="").list_runs())
    assert (RUN, "running", "folder") in states
    folder.record_event("end", end="moved")
    assert (RUN, "preparing", "cluster") in list_states(RunLister(with_finished=True, context="").list_runs())


def test_source_that_cannot_be_read_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No source that fails hides the others."""
    build_folder(("start", {"entry": "fresh"}))
    os.environ[ARCHIVE_VARIABLE] = "nowhere://x"
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    run_list = RunLister(with_finished=False, context="").list_runs()
    assert [row.state for row in run_list.runs] == ["lost"]
    assert len(run_list.problems) == 2
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("TORCHYARD_RUNS", str(tmp_path / "a-file"))
    assert "cannot be listed" in RunLister(with_finished=False, context=None).list_runs().problems[0]
