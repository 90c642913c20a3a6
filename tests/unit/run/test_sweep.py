"""Cleaning up after a run whose launcher is dead, from its folder alone."""

import contextlib
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.builders.archives import archive_run, create_archive
from tests.conftest import Write, command_plan_of, load
from tests.processes.lone_processes import build_lone_profile
from tests.support.waiting import wait_until
from torchyard.archive.copier import open_run_archive
from torchyard.archive.fetch import fetch_run
from torchyard.host.processes import find_labelled
from torchyard.model.errors import FolderError
from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Outcome, Report, RunEnd, Status
from torchyard.run.folder import AttemptPlan, RunFolder
from torchyard.run.services import NoArchive
from torchyard.run.sweep import end_lost_run, is_run_open
from torchyard.steps.submit import submit

REASON = "its lease has ended"


def sweep(folder: RunFolder, *, only_expired: bool = False) -> tuple[tuple[str, ...] | None, list[tuple[str, ...]]]:
    """The result of a sweep, and the ends that it reports."""
    ends: list[tuple[str, ...]] = []

    def record_end(run_id: str, report: Report) -> None:
        ends.append((run_id, report.end, report.sentence))

    leftovers = end_lost_run(
        folder, "sweep", RunEnd("swept", REASON), open_run_archive, record_end, only_expired=only_expired
    )
    return leftovers, ends


def test_swept_run_has_an_end(folder: RunFolder, saved_plan: CommandPlan) -> None:
    """The leftovers of a lost run are removed, and its end is journalled and reported once."""
    submit(saved_plan, Deadlines())
    assert find_labelled(saved_plan.label)
    assert sweep(folder) == ((), [("an-id", "swept", REASON)])
    assert find_labelled(saved_plan.label) == []
    end = folder.read_record().find_last("end")
    assert (end["end"], end["by"], end["sentence"], end["left"]) == ("swept", "sweep", REASON, [])
    assert sweep(folder) == ((), [])


def test_run_whose_lease_was_renewed_is_not_swept(folder: RunFolder, saved_plan: CommandPlan) -> None:
    """A run that was resumed, and lost again, since a sweep listed it has a new lease, and keeps its job."""
    submit(saved_plan, Deadlines())
    folder.renew(600.0)
    assert sweep(folder, only_expired=True) == (None, [])
    assert find_labelled(saved_plan.label)
    folder.renew(-1.0)
    assert sweep(folder, only_expired=True)[0] == ()
    assert find_labelled(saved_plan.label) == []


CODE = """
import time
print('{"checkpoint": "/data/step-12.pt", "step": 12}', flush=True)
time.sleep(60)
"""


def test_swept_run_reports_what_its_job_has_saved(folder: RunFolder, write: Write) -> None:
    """Its logs are read once the job has ended: the report names the checkpoint, and another run can continue."""
    plan = command_plan_of(build_lone_profile(write, CODE), folder.path)
    folder.record_event("start", run="an-id", profile="sample")
    folder.save_attempt_plan(1, AttemptPlan(plan=plan, deadlines=Deadlines(grace=1.0)))
    submit(plan, Deadlines())
    (log_path,) = map(Path, plan.logs.values())
    wait_until(lambda: log_path.exists() and "step-12" in log_path.read_text())
    assert sweep(folder)[0] == ()
    (checkpoint,) = folder.checkpoints()
    assert (checkpoint.path, checkpoint.step) == ("/data/step-12.pt", 12)
    report = folder.report()
    assert report
    assert (report.profile, report.end, len(report.attempts)) == ("sample", "swept", 1)
    assert report.sentence.startswith(f"{REASON}; ")
    assert "step 12" in report.sentence
    assert report.sentence == folder.read_record().find_last("end")["sentence"]


