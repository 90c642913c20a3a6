"""Watches a job until all of its processes have ended; the first one that fails ends the others."""

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack

from torchyard.backend import JobWatch, backend_of
from torchyard.common.local_errors import LocalErrorGuard, is_local_error
from torchyard.common.log import get_log
from torchyard.diagnosis.deadlines import DeadlineMonitor, ExpiredDeadline, JobSnapshot
from torchyard.diagnosis.fabric import evaluate_fabric
from torchyard.diagnosis.job_status import count_retries
from torchyard.diagnosis.no_progress import Diagnosis
from torchyard.launchers import registry
from torchyard.model.errors import ClusterError
from torchyard.model.plan import Plan
from torchyard.model.run import ENDED_STATES, Failure, Handle, Observation, Outcome, Status
from torchyard.steps.hang_monitor import HangMonitor, NewsCallback
from torchyard.steps.log_reader import JobLogReader

_POLL_INTERVAL_S = 0.5  # Prefect ends a run by an exception in this thread, which a longer sleep would delay
_REPORT_INTERVAL_S = 10.0  # seconds between two reasons why a job has not started
_ENDS_TIMEOUT_S = 10.0  # for the ends of the pods of a job that has failed: the watch brings them within a second
_LOG_SILENCE_S = 60.0  # an incomplete log that brings no byte for so long is given up
RankZeroCallback = Callable[[list[str]], None]
StatusCallback = Callable[[Status, float], None]


def wait(
    handle: Handle,
    on_poll: RankZeroCallback = lambda _: None,
    on_status: StatusCallback = lambda *_: None,
    on_hang: NewsCallback = lambda _: None,
) -> Outcome:
    """Wait until the job has ended. `on_poll` is called at least every half second with rank 0's new lines.

    `on_status`: called with each status, whose reason says what the job waits for, and the seconds since the submit.
    `on_hang`: called with what the black box tells of hangs and stragglers, whenever that changes.
    A deadline ends the job as well; the outcome says so, nothing is raised. This process's own trouble ends nothing.
    """
    attendance = _JobPoller(handle, on_poll, on_status, on_hang)
    with ExitStack() as stack:
        while not attendance.is_open:
            attendance.open(stack)
        while attendance.outcome is None:
            attendance.poll()
        while (outcome := attendance.conclude()) is None:
            pass
    return outcome


