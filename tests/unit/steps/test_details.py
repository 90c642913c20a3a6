"""What a step has done is one line of the report."""

import pytest

from tests.builders.reports import short_report
from tests.conftest import Write, command_plan_of
from tests.processes.lone_processes import build_lone_profile
from torchyard.model.profile import Deadlines
from torchyard.model.run import Attempt, Handle, LogFile, Metrics, Outcome, Status
from torchyard.run.folder import RunFolder
from torchyard.steps.details import (
    describe_leftovers,
    describe_logs,
    describe_outcome,
    describe_submission,
    describe_success,
)


@pytest.mark.parametrize(("created", "suffix"), [(True, ""), (False, ", adopted")])
def test_submission_names_the_job(write: Write, folder: RunFolder, created: bool, suffix: str) -> None:
    """The line of the submit names the job, its agents, and whether it was already running."""
    plan = command_plan_of(build_lone_profile(write), folder.path)
    handle = Handle(plan=plan, deadlines=Deadlines(), created=created, submitted_at=100.0)
    assert describe_submission(handle) == f"{plan.job}, 1 agents{suffix}"
    outcome = Outcome(
        status=Status(state="succeeded", reason="done"), started_after=1.25, exit_codes={}, ended_at=190.0
    )
    ended = ", ended 1 min 30 s after its submit" if not created else ""
    assert describe_outcome(outcome, handle) == f"succeeded: done, program started 1.2 s after the submit{ended}"


def build_attempt(**collected: object) -> Attempt:
    """An attempt that ended, with other logs or metrics."""
    (attempt,) = short_report().attempts
    return attempt.model_copy(update={"collected": attempt.collected.model_copy(update=collected)})


def test_logs_and_success_are_summarized() -> None:
    """The logs' line has their number, lines and folder; the end of a success has the last row."""
    logs = (LogFile(node="a", path="/runs/x/a/log", lines=1200), LogFile(node="b", path="/runs/x/b/log", lines=4))
    attempt = build_attempt(logs=logs, metrics=Metrics(rows=({"epoch": 1, "loss": 0.5},)))
    assert describe_logs(attempt) == "2 logs, 1,204 lines, complete (/runs/x)"
    lost = build_attempt(logs=(logs[0].model_copy(update={"lost": "2 lines"}),))
    assert "incomplete" in describe_logs(lost)
    assert describe_success(attempt).endswith("; epoch 1: loss 0.5")


def test_teardown_names_what_is_left() -> None:
    """The line of the teardown lists the leftovers."""
    assert (describe_leftovers(()), describe_leftovers(("a pod", "a Lease"))) == ("nothing left", "a pod, a Lease")
