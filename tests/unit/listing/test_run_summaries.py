"""The summaries that a scraper gets from run folders: every state, and folders that cannot be read."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.builders.listed_runs import FAILED, MOVED, RUNNING, START, SUBMIT, TORN_DOWN, build_folder
from tests.conftest import Write, command_plan_of, load
from torchyard.listing.run_summaries import RunsReader, read_run
from torchyard.model.errors import FolderError
from torchyard.model.profile import Deadlines
from torchyard.run.folder import AttemptPlan, RunFolder, runs_folder


@pytest.mark.parametrize(
    ("events", "state", "gpus"),
    [
        (SUBMIT[:1], "preparing", 0),
        (SUBMIT, "waiting", 0),
        (RUNNING, "running", 16),
        ((*RUNNING, ("start", START | {"entry": "attach"})), "running", 16),
        (TORN_DOWN, "preparing", 0),
        ((*TORN_DOWN, *SUBMIT[1:]), "waiting", 0),
        ((*RUNNING, ("ending", {"end": "failed"})), "ending", 16),
        (FAILED, "failed", 0),
        ((*RUNNING, ("end", {"end": "gave-up"})), "gave-up", 16),
        ((*RUNNING, ("end", {"end": "gave-up"}), ("end", {"end": "swept"})), "swept", 0),
        ((*TORN_DOWN, ("end", {"end": "failed"}), *SUBMIT), "waiting", 0),
    ],
)
def test_journal_contains_the_state_and_the_held_gpus(
    events: tuple[tuple[str, dict[str, Any]], ...], state: str, gpus: int
) -> None:
    """A run that a process owns is in one of these states, and holds its GPUs from its job's start to its teardown."""
    folder = build_folder(*events)
    with folder.owned():
        summary = read_run(folder, time.time())
    assert (summary.state, summary.gpus, summary.profile, summary.launcher) == (state, gpus, "mine", "volcano")


def test_end_that_is_reported_again_keeps_its_time() -> None:
    """`attach` of a run that has ended records its end again, with the time of the first."""
    events = (*FAILED, ("start", START), ("end", {"end": "failed", "ended_at": 1000.0}))
    assert read_run(build_folder(*events), time.time()).ended_at == 1000.0


def test_run_without_a_process_is_lost_and_may_hold_gpus() -> None:
    """The job of a lost run may keep training under its lease."""
    summary = read_run(build_folder(*RUNNING), time.time())
    assert (summary.state, summary.gpus, summary.is_open) == ("lost", 16, True)


@pytest.mark.parametrize(
    ("events", "is_open"),
    [
        (SUBMIT[:1], True),
        (RUNNING, True),
        (FAILED, False),
        ((*RUNNING, ("end", {"end": "gave-up"})), True),
        ((*SUBMIT[:1], ("end", {"end": "gave-up"})), False),
        (MOVED, False),
        ((*FAILED, ("start", START)), True),
    ],
)
def test_run_is_open_until_nothing_of_it_goes_on_here(
    events: tuple[tuple[str, dict[str, Any]], ...], is_open: bool
) -> None:
    """A run that was given up is open while it may have a job; one that has moved goes on elsewhere."""
    assert read_run(build_folder(*events), time.time()).is_open is is_open


def test_summary_contains_who_started_the_run_and_how_it_ended() -> None:
    """The journal has the launcher's machine and user, and the sentence of the end."""
    summary = read_run(build_folder(*FAILED), time.time())
    assert (summary.host, summary.user, summary.processes, summary.sentence) == ("login-1", "alice", 8, "it broke")
    assert summary.ended_at is not None
    assert summary.ended_at >= summary.started_at > 0


def test_wait_is_counted_from_the_submit() -> None:
    """A waiting job has its waiting time; a running one has the time that it waited."""
    folder = build_folder(*SUBMIT)
    submitted = next(event["at"] for event in folder.events() if event["event"] == "step")
    with folder.owned():
        assert read_run(folder, submitted + 90).waiting_s == 90
        folder.record_event("running", waited_s=12.5)
        summary = read_run(folder, submitted + 90)
    assert (summary.waiting_s, summary.start_delay_s) == (0.0, 12.5)


