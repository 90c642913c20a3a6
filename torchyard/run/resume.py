"""What becomes of a run that has a past, decided from its journal and from what Prefect says of it: values alone.

`entry`: how a process begins that starts for such a run. `judge`: what to do about a run that no process carries.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

EntryMode = Literal["fresh", "attach", "finish", "echo", "give-up"]
RecoveryAction = Literal["leave", "schedule", "finish", "tell"]
JournalEvent = dict[str, Any]
MAX_LOSSES = 3
# A process that lived longer than this has done its part: only deaths in a row, each soon after the start, are a loop.
_SHORT_LIFE_S = 600.0
# What we say in Prefect when we schedule a run; nobody else who schedules one says the same.
LOST_MESSAGE, NEVER_BEGAN_MESSAGE = "its process was lost: it comes back", "its worker died before it began"
CRASHED = "Crashed"  # the name of the state of a lost run; every end that is meant has another name
WORKER_START_TIMEOUT_S = 120.0  # how long a worker may take from a run's Pending to its Running
MAX_LOSS_AGE_S = 86_400.0  # how long ago a run may have been lost of which nothing is known here
# A flow process that ends so could not import its flow: it would never come to its journal, and come back for ever.
IMPORT_FAILURE_MESSAGES = (
    "Process exited with status code: 1.",
    "Flow run infrastructure exited with non-zero status code 1.",
)
_FINAL_STATE_TYPES = frozenset({"COMPLETED", "FAILED", "CANCELLED", "CRASHED"})


class ReportedState(NamedTuple):
    """A state of a run in Prefect: its type, name and message, and for how many seconds it has been so."""

    kind: str
    name: str
    message: str = ""
    age_s: float = 0.0


def choose_entry(events: Sequence[JournalEvent], asked: Callable[[], bool]) -> EntryMode:
    """How to begin.

    `fresh`: nobody was here, or the run ended and a person asks for it again (`asked`). `attach`: the last process was
    lost. `finish`: it was lost in the middle of ending the run, on purpose or not: end it now.
    `echo`: the run has ended, and nobody has asked for it again: tell the end once more.
    `give-up`: three processes in a row were lost at the same step, each soon after its start.
    """
    if not events:
        return "fresh"
    lives = split_by_start(events)
    if events[-1]["event"] == "end":
        return _choose_entry_after_end(events[-1], asked)
    if any(event["event"] == "ending" for event in lives[-1]):
        return "finish"
    lost = [life for life in lives if life[-1]["event"] != "end"]
    recent = lives[-MAX_LOSSES:]
    looping = len(recent) == MAX_LOSSES and all(life in lost and _is_short_life(life) for life in recent)
    return "give-up" if looping and len({_find_last_step(life) for life in recent}) == 1 else "attach"


def _choose_entry_after_end(end: JournalEvent, asked: Callable[[], bool]) -> EntryMode:
    """A run that succeeded is done for good, and any other one unless a person asks for it again.

    One that was given up may have a job to come back to; one that went on elsewhere is not over.
    """
    if end.get("end") == "moved":
        return "attach"
    if end.get("end") == "succeeded" or not asked():
        return "echo"
    return "attach" if end.get("end") == "gave-up" else "fresh"


def is_requested_again(states: Sequence[ReportedState]) -> bool:
    """Whether a person asked for a run again since it ended, by all its states, the oldest first.

    Workers, workers' deaths and we schedule it as well: what counts is who did so first after an end.
    """
    ends = [at for at, state in enumerate(states) if state.kind in _FINAL_STATE_TYPES and state.name != CRASHED]
    since = states[ends[-1] :] if ends else states
    return any(
        before.kind in _FINAL_STATE_TYPES
        and state.kind == "SCHEDULED"
        and state.message not in (LOST_MESSAGE, NEVER_BEGAN_MESSAGE)
        for before, state in pairwise(since)
    )


def choose_recovery(
    now: ReportedState, count: int, events: Sequence[JournalEvent], asked: Callable[[], bool]
) -> RecoveryAction:
    """What to do about a run that no living process on this machine carries; `count`: how many processes began it.

    `schedule`: it was lost: another process goes on. `finish`: it was being cancelled: end it. `tell`: it has ended,
    and Prefect does not know. `leave`: it is well, waits, has ended, or may be carried elsewhere.
    """
    ended = bool(events) and events[-1]["event"] == "end" and events[-1].get("end") != "moved"
    here = (
        find_last_event(events, "start").get("count") == count
    )  # the process that Prefect knows was one of this machine
    lost = here and is_lost(events)
    crashed = now.kind == "CRASHED" and now.name == CRASHED and not now.message.startswith(IMPORT_FAILURE_MESSAGES)
    if crashed and ended:
        return "schedule" if asked() else "tell"
    if here and ended and now.kind in ("RUNNING", "PAUSED", "CANCELLING"):
        return "tell"
    if lost and now.kind in ("CANCELLING", "CANCELLED"):
        return "finish"
    comes_back = crashed and (bool(events) or now.age_s < MAX_LOSS_AGE_S)
    never_began = now.kind == "PENDING" and now.age_s > WORKER_START_TIMEOUT_S
    return "schedule" if comes_back or never_began or (lost and now.kind in ("RUNNING", "PAUSED")) else "leave"


def is_lost(events: Sequence[JournalEvent]) -> bool:
    """Whether the last process ended without an end, unless it still lives."""
    return bool(events) and events[-1]["event"] != "end"


def find_submission_time(events: Sequence[JournalEvent]) -> float | None:
    """When the job that may still run was submitted; None where that was not done to its end, or the job is over."""
    asked, done = None, None
    for event in events:
        if _is_job_over(event):
            asked, done = None, None
        elif _is_step(event, "submit"):
            asked = asked or float(event["at"])
        elif _is_step(event, "wait"):
            done = asked
    return done


def has_possible_job(events: Sequence[JournalEvent]) -> bool:
    """Whether an earlier process, or one on another machine, may have left a job that runs."""
    found = asked = False
    for event in events:
        if _is_job_over(event):
            found = asked = False
        elif event["event"] == "start":
            found = found or asked or event.get("entry") == "moved"
        asked = asked or _is_step(event, "submit")
    return found


def _is_step(event: JournalEvent, name: str) -> bool:
    return event["event"] == "step" and event.get("name") == name


def _is_job_over(event: JournalEvent) -> bool:
    """Whether nothing of the job is left to come back to, or soon will not be."""
    ended = event["event"] == "end" and event.get("end") not in ("gave-up", "moved")
    return ended or _is_step(event, "teardown")


def split_by_start(events: Sequence[JournalEvent]) -> list[list[JournalEvent]]:
    """The journal, cut at every start."""
    lives: list[list[JournalEvent]] = []
    for event in events:
        if event["event"] == "start" or not lives:
            lives.append([])
        lives[-1].append(event)
    return lives


def find_last_event(events: Iterable[JournalEvent], kind: str) -> JournalEvent:
    """The last event of a kind; empty where there is none."""
    return next((event for event in reversed([*events]) if event["event"] == kind), {})


def _is_short_life(life: Sequence[JournalEvent]) -> bool:
    return float(life[-1]["at"]) - float(life[0]["at"]) < _SHORT_LIFE_S


def _find_last_step(life: Sequence[JournalEvent]) -> str:
    return str(next((event.get("name") for event in reversed(life) if event["event"] == "step"), "start"))
