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
from torchyard.steps.hang_monitor import HangCallback, HangMonitor
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
    on_hang: HangCallback = lambda _: None,
) -> Outcome:
    """Wait until the job has ended. `on_poll` is called at least every half second with rank 0's new lines.

    `on_status`: called with each status, whose reason says what the job waits for, and the seconds since the submit.
    `on_hang`: called with what the black box tells of hangs and stragglers, whenever that changes.
    A deadline ends the job as well; the outcome says so, nothing is raised. This process's own trouble ends nothing.
    """
    poller = _JobPoller(handle, on_poll, on_status, on_hang)
    with ExitStack() as stack:
        while not poller.is_open:
            poller.open(stack)
        while poller.outcome is None:
            poller.poll()
        while (outcome := poller.conclude()) is None:
            pass
    return outcome


class _JobPoller:
    """Polls one job until it has ended and its logs are read."""

    def __init__(
        self, handle: Handle, on_poll: RankZeroCallback, on_status: StatusCallback, on_hang: HangCallback
    ) -> None:
        self.outcome: Outcome | None = None
        self._handle, self._on_poll, self._on_status = handle, on_poll, on_status
        self._submitted_at = time.monotonic() - handle.age_s
        self._watch: JobWatch
        self.is_open = False
        self._launcher = registry.load_launcher(handle.plan.launcher)
        self._logs, self._local_errors = JobLogReader(handle.plan), LocalErrorGuard()
        self._wait_reporter, self._lost_line_reporter, self._lost_worker_reporter = (
            _WaitReporter(),
            _LostLineReporter(),
            _LostWorkerReporter(),
        )
        self._started_reason = ""
        self._fabric, self._hangs = _FabricMonitor(handle.plan), HangMonitor(handle.plan, on_hang)
        self._deadlines = DeadlineMonitor(handle.deadlines, handle.age_s, time.monotonic())

    def open(self, stack: ExitStack) -> None:
        """Start watching; if this process cannot, the next call tries again."""
        with self._local_errors.endured("watch the job"):
            self._watch = stack.enter_context(backend_of(self._handle.plan).watch(self._read_logs))
            self.is_open = True
        self._local_errors.pause()

    def poll(self) -> None:
        """Poll the job once, and act on what is seen."""
        with self._local_errors.endured("poll the job"):
            self._watch.poll(0.0 if self._logs.is_behind else _POLL_INTERVAL_S)
            self._lost_line_reporter.report(self._watch.losing_logs())
            logs_current = self._read_logs() and not self._watch.is_disconnected()
            self._lost_worker_reporter.report(self._logs.lost_workers)
            status, diagnosis = self._read_status(logs_current)
            if status.state == "failed":
                self._watch.read_ends(_ENDS_TIMEOUT_S)
                status, diagnosis = self._read_status(logs_current)
            self._publish_status(status, diagnosis)
            if status.state in ENDED_STATES:
                self.outcome = Outcome(status=status, exit_codes=self._watch.exit_codes())
            elif failed_status := self._fabric.check(self._logs) or self._check_hang():
                self.outcome = Outcome(status=failed_status, exit_codes=self._watch.exit_codes())
            elif expired := self._deadlines.check(self._take_snapshot(status, logs_current)):
                self.outcome = _deadline_outcome(expired, status, self._watch)
            else:
                self._log_progress(status, diagnosis)
        self._local_errors.pause()

    def _read_logs(self) -> bool:
        """Pass rank 0's new lines on; returns whether all logs are read to their present end."""
        lines, is_current = list[str](), False
        with self._local_errors.endured("read the logs"):
            lines = self._logs.read()
            is_current = not self._logs.is_behind
        with self._local_errors.endured("report the progress", whatever=True):
            self._on_poll(lines)
        return is_current

    def _publish_status(self, status: Status, diagnosis: Diagnosis | None) -> None:
        """Pass the status on. A job that had started before its node was lost has not waited since its submit."""
        has_started = status.state == "pending" and self._started_reason
        published = status.model_copy(update={"reason": diagnosis.failure.sentence}) if diagnosis else status
        with self._local_errors.endured("report the status", whatever=True):
            self._on_status(published, 0.0 if has_started else time.monotonic() - self._submitted_at)

    def _read_status(self, logs_current: bool) -> tuple[Status, Diagnosis | None]:
        """The job's status, and why it makes no progress, if it makes none.

        A permanent obstacle ends a job, but not before its logs are read: it may have started long ago.
        """
        observation = Observation(self._watch.seen, frozenset(self._logs.joined), time.time())
        status = self._launcher.read_status(observation)
        status = status.model_copy(update={"retries": max(status.retries, count_retries(observation))})
        diagnosis = None if status.state in ENDED_STATES else self._watch.diagnose()
        if diagnosis and diagnosis.is_final and logs_current and status.state == "pending" and not self._started_reason:
            status = Status(state="failed", reason=diagnosis.failure.sentence, failure=diagnosis.failure)
        return status, diagnosis

    def _take_snapshot(self, status: Status, logs_current: bool) -> JobSnapshot:
        """What the deadlines are judged by. A log that lacks lines may lack those that say that the job has started."""
        has_started = status.state == "running" or bool(self._started_reason) or bool(self._watch.losing_logs())
        return JobSnapshot(
            time.monotonic(), self._watch.is_fully_seen(), logs_current, has_started, self._logs.line_count
        )

    def _check_hang(self) -> Status | None:
        """The failed status if a rank hangs and the profile wants that. Trouble with the verdict is not the job's."""
        with self._local_errors.endured("judge the ranks' records", whatever=True):
            return self._hangs.check(self._logs.black_box)
        return None

    def _log_progress(self, status: Status, diagnosis: Diagnosis | None) -> None:
        """Log once that the job has started, and what it waits for."""
        self._wait_reporter.report(status, diagnosis)
        if status.state == "running" and not self._started_reason:
            self._started_reason, started_at = status.reason, _find_start_time(self._logs, self._watch)
            get_log().info(
                "%s%s",
                self._started_reason,
                f" after {started_at - self._handle.submitted_at:.1f} s" if started_at else "",
            )

    def conclude(self) -> Outcome | None:
        """Stop what still runs, and read every log to its end; None if that must be tried again."""
        outcome = None
        with self._local_errors.endured("end the job"):
            assert self.outcome
            outcome = _finish_job(self._handle.plan, self._watch, self.outcome, self._read_logs)
            started_at = _find_start_time(self._logs, self._watch)
            started_after = started_at - self._handle.submitted_at if started_at else None
            outcome = outcome.model_copy(
                update={"started_after": started_after, **self._hangs.findings(outcome.status)}
            )
        self._local_errors.pause()
        return outcome


