"""How a process starts, and how a lost run is recovered, from its journal and its state in Prefect alone."""

from functools import partial
from typing import Any

import pytest

from tests.builders.journals import NOW, join_launches, process_events
from torchyard.model.errors import DetachedError
from torchyard.run.record import RunRecord
from torchyard.run.resume import (
    LEFT_MESSAGE,
    LOST_MESSAGE,
    MAX_LOSS_AGE_S,
    MAX_PAUSE_S,
    NEVER_STARTED_MESSAGE,
    SILENT_MESSAGE,
    WORKER_START_TIMEOUT_S,
    ReportedState,
    choose_entry,
    choose_pause_s,
    choose_recovery,
    count_requests,
    is_launcher_dead,
    is_requested_again,
    is_started_anew,
)

DIED = process_events("preflight", "submit", "wait")
DAYS = process_events("wait", lasting=9000.0)
AHEAD = process_events("wait", lasting=-40.0)  # by a clock that is ahead of the next process's
LEFT = [*DIED, {"event": "left", "at": NOW, "sentence": "403"}]
LEFT_LATE = [*DAYS, {"event": "left", "at": NOW, "sentence": "403"}]
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
        ([DAYS, DAYS, DAYS], False, "attach"),
        ([DIED, DIED, DAYS], False, "attach"),
        ([DIED, AHEAD, DIED], False, "attach"),
        ([LEFT, LEFT, LEFT, LEFT], False, "attach"),
        ([DIED, LEFT, DIED, LEFT], False, "attach"),
        ([DIED, LEFT, DIED, LEFT, DIED], False, "give-up"),
        ([DIED, LEFT_LATE, DIED, DIED], False, "attach"),
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
    """A lost run is attached to, a crash loop is given up, and an ended run restarts only if a user requests it."""
    assert choose_entry(RunRecord(join_launches(launches)), lambda _: is_requested, NOW) == expected


def test_run_that_only_users_start_is_never_given_up() -> None:
    """A user who attaches after three deaths has requested that: without recovery there is no loop."""
    record = RunRecord([*DIED, *DIED, *DIED])
    assert choose_entry(record, lambda _: False, NOW, is_automatic=False) == "attach"


def test_prefect_is_not_queried_about_a_run_without_an_end() -> None:
    """A process attaches to its running job without a query to Prefect, whose server may hang."""

    def query_prefect(active_count: int) -> bool:
        raise AssertionError("Prefect was queried")

    assert choose_entry(RunRecord(DIED), query_prefect, NOW) == "attach"


FIRST = [
    ReportedState("SCHEDULED", "Scheduled"),
    ReportedState("PENDING", "Pending"),
    ReportedState("RUNNING", "Running"),
]
FAILED = ReportedState("FAILED", "Failed")
CRASHED = ReportedState("CRASHED", "Crashed")
UI = ReportedState("SCHEDULED", "AwaitingRetry", "Retry from the UI")
CLI = ReportedState("SCHEDULED", "Scheduled", "Retried via CLI")
OURS = ReportedState("SCHEDULED", "Scheduled", LOST_MESSAGE)
PAUSED_BY_US = ReportedState("SCHEDULED", "Scheduled", LEFT_MESSAGE)
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
        ([FAILED, PAUSED_BY_US, LATE], False),
        ([CRASHED, OURS, *FIRST[1:], FAILED, *FIRST[1:]], False),
        ([FAILED, UI, *FIRST[1:], FAILED, OURS], False),
        ([], False),
    ],
)
def test_request_of_a_user_differs_from_a_recovery(states: list[ReportedState], is_requested: bool) -> None:
    """A user requested the run if the UI or the CLI, not a worker or torchyard, set the first state after its end."""
    assert is_requested_again([*FIRST, *states, *FIRST[1:]], 1) is is_requested


