"""Cleaning up after a run whose launcher is gone, from its folder alone."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write, command_plan_of
from tests.lone_processes import lone_profile
from torchyard.archive.store import ARCHIVE_VARIABLE
from torchyard.host.processes import find_labelled
from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Deadlines
from torchyard.run.folder import AttemptPlan, RunFolder
from torchyard.run.sweep import is_run_open, main, sweep_run
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown

WHY = "its lease has ended"


@pytest.fixture
def plan(folder: RunFolder, write: Write) -> Iterator[CommandPlan]:
    """The plan of the run's first attempt, which its journal announces; nothing is started yet."""
    attempt_plan = command_plan_of(lone_profile(write), folder.path)
    folder.note("start", run="an-id")
    folder.save_attempt_plan(1, AttemptPlan(plan=attempt_plan, deadlines=Deadlines()))
    yield attempt_plan
    teardown(attempt_plan)


def swept(folder: RunFolder) -> tuple[tuple[str, ...] | None, list[tuple[str, ...]]]:
    """What a sweep returns, and which ends it reports."""
    ends: list[tuple[str, ...]] = []
    return sweep_run(folder, "sweep", WHY, lambda *end: ends.append(end)), ends


def test_swept_run_has_an_end(folder: RunFolder, plan: CommandPlan) -> None:
    """What a lost run has left is removed, and its end is journalled and reported once."""
    submit(plan, Deadlines())
    assert find_labelled(plan.label)
    assert swept(folder) == ((), [("an-id", "swept", WHY)])
    assert find_labelled(plan.label) == []
    end = folder.last("end")
    assert (end["end"], end["by"], end["sentence"], end["left"]) == ("swept", "sweep", WHY, [])
    assert swept(folder) == ((), [])


def test_run_that_was_ending_gets_the_end_that_it_was_coming_to(folder: RunFolder, plan: CommandPlan) -> None:
    """A launcher that was lost in its teardown had decided already how the run ends."""
    folder.note("ending", end="cancelled", sentence="cancelled through Prefect")
    assert swept(folder) == ((), [("an-id", "cancelled", "cancelled through Prefect")])


def test_ending_of_an_earlier_launch_counts_no_more(folder: RunFolder, plan: CommandPlan) -> None:
    """A retry that is swept ends as swept, although the launch before it was cancelled."""
    folder.note("ending", end="cancelled", sentence="cancelled through Prefect")
    folder.note("end", end="cancelled", sentence="cancelled through Prefect")
    folder.note("start", run="an-id")
    assert swept(folder) == ((), [("an-id", "swept", WHY)])


def test_run_of_a_living_process_is_left_alone(folder: RunFolder, plan: CommandPlan) -> None:
    """A run whose lock is held is not touched: its process only looks lost from elsewhere."""
    with folder.owned():
        assert swept(folder) == (None, [])
    assert folder.last("end") == {}


def test_run_that_has_ended_elsewhere_is_not_swept(folder: RunFolder, plan: CommandPlan, tmp_path: Path) -> None:
    """The archive knows how a run ended that this machine has lost: its end stays what it is."""
    os.environ[ARCHIVE_VARIABLE] = f"file://{tmp_path}/archive"
    remote = RunFolder(tmp_path / "archive" / folder.name)
    remote.path.mkdir(parents=True)
    remote.note("end", end="succeeded", sentence="done")
    assert swept(folder) == ((), [])
    assert folder.last("end")["end"] == "succeeded"


def test_end_of_a_swept_run_is_archived(folder: RunFolder, plan: CommandPlan, tmp_path: Path) -> None:
    """The archive has the end that the sweep has given to the run."""
    os.environ[ARCHIVE_VARIABLE] = f"file://{tmp_path}/archive"
    swept(folder)
    assert RunFolder(tmp_path / "archive" / folder.name).last("end")["end"] == "swept"


def test_run_that_cannot_be_read_is_left_over(folder: RunFolder, plan: CommandPlan) -> None:
    """What was started is not known if a plan is unreadable: that is reported as left over, and the run stays open."""
    (folder.attempt(1) / "plan.json").write_text("{")
    leftovers, ends = swept(folder)
    assert (ends, folder.last("end"), is_run_open(folder)) == ([], {}, True)
    assert leftovers
    assert "plan.json cannot be read" in leftovers[0]


@pytest.mark.parametrize(
    ("events", "is_open"),
    [
        ([], False),
        ([{"event": "start"}], True),
        ([{"event": "start"}, {"event": "end", "end": "failed"}], False),
        ([{"event": "start"}, {"event": "end", "end": "gave-up"}], True),
        ([{"event": "start"}, {"event": "end", "end": "failed"}, {"event": "start"}], True),
    ],
)
def test_run_is_open_until_its_end(folder: RunFolder, events: list[dict[str, Any]], is_open: bool) -> None:
    """A run without an end may have a job; so may one that was given up, whose job lives on under its lease."""
    for event in events:
        folder.note(**event)
    assert is_run_open(folder) is is_open


def test_run_without_a_readable_journal_is_open(folder: RunFolder, plan: CommandPlan) -> None:
    """A plan alone is enough to say that something may run."""
    (folder.path / "journal").write_bytes(b"\0" * 100)
    assert is_run_open(folder)


def test_watchdog_stops_the_job_only_if_it_is_told_to(folder: RunFolder, plan: CommandPlan) -> None:
    """`keep` lets the job train on under its lease; `stop` removes it, in the name of the watchdog."""
    submit(plan, Deadlines())
    assert main(["keep", str(folder.path)]) == 0
    assert (len(find_labelled(plan.label)) > 0, folder.last("end")) == (True, {})
    assert main(["stop", str(folder.path)]) == 0
    assert (find_labelled(plan.label), folder.last("end")["by"]) == ([], "guard")
