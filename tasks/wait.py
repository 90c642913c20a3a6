"""Look after a job until every process of it has ended; the first one that ends badly ends the others."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self, assert_never

from tasks import streams
from tasks.launchers import registry
from tasks.logs import Follower
from tasks.model import ENDED, Handle, Observation, Outcome, Status
from tasks.plan import CommandPlan, ManifestPlan, Plan
from tasks.step import log, step
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
    def hints(self) -> str: ...
    def deaf(self) -> bool: ...
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
            if status.state in ENDED:
                return conclude(handle, logs, watch, Outcome(status=status, exits=watch.exits()))
            # A block that has not spoken yet may have ended long ago: whoever attaches must not take it for silent.
            known = all(watch.seen.values()) or time.monotonic() - began > FIRST_WORD
            if known and (late := overdue(handle, logs, status, bool(told) or status.state == "running")):
                return conclude(handle, logs, watch, late.model_copy(update={"exits": watch.exits()}))
            waits.tell(status)
            if status.state == "running" and not told:
                told, at = status.reason, started_at(logs, watch)
                log().info("%s%s", told, f" after {at - handle.submitted_at:.1f} s" if at else "")


class Waits:
    """Says what a job that has not started waits for: at once where it changes, and not more often than is read."""

    def __init__(self) -> None:
        self._said, self._next = "", time.monotonic() + SAY

    def tell(self, status: Status) -> None:
        if status.state == "pending" and status.reason != self._said and time.monotonic() > self._next:
            self._said, self._next = status.reason, time.monotonic() + SAY
            log().info("not started so far: %s", status.reason)


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


def overdue(handle: Handle, logs: Follower, status: Status, started: bool) -> Outcome | None:
    """The outcome that a deadline makes, if one has passed. What has started once is not late any more."""
    limits, now = handle.deadlines, time.time()
    if not started and now - handle.submitted_at > limits.start:
        reason = f"not started within {limits.start:g} s (deadlines.start): {status.reason}"
        return Outcome(status=Status(state="failed", reason=reason), cause="start-deadline", exits={})
    if now - handle.submitted_at > limits.run:
        reason = f"not ended within {limits.run:g} s (deadlines.run)"
        return Outcome(status=Status(state="failed", reason=reason), cause="run-deadline", exits={})
    if started and now - logs.last_at > limits.silence:
        reason = f"no line in any log for {limits.silence:g} s (deadlines.silence): the job hangs"
        return Outcome(status=Status(state="failed", reason=reason), cause="silence", exits={})
    return None


def conclude(handle: Handle, logs: Follower, watch: Watch, outcome: Outcome) -> Outcome:
    """Stop what still runs, so that every log is whole before it is read; say when the job ended."""
    facts = {"ended_at": watch.ended_at()}
    if outcome.cause == "start-deadline":
        reason = outcome.status.reason + watch.hints()
        outcome = outcome.model_copy(update={"status": outcome.status.model_copy(update={"reason": reason})})
    if outcome.status.state != "succeeded":
        log().warning("%s; stopping what still runs", outcome.status.reason)
        stop(handle.plan)
    watch.settle(SETTLE)
    began = started_at(logs, watch)
    facts["started_after"] = began - handle.submitted_at if began else None
    return outcome.model_copy(update={**facts, "lost": watch.lost()})