@pytest.mark.parametrize(("active_count", "is_requested"), [(1, True), (2, False)])
@pytest.mark.parametrize("states", [[FAILED, UI], [CRASHED, UI]], ids=["after its end", "while it was lost"])
def test_request_is_served_once(states: list[ReportedState], active_count: int, is_requested: bool) -> None:
    """A request that a process has served does not count for the next one, though Prefect has no end between them."""
    states_after_loss = [*FIRST, *states, *FIRST[1:], CRASHED, OURS, *FIRST[1:]]
    assert is_requested_again(states_after_loss, active_count) is is_requested


def test_end_of_a_served_retry_is_reported() -> None:
    """A retry that has ended, and was lost before it reported that, is not started again, and its end is reported."""
    states = [*FIRST, FAILED, UI, *FIRST[1:], CRASHED]
    record = RunRecord([*ENDED, *process_events("wait", end="failed", count=2)])
    is_retry_requested = partial(is_requested_again, states)
    assert choose_recovery(CRASHED, 2, record, is_retry_requested) == "report"
    assert choose_entry(record, is_retry_requested, NOW) == "echo"


def test_only_requests_of_users_count() -> None:
    """Retries by users are counted, and recoveries between them are not."""
    assert count_requests([*FIRST, FAILED, UI, *FIRST[1:], CRASHED, OURS, *FIRST[1:], FAILED, CLI]) == 2
    assert count_requests([*FIRST, CRASHED, OURS, *FIRST[1:]]) == 0


PENDING = FIRST[1]
RUNNING = FIRST[2]
ENDED = process_events("wait", end="failed")


@pytest.mark.parametrize(
    ("now", "events", "expected"),
    [
        (RUNNING, DIED, "schedule"),
        (RUNNING, process_events("wait", count=2), "leave"),
        (ReportedState("PAUSED", "Suspended"), DIED, "schedule"),
        (RUNNING, [], "leave"),
        (RUNNING, ENDED, "report"),
        (RUNNING, process_events("wait", end="moved"), "leave"),
        (CRASHED, DIED, "schedule"),
        (CRASHED, [], "schedule"),
        (CRASHED._replace(age_s=MAX_LOSS_AGE_S + 1), [], "leave"),
        (CRASHED._replace(age_s=MAX_LOSS_AGE_S + 1), DIED, "schedule"),
        (CRASHED._replace(message="Process exited with status code: 1. Look above"), [], "leave"),
        (CRASHED._replace(message="Flow run infrastructure exited with non-zero status code 1. Read"), [], "leave"),
        (CRASHED._replace(message="Process exited with status code: -9. SIGKILL"), [], "schedule"),
        (CRASHED, ENDED, "report"),
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
        (PAUSED_BY_US, LEFT, "leave"),
    ],
)
def test_only_a_lost_run_is_scheduled(now: ReportedState, events: list[dict[str, Any]], expected: str) -> None:
    """A run that has ended, waits or runs elsewhere is not scheduled, but its end may be reported to Prefect."""
    assert choose_recovery(now, 1, RunRecord(events), lambda _: False) == expected


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (ReportedState("CANCELLING", "Cancelling"), "finish"),
        (ReportedState("CANCELLED", "Cancelled"), "finish"),
        (RUNNING, "leave"),
    ],
)
def test_cancel_ends_a_job_that_a_newer_process_did_not_reach(now: ReportedState, expected: str) -> None:
    """A newer process that has journalled nothing may own a run that goes on, but does not keep a cancelled one."""
    assert choose_recovery(now, 2, RunRecord(DIED), lambda _: False) == expected


def test_lost_retry_is_scheduled_again() -> None:
    """A retry that was lost before its first journal entry is rescheduled as a retry."""
    assert choose_recovery(CRASHED, 1, RunRecord(ENDED), lambda _: True) == "schedule"


# --- the pause before a run resumes

DEPARTURE = str(DetachedError("HTTP 403"))


