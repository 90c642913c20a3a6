"""Look after a job until every process of it has ended; the first one that ends badly ends the others."""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from torchyard.backend import JobWatch, backend_of
from torchyard.common.log import get_log
from torchyard.common.own_trouble import OwnTrouble, is_own_trouble
from torchyard.diagnosis.deadlines import DeadlineMonitor, PassedDeadline, ProgressSample
from torchyard.diagnosis.no_progress import Diagnosis
from torchyard.launchers import registry
from torchyard.model.errors import ClusterError
from torchyard.model.plan import Plan
from torchyard.model.run import ENDED_STATES, Failure, Handle, Observation, Outcome, Status
from torchyard.steps.log_reader import JobLogReader

_POLL_INTERVAL_S = 0.5  # Prefect ends a run by an exception in this thread, which a longer sleep would hold up
_REPORT_INTERVAL_S = 10.0  # seconds between two reasons why a job has not started
_LOG_SILENCE_S = 60.0  # without a byte of a log that is not whole, until it is given up
RankZeroCallback = Callable[[list[str]], None]


def wait(handle: Handle, pulse: RankZeroCallback = lambda _: None) -> Outcome:
    """How the job ended. `pulse` is called at least every half second with rank 0's new lines.

    A deadline ends the job as well; it is told in the outcome, not raised. This process's own trouble ends nothing.
    """
    attendance = _JobPoller(handle, pulse)
    with ExitStack() as stack:
        while not attendance.is_open:
            attendance.open(stack)
        while attendance.outcome is None:
            attendance.look()
        while (outcome := attendance.conclude()) is None:
            pass
    return outcome


class _JobPoller:
    """One job being waited for: look by look, until it has ended and its logs are read."""

    def __init__(self, handle: Handle, pulse: RankZeroCallback) -> None:
        self.outcome: Outcome | None = None
        self._handle, self._pulse = handle, pulse
        self._watch: JobWatch
        self.is_open = False
        self._launcher = registry.load_launcher(handle.plan.launcher)
        self._logs, self._trouble = JobLogReader(handle.plan), OwnTrouble()
        self._waits, self._losses = _WaitReporter(), _LossReporter()
        self._begun = ""
        self._deadline = DeadlineMonitor(handle.deadlines, handle.age, time.monotonic())

    def open(self, stack: ExitStack) -> None:
        """Begin to watch; where this process cannot, the next call tries again."""
        with self._trouble.endured("watch the job"):
            self._watch = stack.enter_context(backend_of(self._handle.plan).watch(self._read))
            self.is_open = True
        self._trouble.pause()

    def look(self) -> None:
        """One look, and what follows from it."""
        with self._trouble.endured("look at the job"):
            self._watch.changes(0.0 if self._logs.behind else _POLL_INTERVAL_S)
            self._losses.tell(self._watch.losing())
            heard = self._read() and not self._watch.deaf()
            status, why = self._status(heard)
            if status.state in ENDED_STATES:
                self.outcome = Outcome(status=status, exits=self._watch.exits())
            elif late := self._deadline.judge(self._facts(status, heard)):
                self.outcome = _deadline_outcome(late, status, self._watch)
            else:
                self._tell(status, why)
        self._trouble.pause()

    def _read(self) -> bool:
        """Hand on what rank 0 has said; whether all logs are read as far as they go."""
        lines, is_read = list[str](), False
        with self._trouble.endured("read the logs"):
            lines = self._logs.read()
            is_read = not self._logs.behind
        with self._trouble.endured("report the progress", whatever=True):
            self._pulse(lines)
        return is_read

    def _status(self, heard: bool) -> tuple[Status, Diagnosis | None]:
        """How the job is, and why it makes no progress, where it does not.

        What hinders a job for good ends it; but one whose logs are still to be read may have begun long ago.
        """
        observed = Observation(self._watch.seen, frozenset(self._logs.joined), time.time())
        status = self._launcher.read_status(observed)
        why = None if status.state in ENDED_STATES else self._watch.why()
        if why and why.ends and heard and status.state == "pending" and not self._begun:
            status = Status(state="failed", reason=why.failure.sentence, failure=why.failure)
        return status, why

    def _facts(self, status: Status, heard: bool) -> ProgressSample:
        """What the deadlines are judged by. A log that lacks lines may lack those that say that the job has begun."""
        started = status.state == "running" or bool(self._begun) or bool(self._watch.losing())
        return ProgressSample(time.monotonic(), self._watch.known(), heard, started, self._logs.lines)

    def _tell(self, status: Status, why: Diagnosis | None) -> None:
        """Say once that the job has begun, and what it waits for."""
        self._waits.tell(status, why)
        if status.state == "running" and not self._begun:
            self._begun, at = status.reason, _find_start_time(self._logs, self._watch)
            get_log().info("%s%s", self._begun, f" after {at - self._handle.submitted_at:.1f} s" if at else "")

    def conclude(self) -> Outcome | None:
        """Stop what still runs, and read every log to its end; None where that must be tried again."""
        found = None
        with self._trouble.endured("end the job"):
            assert self.outcome
            found = _finish_job(self._handle.plan, self._watch, self.outcome, self._read)
            began = _find_start_time(self._logs, self._watch)
            after = began - self._handle.submitted_at if began else None
            found = found.model_copy(update={"started_after": after})
        self._trouble.pause()
        return found