class _FabricMonitor:
    """Judges the network as soon as a log says something new about it."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._reported_verdict = plan, ""

    def check(self, logs: JobLogReader) -> Status | None:
        """Report a broken promise once; the failed status if it is to end the attempt."""
        if not logs.has_nccl_update or not self._plan.expect:
            return None
        logs.has_nccl_update = False
        verdict = evaluate_fabric(logs.nccl.build_reading(), self._plan.expect, len(self._plan.nodes))
        if verdict.verdict in ("not-rdma", "degraded") and verdict.verdict != self._reported_verdict:
            self._reported_verdict = verdict.verdict
            get_log().warning("the network is %s: %s", verdict.verdict, verdict.sentence)
        if not self._reported_verdict or self._plan.on_fabric != "fail":
            return None
        failure = Failure(cause=f"fabric-{verdict.verdict}", sentence=verdict.sentence, line=verdict.proof)
        return Status(state="failed", reason=f"{verdict.sentence} (on_fabric: fail)", failure=failure)


class _WaitReporter:
    """Logs why a job makes no progress: when the reason changes, and at most every ten seconds."""

    def __init__(self) -> None:
        self._reported_reason, self._next_report_at = "", time.monotonic() + _REPORT_INTERVAL_S

    def report(self, status: Status, diagnosis: Diagnosis | None) -> None:
        is_running = status.state == "running"
        reason = diagnosis.failure.sentence if diagnosis else "" if is_running else status.reason
        if reason in ("", self._reported_reason) or time.monotonic() < self._next_report_at:
            return
        self._reported_reason, self._next_report_at = reason, time.monotonic() + _REPORT_INTERVAL_S
        get_log().info("%s: %s", "running, but not well" if is_running else "not started yet", reason)


class _LostLineReporter:
    """Warns at the first lost line of a log that cannot be written, not only at the end of the run."""

    def __init__(self) -> None:
        self._reported_nodes: set[str] = set()

    def report(self, lost: Mapping[str, str]) -> None:
        for name in lost.keys() - self._reported_nodes:
            self._reported_nodes.add(name)
            get_log().warning("%s: log lines are being lost: %s", name, lost[name])


class _LostWorkerReporter:
    """Warns of a worker that torchrun has lost, which its agent's end shows only some seconds later."""

    def __init__(self) -> None:
        self._reported_workers: set[tuple[str, int]] = set()

    def report(self, lost: Mapping[tuple[str, int], int]) -> None:
        for node, rank in lost.keys() - self._reported_workers:
            self._reported_workers.add((node, rank))
            get_log().warning("%s: local rank %d %s, says torchrun", node, rank, _describe_end(lost[node, rank]))


