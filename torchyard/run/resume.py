"""Decides how a run is resumed, from its journal and its state in Prefect: pure functions.

`choose_entry`: how a new process of the run starts. `choose_recovery`: what to do about a run that no process owns.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from torchyard.model.errors import LEFT_CLAUSE
from torchyard.run.record import JournalEvent, RunRecord, find_last_event, has_left

EntryMode = Literal["fresh", "attach", "finish", "echo", "give-up"]
RecoveryAction = Literal["leave", "schedule", "finish", "report"]
MAX_LOSSES = 3
# Processes that die in a row are a loop only if each of them had died sooner after its start than this.
_SHORT_LAUNCH_S = 600.0
# Our messages in Prefect when we schedule a run: they distinguish us from a user who schedules it.
LOST_MESSAGE = "its process was lost: it resumes"
LEFT_MESSAGE = "its process left because of its own problem: it resumes after a pause"
NEVER_STARTED_MESSAGE = "its worker died before it began"
_OUR_MESSAGES = (LOST_MESSAGE, LEFT_MESSAGE, NEVER_STARTED_MESSAGE)
SILENT_MESSAGE = "no heartbeat for"  # of the state that an automation sets: the launcher is dead or cut off
CRASHED = "Crashed"  # the name of a lost run's state; every intended end has another name
WORKER_START_TIMEOUT_S = 120.0  # how long a worker may take from a run's Pending to its Running
# The pause before a run resumes whose processes leave repeatedly: a problem of their own persists.
_FIRST_PAUSE_S = 10.0  # doubled each time
MAX_PAUSE_S = 60.0
_MAX_PAUSES_PER_LEASE = 10  # a lease that ends during a pause would end a healthy job
_UNKNOWN_LEASE_S = 100.0  # of a run whose folder is on another machine: shorter than most
MAX_LOSS_AGE_S = 86_400.0  # a run that is unknown on this machine is resumed only if it was lost less than this ago
# A flow process that ends like this could not import its flow: it never reaches its journal, and would loop forever.
IMPORT_FAILURE_MESSAGES = (
    "Process exited with status code: 1.",
    "Flow run infrastructure exited with non-zero status code 1.",
)
_FINAL_STATE_TYPES = frozenset({"COMPLETED", "FAILED", "CANCELLED", "CRASHED"})


class ReportedState(NamedTuple):
    """A state of a run in Prefect: its type, name, message and age.

    set_at: seconds since the epoch, by Prefect's clock, which all machines share.
    """

    kind: str
    name: str
    message: str = ""
    age_s: float = 0.0
    set_at: float = 0.0


def choose_entry(
    record: RunRecord, is_retry_requested: Callable[[int], bool], now: float, *, is_automatic: bool = True
) -> EntryMode:
    """How a new process of the run starts.

    is_retry_requested: whether a user has requested the run again since its process with this count has started.
    now: when it starts, in seconds since the epoch.
    is_automatic: recovery may have started it, and not a user.

    fresh      no process has run it yet, or it ended and a user requests it again
    attach     the last process was lost: attach to its job
    finish     the last process was lost while it was ending the run, whatever the end: end it now
    echo       the run has ended and no user has requested it again: report the same end again
    give-up    three processes in a row died at the same step, each was replaced soon after its start, and recovery
               would start the next ones too; those that left soon because of their own problem are not counted
    """
    if not record.events:
        return "fresh"
    if record.end:
        return _choose_entry_after_end(record, is_retry_requested)
    if record.ending:
        return "finish"
    return "give-up" if is_automatic and _is_loop(record, now) else "attach"


def _is_loop(record: RunRecord, now: float) -> bool:
    """Whether the processes of the run die again and again. One that left soon shows neither that nor the opposite.

    `now`: when the next process starts.
    """
    starts = [float(launch[0]["at"]) for launch in record.launches]
    loss_steps: list[str | None] = []  # by process, the oldest first; None for one that was not lost soon
    for process_events, next_start in zip(record.launches, [*starts[1:], now], strict=True):
        is_short = _is_short_launch(process_events, next_start)
        if is_short and has_left(process_events):
            continue
        is_lost_soon = is_short and process_events[-1]["event"] != "end"
        loss_steps.append(_find_last_step(process_events) if is_lost_soon else None)
    recent = loss_steps[-MAX_LOSSES:]
    return len(recent) == MAX_LOSSES and len(set(recent)) == 1 and recent[0] is not None


def _choose_entry_after_end(record: RunRecord, is_retry_requested: Callable[[int], bool]) -> EntryMode:
    """How to start after an end: a run that succeeded never starts again, any other only if a user requests it.

    A run that was given up may still have a job to attach to; one that another process took over has not ended.
    """
    if record.end == "moved":
        return "attach"
    if record.end == "succeeded" or not is_retry_requested(record.active_count):
        return "echo"
    return "attach" if record.end == "gave-up" else "fresh"


def describe_loop(remaining_lease_s: float, journal: str) -> str:
    """Why a run is given up whose processes are lost repeatedly."""
    return (
        f"given up: {MAX_LOSSES} processes of this run were lost in a row at the same step; the job, if any, keeps "
        f"running for {max(remaining_lease_s, 0):.0f} s; see {journal}, fix the cause, then retry this run"
    )


def is_requested_again(states: Sequence[ReportedState], active_count: int) -> bool:
    """Whether a user requested a run again since it ended, and since its process with this count started.

    That process has served all earlier requests, although Prefect has no end of it if it was lost before it reported
    one. Recovery, workers and workers' deaths schedule runs too: only the first one to do so after an end counts.

    `states`: all its states, the oldest first.
    """
    starts = [index for index, state in enumerate(states) if state.kind == "RUNNING"]
    ends = [index for index, state in enumerate(states) if _is_end(state)]
    served = max([0, *starts[:active_count][-1:], *ends[-1:]])
    return count_requests(states[served:]) > 0


def is_started_anew(states: Sequence[ReportedState]) -> bool:
    """Whether a user requested a run again after its end. `states`: since a machine holds it, the oldest first."""
    return any(map(_is_end, states)) and is_requested_again(states, 0)


def is_launcher_dead(states: Sequence[ReportedState]) -> bool:
    """Whether a process on the launcher's own machine reported that the launcher died.

    A launcher that is only silent may be cut off from Prefect and still run its job. `states`: since that machine holds
    the run, the oldest first; only the first crash counts, because later ones are of other processes.
    """
    for state in states:
        if state.name == CRASHED:
            return not state.message.startswith(SILENT_MESSAGE)
    return False


def count_requests(states: Sequence[ReportedState]) -> int:
    """How often a user requested a run again. `states`: all its states, the oldest first."""
    return sum(
        previous.kind in _FINAL_STATE_TYPES and state.kind == "SCHEDULED" and state.message not in _OUR_MESSAGES
        for previous, state in pairwise(states)
    )


def choose_pause_s(states: Sequence[ReportedState], lease_s: float | None) -> float:
    """The seconds from the last of a run's states until it is resumed. `states`: all of them, the oldest first.

    0 unless its last process left because of its own problem, and not for the first time in a row: the problem
    persists, and each pause is twice as long as the one before. A process that ran for long ends the row. The pause is
    much shorter than the run's lease; `lease_s`: None if it is not known here.
    """
    leave_count = 0
    has_just_left = False
    started_at: float | None = None  # of the process that the state belongs to
    for state in states:
        if state.kind == "RUNNING":
            started_at = state.set_at if started_at is None else started_at
        elif _is_end(state):
            leave_count = 0
            started_at = None
            has_just_left = False
        elif state.name == CRASHED and started_at is not None:  # a worker may report the same crash once more
            has_just_left = state.message.endswith(LEFT_CLAUSE)
            leave_count = leave_count if state.set_at - started_at < _SHORT_LAUNCH_S else 0
            leave_count += has_just_left
            started_at = None
        elif state.kind == "SCHEDULED":
            started_at = None
    if not has_just_left or leave_count < 2:
        return 0.0
    longest_s = min(MAX_PAUSE_S, (lease_s or _UNKNOWN_LEASE_S) / _MAX_PAUSES_PER_LEASE)
    return float(min(longest_s, _FIRST_PAUSE_S * 2.0 ** min(leave_count - 2, 10)))


def choose_recovery(
    now: ReportedState, count: int, record: RunRecord, is_retry_requested: Callable[[int], bool]
) -> RecoveryAction:
    """What to do about a run that no living process on this machine owns; `count`: how many processes started it.

    `is_retry_requested`: as for `choose_entry`.

    schedule   it was lost: let another process resume it
    finish     it was cancelled, and its job may still run: end it, if no other machine owns it
    report     it has ended, and Prefect has not recorded that
    leave      it is healthy, waiting or ended, or another machine may own it
    """
    has_ended = record.end not in ("", "moved")
    # Whether the newest process of which Prefect has a record ran on this machine: a newer one may run elsewhere.
    ran_here = record.last_start.get("count") == count
    has_crashed = now.kind == "CRASHED" and now.name == CRASHED and not now.message.startswith(IMPORT_FAILURE_MESSAGES)
    if has_crashed and has_ended:
        return "schedule" if is_retry_requested(record.active_count) else "report"
    if ran_here and has_ended and now.kind in ("RUNNING", "PAUSED", "CANCELLING"):
        return "report"
    # Also if a newer process was started: it may have ended before it came to the job. Proof of ownership follows.
    if record.is_lost and now.kind in ("CANCELLING", "CANCELLED"):
        return "finish"
    can_resume = has_crashed and (bool(record.events) or now.age_s < MAX_LOSS_AGE_S)
    never_started = now.kind == "PENDING" and now.age_s > WORKER_START_TIMEOUT_S
    was_lost = ran_here and record.is_lost and now.kind in ("RUNNING", "PAUSED")
    return "schedule" if can_resume or never_started or was_lost else "leave"


def _is_end(state: ReportedState) -> bool:
    return state.kind in _FINAL_STATE_TYPES and state.name != CRASHED


def _is_short_launch(process_events: Sequence[JournalEvent], next_start: float) -> bool:
    """Whether a process is proven to have ended soon after its start. `next_start`: when the next process started.

    Its last event does not prove that, because nothing is journalled while a job trains: only its departure, or the
    next process's start does, unless that is earlier, by the clock of another machine.
    """
    ended_at = find_last_event(process_events, "left").get("at", next_start)
    return 0 <= float(ended_at) - float(process_events[0]["at"]) < _SHORT_LAUNCH_S


def _find_last_step(process_events: Sequence[JournalEvent]) -> str:
    """The step at which a process stopped; `start` if it reached none."""
    return str(find_last_event(process_events, "step").get("name", "start"))