class _JobPoller:
    """Polls one job until it has ended and its logs are read."""

    def __init__(
        self, handle: Handle, on_poll: RankZeroCallback, on_status: StatusCallback, on_hang: NewsCallback
    ) -> None:
        self.outcome: Outcome | None = None
        self._handle, self._on_poll, self._on_status = handle, on_poll, on_status
        self._began = time.monotonic() - handle.age_s
        self._watch: JobWatch
        self.is_open = False
        self._launcher = registry.load_launcher(handle.plan.launcher)
        self._logs, self._trouble = JobLogReader(handle.plan), LocalErrorGuard()
        self._waits, self._losses, self._workers = _WaitReporter(), _LossReporter(), _WorkerReporter()
        self._begun = ""
        self._fabric, self._hangs = _FabricMonitor(handle.plan), HangMonitor(handle.plan, on_hang)
        self._deadline = DeadlineMonitor(handle.deadlines, handle.age_s, time.monotonic())

    def open(self, stack: ExitStack) -> None:
        """Start watching; if this process cannot, the next call tries again."""
        with self._trouble.endured("watch the job"):
            self._watch = stack.enter_context(backend_of(self._handle.plan).watch(self._read))
            self.is_open = True
        self._trouble.pause()

    def poll(self) -> None:
        """Poll the job once, and act on what is seen."""
        with self._trouble.endured("poll the job"):
            self._watch.poll(0.0 if self._logs.behind else _POLL_INTERVAL_S)
            self._losses.report(self._watch.losing_logs())
            heard = self._read() and not self._watch.is_disconnected()
            self._workers.report(self._logs.lost_workers)
            status, why = self._status(heard)
            if status.state == "failed":
                self._watch.read_ends(_ENDS_TIMEOUT_S)
                status, why = self._status(heard)
            self._tell(status, why)
            if status.state in ENDED_STATES:
                self.outcome = Outcome(status=status, exit_codes=self._watch.exit_codes())
            elif broken := self._fabric.judge(self._logs) or self._judge_hang():
                self.outcome = Outcome(status=broken, exit_codes=self._watch.exit_codes())
            elif late := self._deadline.check(self._facts(status, heard)):
                self.outcome = _deadline_outcome(late, status, self._watch)
            else:
                self._report(status, why)
        self._trouble.pause()

    def _read(self) -> bool:
        """Pass rank 0's new lines on; returns whether all logs are read to their present end."""
        lines, is_read = list[str](), False
        with self._trouble.endured("read the logs"):
            lines = self._logs.read()
            is_read = not self._logs.behind
        with self._trouble.endured("report the progress", whatever=True):
            self._on_poll(lines)
        return is_read

    def _tell(self, status: Status, why: Diagnosis | None) -> None:
        """Pass the status on. A job that had started before its node was lost has not waited since its submit."""
        started = status.state == "pending" and self._begun
        shown = status.model_copy(update={"reason": why.failure.sentence}) if why else status
        with self._trouble.endured("report the status", whatever=True):
            self._on_status(shown, 0.0 if started else time.monotonic() - self._began)

    def _status(self, heard: bool) -> tuple[Status, Diagnosis | None]:
        """The job's status, and why it makes no progress, if it makes none.

        A permanent obstacle ends a job, but not before its logs are read: it may have started long ago.
        """
        observed = Observation(self._watch.seen, frozenset(self._logs.joined), time.time())
        status = self._launcher.read_status(observed)
        status = status.model_copy(update={"retries": max(status.retries, count_retries(observed))})
        why = None if status.state in ENDED_STATES else self._watch.diagnose()
        if why and why.is_final and heard and status.state == "pending" and not self._begun:
            status = Status(state="failed", reason=why.failure.sentence, failure=why.failure)
        return status, why

    def _facts(self, status: Status, heard: bool) -> JobSnapshot:
        """What the deadlines are judged by. A log that lacks lines may lack those that say that the job has started."""
        started = status.state == "running" or bool(self._begun) or bool(self._watch.losing_logs())
        return JobSnapshot(time.monotonic(), self._watch.is_fully_seen(), heard, started, self._logs.lines)

    def _judge_hang(self) -> Status | None:
        """The failed status if a rank hangs and the profile wants that. Trouble with the verdict is not the job's."""
        with self._trouble.endured("judge the ranks' records", whatever=True):
            return self._hangs.judge(self._logs.black_box)
        return None

    def _report(self, status: Status, why: Diagnosis | None) -> None:
        """Log once that the job has started, and what it waits for."""
        self._waits.report(status, why)
        if status.state == "running" and not self._begun:
            self._begun, at = status.reason, _find_start_time(self._logs, self._watch)
            get_log().info("%s%s", self._begun, f" after {at - self._handle.submitted_at:.1f} s" if at else "")

    def conclude(self) -> Outcome | None:
        """Stop what still runs, and read every log to its end; None if that must be tried again."""
        found = None
        with self._trouble.endured("end the job"):
            assert self.outcome
            found = _finish_job(self._handle.plan, self._watch, self.outcome, self._read)
            began = _find_start_time(self._logs, self._watch)
            after = began - self._handle.submitted_at if began else None
            found = found.model_copy(update={"started_after": after, **self._hangs.findings(found.status)})
        self._trouble.pause()
        return found