class _WaitReporter:
    """Says what a job waits for that does not get on: where it changes, and not more often than is read."""

    def __init__(self) -> None:
        self._said, self._next = "", time.monotonic() + _REPORT_INTERVAL_S

    def tell(self, status: Status, why: Diagnosis | None) -> None:
        started = status.state == "running"
        reason = why.failure.sentence if why else "" if started else status.reason
        if reason in ("", self._said) or time.monotonic() < self._next:
            return
        self._said, self._next = reason, time.monotonic() + _REPORT_INTERVAL_S
        get_log().info("%s: %s", "not all is well" if started else "not started so far", reason)


class _LossReporter:
    """Says when a log cannot be written: at the first line that is lost, not at the end of the run."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def tell(self, lost: Mapping[str, str]) -> None:
        for name in lost.keys() - self._said:
            self._said.add(name)
            get_log().warning("%s: log lines are being lost: %s", name, lost[name])


def _find_start_time(logs: JobLogReader, watch: JobWatch) -> float:
    """When every node had joined, as the agents say it; else when every container ran."""
    return logs.joined_at or watch.running_at()


def _deadline_outcome(late: PassedDeadline, status: Status, watch: JobWatch) -> Outcome:
    """The outcome that a deadline makes. Where the cluster knows why it passed, that is the cause."""
    failure = None if late.cause == "run-deadline" else _select_failure(late, watch.why(last=True))
    why = failure.sentence if failure else status.reason if late.cause == "start-deadline" else ""
    reason = f"{late.sentence}: {why}" if why else late.sentence
    known = failure.model_copy(update={"sentence": reason}) if failure else None
    found = Status(state="failed", reason=reason, failure=known)
    return Outcome(status=found, cause=late.cause, exits=watch.exits())


def _select_failure(late: PassedDeadline, why: Diagnosis | None) -> Failure | None:
    """Of a job that hangs, only a node that is lost is one: an elastic job may wait for more pods as well."""
    hangs = late.cause == "silence" and why and why.failure.cause not in ("node-lost", "host-silent")
    return None if hangs or not why else why.failure


def _finish_job(plan: Plan, watch: JobWatch, outcome: Outcome, read: Callable[[], object]) -> Outcome:
    """Stop what still runs, so that every log is whole before it is read; say when the job ended, and where it ran."""
    ended_at = watch.ended_at()
    watch.note(outcome)
    if outcome.status.state != "succeeded":
        get_log().warning("%s; stopping what still runs", outcome.status.reason)
        watch.secure(_LOG_SILENCE_S, read)
        _stop_job(plan)
    watch.settle(_LOG_SILENCE_S, read)
    return outcome.model_copy(update={"ended_at": ended_at, "lost": watch.lost(), "machines": watch.machines()})


def _stop_job(plan: Plan) -> None:
    """Stop the job. A server that refuses does not change how it ended: teardown tells what is left."""
    try:
        backend_of(plan).stop()
    except ClusterError as error:
        if is_own_trouble(error):
            raise
        get_log().warning("%s", error)
