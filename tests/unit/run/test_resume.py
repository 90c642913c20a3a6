"""How a process starts, and what happens to a lost run: decided from its journal and its state in Prefect alone."""

from typing import Any

import pytest

from torchyard.run.resume import (
    LOST_MESSAGE,
    MAX_LOSS_AGE_S,
    NEVER_BEGAN_MESSAGE,
    SILENT_MESSAGE,
    WORKER_START_TIMEOUT_S,
    ReportedState,
    choose_entry,
    choose_recovery,
    count_requests,
    find_submission_time,
    has_possible_job,
    is_launcher_dead,
    is_requested_again,
    is_started_anew,
)

NOW = 10_000.0


def life(*steps: str, end: str = "", by: str = "flow", lasting: float = 1.0, count: int = 1) -> list[dict[str, Any]]:
    """The journal of one launch: its start, its steps, and its end if it has one."""
    at = NOW - lasting
    events: list[dict[str, Any]] = [{"event": "start", "at": at, "count": count}]
    events += [{"event": "step", "name": name, "at": at + lasting} for name in steps]
    return events + ([{"event": "end", "end": end, "by": by, "at": at + lasting, "sentence": ""}] if end else [])


DIED = life("preflight", "submit", "wait")
DAYS = life("wait", lasting=9000.0)
ENDING = {"event": "ending", "at": NOW, "end": "cancelled"}


@pytest.mark.parametrize(
    ("lives", "asked", "expected"),
    [
        ([], False, "fresh"),
        ([DIED], False, "attach"),
        ([DIED, DIED], False, "attach"),
        ([[*DIED, ENDING]], False, "finish"),
        ([DIED, DIED, DIED], False, "give-up"),
        ([DIED, life("preflight"), DIED], False, "attach"),
        ([DIED, DAYS, DIED], False, "attach"),
        ([DIED, DIED, life("wait", end="failed"), DIED], False, "attach"),
        ([life("wait", end="failed")], True, "fresh"),
        ([life("wait", end="cancelled")], True, "fresh"),
        ([life("wait", end="stopped")], True, "fresh"),
        ([life("wait", end="failed")], False, "echo"),
        ([DIED, life("wait", end="failed")], False, "echo"),
        ([DIED, life("wait", end="failed")], True, "fresh"),
        ([life("wait", end="succeeded")], False, "echo"),
        ([life("wait", end="succeeded")], True, "echo"),
        ([life("wait", end="swept", by="sweep")], True, "fresh"),
        ([life("wait", end="swept", by="guard")], False, "echo"),
        ([DIED, DIED, DIED, life(end="gave-up")], False, "echo"),
        ([DIED, DIED, DIED, life(end="gave-up")], True, "attach"),
        ([life("wait", end="moved")], False, "attach"),
    ],
)
def test_entry_follows_from_the_journal(lives: list[list[dict[str, Any]]], asked: bool, expected: str) -> None:
    """A lost run is attached to, a crash loop is given up, and an ended run restarts only if a person asks for it."""
    assert choose_entry([event for each in lives for event in each], lambda: asked) == expected


def test_nobody_is_asked_about_a_run_that_is_not_over() -> None:
    """A process attaches to its living job without asking Prefect, whose server may hang."""

    def ask() -> bool:
        raise AssertionError("nobody need be asked")

    assert choose_entry(DIED, ask) == "attach"


FIRST = [
    ReportedState("SCHEDULED", "Scheduled"),
    ReportedState("PENDING", "Pending"),
    ReportedState("RUNNING", "Running"),
]
FAILED, CRASHED = ReportedState("FAILED", "Failed"), ReportedState("CRASHED", "Crashed")
UI = ReportedState("SCHEDULED", "AwaitingRetry", "Retry from the UI")
CLI = ReportedState("SCHEDULED", "Scheduled", "Retried via CLI")
OURS = ReportedState("SCHEDULED", "Scheduled", LOST_MESSAGE)
ANEW = ReportedState("SCHEDULED", "Scheduled", NEVER_BEGAN_MESSAGE)
LATE = ReportedState("SCHEDULED", "Late")


@pytest.mark.parametrize(
    ("since", "asked"),
    [
        ([FAILED, UI], True),
        ([FAILED, CLI, LATE], True),
        ([FAILED, UI, *FIRST[1:], CRASHED, OURS], True),
        ([FAILED, UI, ReportedState("PENDING", "Pending"), ANEW], True),
        ([ReportedState("CRASHED", "Swept"), UI], True),
        ([CRASHED, UI], True),
        ([FAILED, OURS], False),
        ([FAILED, OURS, LATE], False),
        ([CRASHED, OURS, *FIRST[1:], FAILED, *FIRST[1:]], False),
        ([FAILED, UI, *FIRST[1:], FAILED, OURS], False),
        ([], False),
    ],
)
def test_person_is_told_from_a_comeback(since: list[ReportedState], asked: bool) -> None:
    """A person asked for the run if the UI or the CLI, not a worker or torchyard, set the first state after its end."""
    assert is_requested_again([*FIRST, *since, *FIRST[1:]]) is asked


def test_each_request_of_a_person_counts() -> None:
    """Two retries by users are two, and the comebacks between them are none."""
    assert count_requests([*FIRST, FAILED, UI, *FIRST[1:], CRASHED, OURS, *FIRST[1:], FAILED, CLI]) == 2
    assert count_requests([*FIRST, CRASHED, OURS, *FIRST[1:]]) == 0