class _FabricMonitor:
    """Judges the network as soon as a log says something new about it."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._said = plan, ""

    def judge(self, logs: JobLogReader) -> Status | None:
        """Report a broken promise once; the failed status if it is to end the attempt."""
        if not logs.has_nccl_news or not self._plan.expect:
            return None
        logs.has_nccl_news = False
        found = evaluate_fabric(logs.nccl.build_reading(), self._plan.expect, len(self._plan.nodes))
        if found.verdict in ("not-rdma", "degraded") and found.verdict != self._said:
            self._said = found.verdict
            get_log().warning("the network is %s: %s", found.verdict, found.sentence)
        if not self._said or self._plan.on_fabric != "fail":
            return None
        failure = Failure(cause=f"fabric-{found.verdict}", sentence=found.sentence, line=found.proof)
        return Status(state="failed", reason=f"{found.sentence} (on_fabric: fail)", failure=failure)


class _WaitReporter:
    """Logs why a job makes no progress: when the reason changes, and at most every ten seconds."""

    def __init__(self) -> None:
        self._said, self._next = "", time.monotonic() + _REPORT_INTERVAL_S

    def report(self, status: Status, why: Diagnosis | None) -> None:
        started = status.state == "running"
        reason = why.failure.sentence if why else "" if started else status.reason
        if reason in ("", self._said) or time.monotonic() < self._next:
            return
        self._said, self._next = reason, time.monotonic() + _REPORT_INTERVAL_S
        get_log().info("%s: %s", "running, but not well" if started else "not started yet", reason)


class _LossReporter:
    """Warns at the first lost line of a log that cannot be written, not only at the end of the run."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def report(self, lost: Mapping[str, str]) -> None:
        for name in lost.keys() - self._said:
            self._said.add(name)
            get_log().warning("%s: log lines are being lost: %s", name, lost[name])


class _WorkerReporter:
    """Warns of a worker that torchrun has lost, which its agent's end shows only some seconds later."""

    def __init__(self) -> None:
        self._said: set[tuple[str, int]] = set()

    def report(self, lost: Mapping[tuple[str, int], int]) -> None:
        for node, rank in lost.keys() - self._said:
            self._said.add((node, rank))
            get_log().warning("%s: local rank %d %s, says torchrun", node, rank, _describe_end(lost[node, rank]))


def _describe_end(code: int) -> str:
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"has ended with exit code {code}"


def _find_start_time(logs: JobLogReader, watch: JobWatch) -> float:
    """When every node had joined, as the agents logged it; else when every container was running."""
    return logs.joined_at or watch.started_at()


def _deadline_outcome(late: ExpiredDeadline, status: Status, watch: JobWatch) -> Outcome:
    """The outcome of a deadline that has passed. If the cluster knows why it passed, that is the cause."""
    failure = None if late.cause == "run-deadline" else _select_failure(late, watch.diagnose(last=True))
    why = failure.sentence if failure else status.reason if late.cause == "start-deadline" else ""
    reason = f"{late.message}: {why}" if why else late.message
    known = failure.model_copy(update={"sentence": reason}) if failure else None
    found = Status(state="failed", reason=reason, failure=known, retries=status.retries)
    return Outcome(status=found, cause=late.cause, exit_codes=watch.exit_codes())


def _select_failure(late: ExpiredDeadline, why: Diagnosis | None) -> Failure | None:
    """The failure that explains a deadline. Silence is explained only by a lost node: elastic jobs may await pods."""
    hangs = late.cause == "silence" and why and why.failure.cause not in ("node-lost", "host-silent")
    return None if hangs or not why else why.failure


def _finish_job(plan: Plan, watch: JobWatch, outcome: Outcome, read: Callable[[], object]) -> Outcome:
    """Stop what still runs, so that every log is whole before it is read; add when the job ended, and where it ran."""
    ended_at, endings = watch.ended_at(), watch.endings()
    watch.record_outcome(outcome)
    is_stopped = True
    if outcome.status.state != "succeeded":
        get_log().warning("%s; stopping what still runs", outcome.status.reason)
        watch.drain_ended_logs(_LOG_SILENCE_S, read)
        is_stopped = _stop_job(plan)
    # What could not be stopped may go on printing without end.
    drain: Callable[[float, Callable[[], object]], object] = watch.drain_logs if is_stopped else watch.drain_ended_logs
    drain(_LOG_SILENCE_S, read)
    return outcome.model_copy(
        update={
            **{"ended_at": ended_at, "lost": watch.lost_logs()},
            **{"machines": watch.machines(), "container_failures": endings},
        }
    )


def _stop_job(plan: Plan) -> bool:
    """Stop the job. A server that refuses does not change how it ended: teardown reports what is left."""
    try:
        backend_of(plan).stop()
    except ClusterError as error:
        if is_local_error(error):
            raise
        get_log().warning("%s", error)
        return False
    return True
