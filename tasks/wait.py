"""Look after a job until every process of it has ended; the first one that ends badly ends the others."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, Self, assert_never

from tasks import streams
from tasks.launchers import registry
from tasks.logs import Follower
from tasks.model import ENDED, Failure, Handle, Observation, Outcome, Status
from tasks.plan import CommandPlan, ManifestPlan, Plan
from tasks.step import log, step
from tasks.stuck import Why
from tasks.teardown import stop

SLICE = 0.5  # Prefect ends a run by an exception in this thread, which a longer sleep would hold up
FIRST_WORD = 20.0  # seconds that a host has to say how its block is
SAY = 10.0  # seconds between two reasons why a job has not started
SETTLE = 15.0  # seconds that the logs of stopped processes may take to be whole
Pulse = Callable[[list[str]], None]


class Watch(Protocol):
    """What tells how a job is, wherever it runs."""

    seen: dict[str, Mapping[str, Any]]

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def changes(self, timeout: float) -> bool: ...
    def exits(self) -> dict[str, int | None]: ...
    def ended_at(self) -> float | None: ...
    def running_at(self) -> float: ...
    def losing(self) -> dict[str, str]: ...
    def lost(self) -> dict[str, str]: ...
    def why(self, last: bool = False) -> Why | None: ...
    def machines(self) -> dict[str, str]: ...
    def deaf(self) -> bool: ...
    def note(self, outcome: Outcome) -> None: ...
    def settle(self, seconds: float) -> None: ...


def open_watch(plan: Plan) -> Watch:
    """The watch of a plan; it is current once it is entered."""
    match plan:
        case CommandPlan():
            return streams.Watch(plan.on, plan.store)
        case ManifestPlan():
            from tasks.watch import ClusterWatch

            return ClusterWatch(plan)
        case _:
            assert_never(plan)


@step
def wait(handle: Handle, pulse: Pulse = lambda _: None) -> Outcome:
    """How the job ended. `pulse` is called at least every half second with rank 0's new lines.

    A deadline ends the job as well; it is told in the outcome, not raised.
    """
    logs = Follower(handle.plan, handle.submitted_at)
    launcher = registry.launcher(handle.plan.launcher)
    told, began, waits, losses = "", time.monotonic(), Waits(), Losses()
    with open_watch(handle.plan) as watch:
        while True:
            watch.changes(SLICE)
            losses.tell(watch.losing())
            pulse(logs.read())
            if watch.deaf():  # nobody is silent who is not heard
                logs.last_at = time.time()
            status = launcher.read_status(Observation(watch.seen, frozenset(logs.joined), time.time()))
            why = None if status.state in ENDED else watch.why()
            if why and why.ends and status.state == "pending":
                status = Status(state="failed", reason=why.failure.sentence, failure=why.failure)
            if status.state in ENDED:
                return conclude(handle, logs, watch, Outcome(status=status, exits=watch.exits()))
            # A block that has not spoken yet may have ended long ago: whoever attaches must not take it for silent.
            known = all(watch.seen.values()) or time.monotonic() - began > FIRST_WORD
            if known and (late := overdue(handle, logs, bool(told) or status.state == "running")):
                return conclude(handle, logs, watch, give_up(late, status, watch))
            waits.tell(status, why)
            if status.state == "running" and not told:
                told, at = status.reason, started_at(logs, watch)
                log().info("%s%s", told, f" after {at - handle.submitted_at:.1f} s" if at else "")


class Waits:
    """Says what a job waits for that does not get on: where it changes, and not more often than is read."""

    def __init__(self) -> None:
        self._said, self._next = "", time.monotonic() + SAY

    def tell(self, status: Status, why: Why | None) -> None:
        started = status.state == "running"
        reason = why.failure.sentence if why else "" if started else status.reason
        if reason in ("", self._said) or time.monotonic() < self._next:
            return
        self._said, self._next = reason, time.monotonic() + SAY
        log().info("%s: %s", "not all is well" if started else "not started so far", reason)


class Losses:
    """Says when a log cannot be written: at the first line that is lost, not at the end of the run."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def tell(self, lost: Mapping[str, str]) -> None:
        for name in lost.keys() - self._said:
            self._said.add(name)
            log().warning("%s: log lines are being lost: %s", name, lost[name])


def started_at(logs: Follower, watch: Watch) -> float:
    """When every node had joined, as the agents say it; else when every container ran."""
    return logs.joined_at or watch.running_at()


class Late(NamedTuple):
    """A deadline that has passed."""

    cause: Literal["start-deadline", "run-deadline", "silence"]
    sentence: str


def overdue(handle: Handle, logs: Follower, started: bool) -> Late | None:
    """The deadline that has passed, if one has. What has started once is not late any more."""
    limits, now = handle.deadlines, time.time()
    if not started and now - handle.submitted_at > limits.start:
        return Late("start-deadline", f"not started within {limits.start:g} s (deadlines.start)")
    if now - handle.submitted_at > limits.run:
        return Late("run-deadline", f"not ended within {limits.run:g} s (deadlines.run)")
    if started and now - logs.last_at > limits.silence:
        return Late("silence", f"no line in any log for {limits.silence:g} s (deadlines.silence): the job hangs")
    return None


def give_up(late: Late, status: Status, watch: Watch) -> Outcome:
    """The outcome that a deadline makes. Where the cluster knows why it passed, that is the cause."""
    failure = None if late.cause == "run-deadline" else reason_of(late, watch.why(last=True))
    why = failure.sentence if failure else status.reason if late.cause == "start-deadline" else ""
    reason = f"{late.sentence}: {why}" if why else late.sentence
    known = failure.model_copy(update={"sentence": reason}) if failure else None
    found = Status(state="failed", reason=reason, failure=known)
    return Outcome(status=found, cause=late.cause, exits=watch.exits())


def reason_of(late: Late, why: Why | None) -> Failure | None:
    """Of a job that hangs, only a node that is lost is one: an elastic job may wait for more pods as well."""
    hangs = late.cause == "silence" and why and why.failure.cause not in ("node-lost", "host-silent")
    return None if hangs or not why else why.failure


def conclude(handle: Handle, logs: Follower, watch: Watch, outcome: Outcome) -> Outcome:
    """Stop what still runs, so that every log is whole before it is read; say when the job ended, and where it ran."""
    ended_at = watch.ended_at()
    watch.note(outcome)
    if outcome.status.state != "succeeded":
        log().warning("%s; stopping what still runs", outcome.status.reason)
        stop(handle.plan)
    watch.settle(SETTLE)
    began = started_at(logs, watch)
    after = began - handle.submitted_at if began else None
    facts = {"ended_at": ended_at, "started_after": after, "lost": watch.lost(), "machines": watch.machines()}
    return outcome.model_copy(update=facts)