def test_recoveries_and_attempts_are_counted(write: Write) -> None:
    """Each process that resumed the run is a recovery, and each plan an attempt."""
    folder = build_folder(
        *SUBMIT, ("start", {"entry": "attach"}), ("start", {"entry": "finish"}), ("start", {"entry": "echo"})
    )
    for number in (1, 2):
        plan = command_plan_of(load(write()), folder.path, number)
        folder.save_attempt_plan(number, AttemptPlan(plan=plan, deadlines=Deadlines()))
    summary = read_run(folder, time.time())
    assert (summary.recoveries, summary.attempts) == (2, 2)


def test_folder_that_cannot_be_read_is_counted() -> None:
    """A damaged journal, or a folder in its place, is counted as unreadable; a history folder is not a run."""
    build_folder(*RUNNING, name="good-a1b2c3d4")
    (build_folder(name="torn-a1b2c3d4").path / "journal").write_text("{torn")
    (build_folder(name="bad-a1b2c3d4").path / "journal").mkdir()
    build_folder(name="history")
    all_runs = RunsReader().read()
    assert [summary.run for summary in all_runs.runs] == ["good-a1b2c3d4"]
    assert all_runs.unreadable == (
        ("bad-a1b2c3d4", "Is a directory"),
        ("torn-a1b2c3d4", "no line of its journal can be read"),
    )
    with pytest.raises(FolderError):
        read_run(RunFolder(runs_folder() / "torn-a1b2c3d4"), time.time())


@pytest.mark.parametrize(
    "line",
    [
        {"event": "start", "gpus": "many"},
        {"event": "start", "gpus": float("nan")},
        {"event": "start", "gpus": 10**40},
        {"event": "start", "gpus": [8]},
        {"event": "running", "waited_s": {}},
        {"event": "running", "waited_s": -1},
        {"event": "step", "name": "submit", "at": 10**400},
    ],
    ids=str,
)
def test_journal_with_a_wrong_value_is_counted(line: dict[str, Any]) -> None:
    """A journal with a value that is not a number takes nothing but its own run from the metrics."""
    build_folder(*RUNNING, name="good-a1b2c3d4")
    folder = build_folder(("start", START), ("step", {"name": "submit"}), ("running", {}), name="wrong-a1b2c3d4")
    with (folder.path / "journal").open("a") as journal:
        journal.write(json.dumps({"at": 1.0} | line) + "\n")
    if line["event"] == "step":
        (folder.path / "journal").write_text(json.dumps(line) + "\n")
    all_runs = RunsReader().read()
    assert [summary.run for summary in all_runs.runs] == ["good-a1b2c3d4"]
    assert [unreadable.name for unreadable in all_runs.unreadable] == ["wrong-a1b2c3d4"]


def test_text_that_cannot_be_encoded_is_replaced() -> None:
    """A lone surrogate in a folder's name or in a journal is sent as a question mark."""
    folder = build_folder(("start", START | {"profile": "m\ud800"}), name="na\udcffme-a1b2c3d4")
    summary = read_run(folder, time.time())
    assert (summary.run, summary.profile) == ("na?me-a1b2c3d4", "m?")


def test_runs_folder_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    """A missing folder contains no runs; a folder that cannot be listed is an error."""
    assert RunsReader().read() == ((), ())
    os.environ["TORCHYARD_RUNS"] = str(tmp_path / "a-file")
    (tmp_path / "a-file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        RunsReader().read()


def test_ended_run_is_read_again_only_if_its_journal_changes() -> None:
    """The reader caches an ended run until its journal changes, and drops a run whose journal was removed."""
    folder = build_folder(*TORN_DOWN, ("end", {"end": "failed"}))
    reader = RunsReader()

    def read_state() -> list[str]:
        return [summary.state for summary in reader.read().runs]

    assert read_state() == ["failed"]
    plan = folder.attempt(1) / "plan.json"
    plan.parent.mkdir()
    plan.write_text("")
    assert [summary.attempts for summary in reader.read().runs] == [0]
    folder.record_event("end", end="succeeded")
    assert [(summary.state, summary.attempts) for summary in reader.read().runs] == [("succeeded", 1)]
    (folder.path / "journal").unlink()
    assert read_state() == []