RUNNING, PENDING = FIRST[2], FIRST[1]
ENDED = life("wait", end="failed")


@pytest.mark.parametrize(
    ("now", "events", "expected"),
    [
        (RUNNING, DIED, "schedule"),
        (RUNNING, life("wait", count=2), "leave"),
        (ReportedState("PAUSED", "Suspended"), DIED, "schedule"),
        (RUNNING, [], "leave"),
        (RUNNING, ENDED, "tell"),
        (RUNNING, life("wait", end="moved"), "leave"),
        (CRASHED, DIED, "schedule"),
        (CRASHED, [], "schedule"),
        (CRASHED._replace(age_s=MAX_LOSS_AGE_S + 1), [], "leave"),
        (CRASHED._replace(age_s=MAX_LOSS_AGE_S + 1), DIED, "schedule"),
        (CRASHED._replace(message="Process exited with status code: 1. Look above"), [], "leave"),
        (CRASHED._replace(message="Flow run infrastructure exited with non-zero status code 1. Read"), [], "leave"),
        (CRASHED._replace(message="Process exited with status code: -9. SIGKILL"), [], "schedule"),
        (CRASHED, ENDED, "tell"),
        (CRASHED, life("wait", end="moved"), "schedule"),
        (ReportedState("CRASHED", "Swept"), DIED, "leave"),
        (ReportedState("CANCELLING", "Cancelling"), DIED, "finish"),
        (ReportedState("CANCELLED", "Cancelled"), DIED, "finish"),
        (ReportedState("CANCELLED", "Cancelled"), ENDED, "leave"),
        (PENDING, [], "leave"),
        (PENDING._replace(age_s=WORKER_START_TIMEOUT_S + 1), [], "schedule"),
        (FAILED, DIED, "leave"),
        (FAILED, ENDED, "leave"),
        (OURS, DIED, "leave"),
    ],
)
def test_only_a_lost_run_is_brought_back(now: ReportedState, events: list[dict[str, Any]], expected: str) -> None:
    """A run that has ended, waits, or goes on elsewhere is left alone, or its end is reported to Prefect."""
    assert choose_recovery(now, 1, events, lambda: False) == expected


def test_end_that_a_person_has_asked_to_repeat_is_not_told() -> None:
    """A retry that was lost before its first journal entry is rescheduled as a retry."""
    assert choose_recovery(CRASHED, 1, ENDED, lambda: True) == "schedule"


MOVED: list[dict[str, Any]] = [{"event": "start", "entry": "moved", "at": 1.0}]
WAITED = life("preflight", "submit", "wait")


def joined(*lives: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for each in lives for event in each]


@pytest.mark.parametrize(
    ("lives", "at", "runs"),
    [
        ([], None, False),
        ([life("preflight", "submit")], None, False),
        ([life("preflight", "submit"), life()], None, True),
        ([WAITED, life()], NOW, True),
        ([WAITED, life("submit", "wait", lasting=-40.0), life()], NOW, True),
        ([life("submit", "wait", "collect", "teardown"), life()], None, False),
        ([life("submit", "wait", "teardown", "submit"), life()], None, True),
        ([life("submit", "wait", end="swept", by="sweep"), life()], None, False),
        ([WAITED, life(end="gave-up"), life()], NOW, True),
        ([MOVED], None, True),
    ],
)
def test_journal_tells_whether_a_job_may_run(lives: list[list[dict[str, Any]]], at: float | None, runs: bool) -> None:
    """A job may still run if an earlier process submitted it and it was neither torn down nor ended since."""
    events = joined(*lives)
    assert (find_submission_time(events), has_possible_job(events)) == (at, runs)


# --- a run that another machine holds

BEGUN, LOST = ReportedState("RUNNING", "Running"), ReportedState("SCHEDULED", "Scheduled", LOST_MESSAGE)
KILLED = ReportedState("CRASHED", "Crashed", "Process exited with status code: -9")
SILENT = ReportedState("CRASHED", "Crashed", f"{SILENT_MESSAGE} 120 s")
FAILED, AGAIN = ReportedState("FAILED", "Failed"), ReportedState("SCHEDULED", "AwaitingRetry")


@pytest.mark.parametrize(
    ("states", "dead"),
    [
        ([BEGUN, KILLED, LOST, BEGUN], True),
        ([BEGUN, SILENT, LOST, BEGUN], False),
        ([BEGUN, SILENT, LOST, BEGUN, KILLED, LOST, BEGUN], False),
        ([BEGUN, LOST, BEGUN], False),
    ],
    ids=["its worker said so", "silent", "another machine's process died too", "nobody said anything"],
)
def test_silent_launcher_may_be_cut_off(states: list[ReportedState], dead: bool) -> None:
    """Only what the launcher's own machine has said proves that it is dead: silence does not."""
    assert is_launcher_dead(states) is dead


@pytest.mark.parametrize(
    ("states", "anew"),
    [
        ([BEGUN, FAILED, AGAIN, BEGUN], True),
        ([BEGUN, FAILED, LOST, BEGUN], False),
        ([BEGUN, KILLED, AGAIN, BEGUN], False),
    ],
    ids=["a user after its end", "an automation after its end", "a user while it is lost"],
)
def test_ended_run_that_a_user_asks_for_is_nobodys(states: list[ReportedState], anew: bool) -> None:
    """A run that has ended, and that a user asks for again, may start on any machine; a lost one has not ended."""
    assert is_started_anew(states) is anew
