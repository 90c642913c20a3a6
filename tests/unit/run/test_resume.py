"""How a process starts, and what happens to a lost run: decided from its journal and its state in Prefect alone."""

from typing import Any

import pytest

from torchyard.run.resume import (
    LOST_MESSAGE,
    MAX_LOSS_AGE_S,
    NEVER_STARTED_MESSAGE,
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


def process_events(
    *steps: str, end: str = "", by: str = "flow", lasting: float = 1.0, count: int = 1
) -> list[dict[str, Any]]:
    """The journal of one launch: its start, its steps, and its end if it has one."""
    started_at = NOW - lasting
    events: list[dict[str, Any]] = [{"event": "start", "at": started_at, "count": count}]
    events += [{"event": "step", "name": name, "at": started_at + lasting} for name in steps]
    return events + (
        [{"event": "end", "end": end, "by": by, "at": started_at + lasting, "sentence": ""}] if end else []
    )


DIED = process_events("preflight", "submit", "wait")
DAYS = process_events("wait", lasting=9000.0)
ENDING = {"event": "ending", "at": NOW, "end": "cancelled"}


@pytest.mark.parametrize(
    ("launches", "is_requested", "expected"),
    [
        ([], False, "fresh"),
        ([DIED], False, "attach"),
        ([DIED, DIED], False, "attach"),
        ([[*DIED, ENDING]], False, "finish"),
        ([DIED, DIED, DIED], False, "give-up"),
        ([DIED, process_events("preflight"), DIED], False, "attach"),
        ([DIED, DAYS, DIED], False, "attach"),
        ([DIED, DIED, process_events("wait", end="failed"), DIED], False, "attach"),
        ([process_events("wait", end="failed")], True, "fresh"),
        ([process_events("wait", end="cancelled")], True, "fresh"),
        ([process_events("wait", end="stopped")], True, "fresh"),
        ([process_events("wait", end="failed")], False, "echo"),
        ([DIED, process_events("wait", end="failed")], False, "echo"),
        ([DIED, process_events("wait", end="failed")], True, "fresh"),
        ([process_events("wait", end="succeeded")], False, "echo"),
        ([process_events("wait", end="succeeded")], True, "echo"),
        ([process_events("wait", end="swept", by="sweep")], True, "fresh"),
        ([process_events("wait", end="swept", by="guard")], False, "echo"),
        ([DIED, DIED, DIED, process_events(end="gave-up")], False, "echo"),
        ([DIED, DIED, DIED, process_events(end="gave-up")], True, "attach"),
        ([process_events("wait", end="moved")], False, "attach"),
    ],
)
def test_entry_follows_from_the_journal(
    launches: list[list[dict[str, Any]]], is_requested: bool, expected: str
) -> None:
    """A lost run is attached to, a crash loop is given up, and an ended run restarts only if a person asks for it."""
    assert choose_entry([event for launch in launches for event in launch], lambda: is_requested) == expected


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
ANEW = ReportedState("SCHEDULED", "Scheduled", NEVER_STARTED_MESSAGE)
LATE = ReportedState("SCHEDULED", "Late")


@pytest.mark.parametrize(
    ("states", "is_requested"),
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
def test_person_is_told_from_a_comeback(states: list[ReportedState], is_requested: bool) -> None:
    """A person asked for the run if the UI or the CLI, not a worker or torchyard, set the first state after its end."""
    assert is_requested_again([*FIRST, *states, *FIRST[1:]]) is is_requested


def test_each_request_of_a_person_counts() -> None:
    """Two retries by users are two, and the comebacks between them are none."""
    assert count_requests([*FIRST, FAILED, UI, *FIRST[1:], CRASHED, OURS, *FIRST[1:], FAILED, CLI]) == 2
    assert count_requests([*FIRST, CRASHED, OURS, *FIRST[1:]]) == 0


RUNNING, PENDING = FIRST[2], FIRST[1]
ENDED = process_events("wait", end="failed")


@pytest.mark.parametrize(
    ("now", "events", "expected"),
    [
        (RUNNING, DIED, "schedule"),
        (RUNNING, process_events("wait", count=2), "leave"),
        (ReportedState("PAUSED", "Suspended"), DIED, "schedule"),
        (RUNNING, [], "leave"),
        (RUNNING, ENDED, "tell"),
        (RUNNING, process_events("wait", end="moved"), "leave"),
        (CRASHED, DIED, "schedule"),
        (CRASHED, [], "schedule"),
        (CRASHED._replace(age_s=MAX_LOSS_AGE_S + 1), [], "leave"),
        (CRASHED._replace(age_s=MAX_LOSS_AGE_S + 1), DIED, "schedule"),
        (CRASHED._replace(message="Process exited with status code: 1. Look above"), [], "leave"),
        (CRASHED._replace(message="Flow run infrastructure exited with non-zero status code 1. Read"), [], "leave"),
        (CRASHED._replace(message="Process exited with status code: -9. SIGKILL"), [], "schedule"),
        (CRASHED, ENDED, "tell"),
        (CRASHED, process_events("wait", end="moved"), "schedule"),
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
WAITED = process_events("preflight", "submit", "wait")


def joined(*launches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for launch in launches for event in launch]


@pytest.mark.parametrize(
    ("launches", "submitted_at", "may_run"),
    [
        ([], None, False),
        ([process_events("preflight", "submit")], None, False),
        ([process_events("preflight", "submit"), process_events()], None, True),
        ([WAITED, process_events()], NOW, True),
        ([WAITED, process_events("submit", "wait", lasting=-40.0), process_events()], NOW, True),
        ([process_events("submit", "wait", "collect", "teardown"), process_events()], None, False),
        ([process_events("submit", "wait", "teardown", "submit"), process_events()], None, True),
        ([process_events("submit", "wait", end="swept", by="sweep"), process_events()], None, False),
        ([WAITED, process_events(end="gave-up"), process_events()], NOW, True),
        ([MOVED], None, True),
    ],
)
def test_journal_tells_whether_a_job_may_run(
    launches: list[list[dict[str, Any]]], submitted_at: float | None, may_run: bool
) -> None:
    """A job may still run if an earlier process submitted it and it was neither torn down nor ended since."""
    events = joined(*launches)
    assert (find_submission_time(events), has_possible_job(events)) == (submitted_at, may_run)


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
