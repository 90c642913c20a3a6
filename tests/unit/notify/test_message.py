"""The messages about a run: which events its end gives, and the text of each."""

import platform

import pytest

from tests.builders.hang_examples import HANG
from tests.builders.reports import attempt, report_of, short_report
from torchyard.common.project_root import runs_folder
from torchyard.loading.profile import load_profile
from torchyard.model.run import Report, Step
from torchyard.model.trend import TrendVerdict
from torchyard.notify.message import list_end_events, write_end_message, write_waiting_message

LOSS = Step(name="resume", seconds=3, detail="the launcher was lost")
WORSE = TrendVerdict(verdict="worse", sentence="busbw is 150, 25 % below 200")


def ended(end: str = "succeeded", **fields: object) -> Report:
    return short_report(end).model_copy(update=fields)


@pytest.mark.parametrize(
    ("report", "previous_ends", "events"),
    [
        (ended("failed"), [], ["failed"]),
        (ended("gave-up"), [], ["failed"]),
        (ended("swept"), [], ["failed"]),
        (ended("cancelled"), ["failed"], []),
        (ended("stopped"), ["failed"], []),
        (ended(), [], ["succeeded"]),
        (ended(), ["failed", "succeeded"], ["succeeded"]),
        (ended(), ["succeeded", "failed"], ["recovered", "succeeded"]),
        (ended(), ["failed", "cancelled"], ["recovered", "succeeded"]),
        (ended(steps=(LOSS,)), [], ["recovered", "succeeded"]),
        (report_of(attempt(1, "oom-pod"), attempt(2, "")), [], ["recovered", "succeeded"]),
        (ended(trend=WORSE), [], ["regressed", "succeeded"]),
        (ended("failed", trend=WORSE), [], ["regressed", "failed"]),
    ],
)
def test_end_of_a_run_gives_these_events(report: Report, previous_ends: list[str], events: list[str]) -> None:
    """A cancelled run gives no event, and a success after a failure or a lost launcher is a recovery."""
    assert list_end_events(report, previous_ends) == events


def test_failure_is_reported_with_its_cause_and_where_to_look() -> None:
    """The message has the report's sentence, the cause, the run, its page and the command that shows its log."""
    message = write_end_message("failed", ended("failed", leftovers=("a pod",)), [], "http://prefect/runs/1")
    assert (message.title, message.tone) == ("x: failed", "failure")
    assert message.body.splitlines() == [
        "a sentence",
        "cause: program-error",
        "left behind: 1, see the report",
        "",
        "x-1: failed after 12 min 41 s",
        "http://prefect/runs/1",
        f"on {platform.node()}: TORCHYARD_RUNS={runs_folder()} torchyard logs x-1",
    ]


def test_failure_by_a_hang_names_it() -> None:
    """The message contains the hang exactly once, also if the report's sentence has it already."""
    (attempt,) = ended("failed").attempts
    hung = attempt.model_copy(update={"outcome": attempt.outcome.model_copy(update={"hang": HANG})})
    for sentence in ("attempt 2 of 2 failed", f"it failed: {HANG.sentence}"):
        report = ended("failed", attempts=(hung,), sentence=sentence)
        assert write_end_message("failed", report, [], "").body.count(HANG.sentence) == 1


def test_recovery_message_names_the_earlier_failure() -> None:
    """The message names the failed attempt, the lost launchers and the failed run before."""
    report = report_of(attempt(1, "oom-pod"), attempt(2, "")).model_copy(update={"steps": (LOSS, LOSS)})
    body = write_end_message("recovered", report, ["failed"], "").body
    assert body.splitlines()[1] == (
        "attempt 2 succeeded; the launcher was lost 2 times; the run before it did not succeed"
    )


def test_regression_is_reported_once() -> None:
    """The trend's sentence is added unless the report's sentence has it already."""
    for sentence in ("done", f"{WORSE.sentence}; see x"):
        body = write_end_message("regressed", ended(trend=WORSE, sentence=sentence), [], "").body
        assert body.count(WORSE.sentence) == 1


def test_waiting_is_reported_with_its_reason_and_without_codes() -> None:
    """The message contains the waiting time and the reason, without control codes in a cluster's text."""
    message = write_waiting_message(load_profile("digits-local"), "d-1", 1900.0, "no GPUs\x1b[2J free", "")
    assert (message.title, message.tone) == ("digits-local: waiting", "warning")
    assert message.body.startswith("the job has waited 31 min 40 s to start\nno GPUs free\n")