def launch(message: str, lasting_s: float = 30.0) -> list[ReportedState]:
    """The states of one process that is lost with this message."""
    return [
        *FIRST[:2],
        ReportedState("RUNNING", "Running", set_at=NOW - lasting_s),
        ReportedState("CRASHED", "Crashed", message, set_at=NOW),
    ]


LEAVE = launch(DEPARTURE)
DEATH = launch("Process exited with status code: -9")


@pytest.mark.parametrize(
    ("states", "pause_s"),
    [
        ([], 0),
        (LEAVE, 0),
        (LEAVE * 2, 10),
        (LEAVE * 3, 20),
        (LEAVE * 4, 40),
        (LEAVE * 9, MAX_PAUSE_S),
        (LEAVE * 9999, MAX_PAUSE_S),
        (DEATH * 9, 0),
        ([*LEAVE * 3, *DEATH], 0),
        ([*LEAVE * 3, *DEATH, *LEAVE], 40),
        ([*LEAVE * 3, *launch(DEPARTURE, lasting_s=9000.0)], 0),
        ([*LEAVE * 3, *launch(DEPARTURE, lasting_s=9000.0), *LEAVE], 10),
        ([*LEAVE, *LEAVE, ReportedState("CRASHED", "Crashed", "Process exited with status code: 1.")], 10),
        ([*LEAVE * 3, FAILED, CLI, *LEAVE], 0),
        ([*LEAVE * 3, FAILED], 0),
        ([*launch(DEPARTURE, lasting_s=-9e9), *launch(DEPARTURE, lasting_s=-9e9)], 10),
    ],
)
def test_processes_that_leave_repeatedly_resume_after_growing_pauses(
    states: list[ReportedState], pause_s: float
) -> None:
    """The first one is replaced at once, like one that died; then each pause is twice as long, up to a minute."""
    assert choose_pause_s([*FIRST, *states], lease_s=1800.0) == pause_s


@pytest.mark.parametrize(("lease_s", "pause_s"), [(1800.0, MAX_PAUSE_S), (60.0, 6.0), (None, 10.0)])
def test_pause_is_much_shorter_than_the_lease(lease_s: float | None, pause_s: float) -> None:
    """A pause takes at most a tenth of the lease, and of a short one if the lease is not known."""
    assert choose_pause_s(LEAVE * 9, lease_s) == pause_s


# --- a run that another machine holds

KILLED = ReportedState("CRASHED", "Crashed", "Process exited with status code: -9")
SILENT = ReportedState("CRASHED", "Crashed", f"{SILENT_MESSAGE} 120 s")
RETRIED = ReportedState("SCHEDULED", "AwaitingRetry")


@pytest.mark.parametrize(
    ("states", "is_dead"),
    [
        ([RUNNING, KILLED, OURS, RUNNING], True),
        ([RUNNING, SILENT, OURS, RUNNING], False),
        ([RUNNING, SILENT, OURS, RUNNING, KILLED, OURS, RUNNING], False),
        ([RUNNING, OURS, RUNNING], False),
    ],
    ids=["reported by its worker", "silent", "another machine's process died too", "no report"],
)
def test_silent_launcher_is_not_dead(states: list[ReportedState], is_dead: bool) -> None:
    """Only a report of the launcher's own machine proves that the launcher is dead, and silence does not."""
    assert is_launcher_dead(states) is is_dead


@pytest.mark.parametrize(
    ("states", "is_anew"),
    [
        ([RUNNING, FAILED, RETRIED, RUNNING], True),
        ([RUNNING, FAILED, OURS, RUNNING], False),
        ([RUNNING, KILLED, RETRIED, RUNNING], False),
    ],
    ids=["a user after its end", "an automation after its end", "a user while it is lost"],
)
def test_ended_run_that_a_user_requests_starts_anew(states: list[ReportedState], is_anew: bool) -> None:
    """A run that has ended and that a user requests again may start on any machine; a lost run has not ended."""
    assert is_started_anew(states) is is_anew