def _describe_end(exit_code: int) -> str:
    try:
        return f"was ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"has ended with exit code {exit_code}"


def _find_start_time(logs: JobLogReader, watch: JobWatch) -> float:
    """When every node had joined, as the agents logged it; else when every container was running."""
    return logs.joined_at or watch.started_at()


def _deadline_outcome(expired: ExpiredDeadline, status: Status, watch: JobWatch) -> Outcome:
    """The outcome of a deadline that has passed. If the cluster knows why it passed, that is the cause."""
    failure = None if expired.cause == "run-deadline" else _select_failure(expired, watch.diagnose(last=True))
    explanation = failure.sentence if failure else status.reason if expired.cause == "start-deadline" else ""
    reason = f"{expired.message}: {explanation}" if explanation else expired.message
    deadline_failure = failure.model_copy(update={"sentence": reason}) if failure else None
    failed_status = Status(state="failed", reason=reason, failure=deadline_failure, retries=status.retries)
    return Outcome(status=failed_status, cause=expired.cause, exit_codes=watch.exit_codes())


def _select_failure(expired: ExpiredDeadline, diagnosis: Diagnosis | None) -> Failure | None:
    """The failure that explains a deadline. Silence is explained only by a lost node: elastic jobs may await pods."""
    is_unexplained = (
        expired.cause == "silence" and diagnosis and diagnosis.failure.cause not in ("node-lost", "host-silent")
    )
    return None if is_unexplained or not diagnosis else diagnosis.failure


def _finish_job(plan: Plan, watch: JobWatch, outcome: Outcome, read_logs: Callable[[], object]) -> Outcome:
    """Stop what still runs, so that every log is whole before it is read; add when the job ended, and where it ran."""
    ended_at, container_failures = watch.ended_at(), watch.endings()
    watch.record_outcome(outcome)
    is_stopped = True
    if outcome.status.state != "succeeded":
        get_log().warning("%s; stopping what still runs", outcome.status.reason)
        watch.drain_ended_logs(_LOG_SILENCE_S, read_logs)
        is_stopped = _stop_job(plan)
    # What could not be stopped may go on printing without end.
    drain: Callable[[float, Callable[[], object]], object] = watch.drain_logs if is_stopped else watch.drain_ended_logs
    drain(_LOG_SILENCE_S, read_logs)
    return outcome.model_copy(
        update={
            **{"ended_at": ended_at, "lost": watch.lost_logs()},
            **{"machines": watch.machines(), "container_failures": container_failures},
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