def test_end_is_reported_although_the_report_cannot_be_written(
    folder: RunFolder, saved_plan: CommandPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk costs the report of a swept run, not the message about its end."""

    def refuse(*_: object) -> None:
        raise FolderError(str(folder.path), "No space left on device", "make room")

    monkeypatch.setattr(RunFolder, "save_report", refuse)
    assert sweep(folder) == ((), [("an-id", "swept", REASON)])


def test_run_that_was_ending_gets_its_recorded_ending(folder: RunFolder, saved_plan: CommandPlan) -> None:
    """A run whose launcher was lost in its teardown gets the end that the launcher had recorded."""
    folder.record_event("ending", end="cancelled", sentence="cancelled through Prefect")
    assert sweep(folder) == ((), [("an-id", "cancelled", "cancelled through Prefect")])


def test_ending_of_an_earlier_launch_is_ignored(folder: RunFolder, saved_plan: CommandPlan) -> None:
    """A retry that is swept ends as swept, although the previous launch was cancelled."""
    folder.record_event("ending", end="cancelled", sentence="cancelled through Prefect")
    folder.record_event("end", end="cancelled", sentence="cancelled through Prefect")
    folder.record_event("start", run="an-id")
    assert sweep(folder) == ((), [("an-id", "swept", REASON)])


def test_run_of_a_living_process_is_not_swept(folder: RunFolder, saved_plan: CommandPlan) -> None:
    """A run whose lock is held is not swept, because its process is alive."""
    with folder.owned():
        assert sweep(folder) == (None, [])
    assert folder.read_record().find_last("end") == {}


def test_run_that_another_machine_has_taken_over_is_not_swept(folder: RunFolder, write: Write, tmp_path: Path) -> None:
    """A machine that was lost and is back does not end the job that another one has taken over through its hosts."""
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\necho \'{"other_owner": "there:/runs/a"}\'\n')
    ssh.chmod(0o755)
    os.environ["TORCHYARD_SSH"] = str(ssh)
    plan = command_plan_of(load(write(options={"hosts": ["gpu1"]})), folder.path)
    folder.record_event("start", run="an-id", profile="sample")
    folder.save_attempt_plan(1, AttemptPlan(plan=plan, deadlines=Deadlines()))
    assert sweep(folder) == (None, [])
    assert folder.read_record().find_last("end") == {}


def test_run_that_has_ended_elsewhere_is_not_swept(folder: RunFolder, saved_plan: CommandPlan, tmp_path: Path) -> None:
    """If the archive contains the end of a run, the run is not swept and keeps that end."""
    create_archive(tmp_path / "archive")
    remote = RunFolder(tmp_path / "other-machine" / folder.name)
    remote.path.mkdir(parents=True)
    remote.record_event("end", end="succeeded", sentence="done")
    archive_run(tmp_path / "archive", remote)
    assert sweep(folder) == ((), [])
    assert folder.read_record().find_last("end")["end"] == "succeeded"


def test_expired_run_whose_archive_does_not_answer_is_kept(
    folder: RunFolder, saved_plan: CommandPlan, tmp_path: Path
) -> None:
    """The archive may show that the run has ended elsewhere: the next sweep asks again, and nothing is reported."""
    os.environ["TORCHYARD_ARCHIVE"] = str(tmp_path / "not-mounted")
    folder.renew(-1.0)
    leftovers, ends = sweep(folder, only_expired=True)
    assert (ends, is_run_open(folder)) == ([], True)
    assert leftovers
    assert "may show that the run has ended elsewhere" in leftovers[0]
    assert sweep(folder)[1] == [("an-id", "swept", REASON)]


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), FolderError("/runs", "it is gone")])
def test_run_whose_logs_cannot_be_read_has_an_end(
    folder: RunFolder, saved_plan: CommandPlan, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A disk that fails costs the logs of a swept run, and not its end."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("torchyard.run.sweep.collect", fail)
    monkeypatch.setattr("torchyard.run.sweep.stop_job", fail)
    assert sweep(folder) == ((), [("an-id", "swept", REASON)])


def test_archived_log_of_a_swept_run_is_read(folder: RunFolder, saved_plan: CommandPlan) -> None:
    """The logs of a job whose end another machine has recorded are read once they have arrived from the archive."""
    folder.save_outcome(1, Outcome(status=Status(state="failed", reason="it broke"), exit_codes={}))
    (log_path,) = map(Path, saved_plan.logs.values())

    def receive_log(attempt: int) -> None:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log_path.write_text("1700000000.0 | a line\n")

    archive = Mock(NoArchive(), fetch=Mock(return_value=True), await_logs=receive_log)
    end_lost_run(
        folder, "sweep", RunEnd("swept", REASON), lambda *_, **__: contextlib.nullcontext(archive), lambda *_: None
    )
    ended = folder.ended(1)
    assert ended
    assert [log.lines for log in ended.collected.logs] == [1]


def test_end_of_a_swept_run_is_archived(folder: RunFolder, saved_plan: CommandPlan, tmp_path: Path) -> None:
    """The end of a swept run is copied to the archive."""
    store = create_archive(tmp_path / "archive")
    sweep(folder)
    fetched = RunFolder(tmp_path / "other-machine" / folder.name)
    fetch_run(store, fetched.path)
    assert fetched.read_record().find_last("end")["end"] == "swept"


def test_run_with_an_unreadable_plan_is_a_leftover(folder: RunFolder, saved_plan: CommandPlan) -> None:
    """An unreadable plan is reported as a leftover, and the run stays open."""
    (folder.attempt(1) / "plan.json").write_text("{")
    leftovers, ends = sweep(folder)
    assert (ends, folder.read_record().find_last("end"), is_run_open(folder)) == ([], {}, True)
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
    """A run may have a job if it has no end, or was given up: its job then runs until its lease expires."""
    for event in events:
        folder.record_event(**event)
    assert is_run_open(folder) is is_open


def test_run_without_a_readable_journal_is_open(folder: RunFolder, saved_plan: CommandPlan) -> None:
    """A run with a plan and an unreadable journal may have a job."""
    (folder.path / "journal").write_bytes(b"\0" * 100)
    assert is_run_open(folder)
