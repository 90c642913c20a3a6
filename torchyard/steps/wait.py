"""Watches a job until all of its processes have ended; the first one that fails ends the others."""

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from torchyard.backends import job_of
from torchyard.common.local_errors import LocalErrorGuard, is_local_error
from torchyard.common.log import get_log
from torchyard.common.poll_pacer import MAX_SLEEP_S, PollPacer
from torchyard.diagnosis import deadlines
from torchyard.diagnosis.deadlines import DeadlineMonitor, ExpiredDeadline, JobSnapshot
from torchyard.diagnosis.job_status import count_retries
from torchyard.diagnosis.nccl.fabric import evaluate_fabric
from torchyard.diagnosis.no_progress import Diagnosis, describe_progress
from torchyard.interfaces import JobWatch
from torchyard.launchers import registry
from torchyard.metrics.registry import get_line_reader
from torchyard.model.causes.fabric import FabricCause
from torchyard.model.causes.launcher import LauncherCause
from torchyard.model.causes.platform import PlatformCause
from torchyard.model.checkpoint import StopRequest
from torchyard.model.errors import ClusterError, HostError
from torchyard.model.event import EmitJobEvent, JobEvent, RowsRead, StatusRead, StopRequested, StopWithdrawn
from torchyard.model.plan import Plan
from torchyard.model.run import ENDED_STATES, Failure, Handle, Observation, Outcome, Row, Status
from torchyard.steps.failure_monitor import SETTLE_S, FailureMonitor
from torchyard.steps.hang_monitor import HangMonitor
from torchyard.steps.log_reader import JobLogReader
from torchyard.steps.loss_monitor import LossMonitor

_STATUS_INTERVAL_S = 2.0  # between two reads of the status of a job that does not change
_MAX_STATUS_SHARE = 0.02  # of a processor
_REPORT_INTERVAL_S = 10.0  # seconds between two reasons why a job has not started
_SILENCE_CAUSES = (PlatformCause.NODE_LOST, LauncherCause.HOST_SILENT)  # that explain an expired deadlines.silence
_FABRIC_CAUSES = {"not-rdma": FabricCause.FABRIC_NOT_RDMA, "degraded": FabricCause.FABRIC_DEGRADED}  # by verdict
EXIT_CODES_TIMEOUT_S = 10.0  # for the ends of the pods of a job that has failed: the watch brings them within a second
CONTINUES_AFTER_S = 60.0  # after a stop that failed, a job that is observed without a verdict is one that continues
LOG_SILENCE_S = 60.0  # an incomplete log that brings no byte for so long is given up


def wait(handle: Handle, emit: EmitJobEvent | None = None) -> Outcome:
    """Wait until the job has ended and its logs are read; return its outcome.

    `emit`: called on this thread with each event (torchyard/model/event.py): rank 0's new lines and rows at least
    every half second, a loss that is nan, each status, the first rank that fails with its last words, and the hang and
    the straggler that the ranks' records show, whenever they change. An Exception of it is logged and ends nothing.

    An expired deadline ends the job too: the outcome has its cause, and nothing is raised. Errors of this process are
    logged and retried, and end nothing. RunInUseError if another process has taken the run over.
    """
    poller = _JobPoller(handle, emit or _ignore_event)
    with ExitStack() as stack:
        while not poller.is_open:
            poller.open(stack)
        outcome = None
        while outcome is None:
            while poller.outcome is None:
                poller.poll()
            outcome = poller.conclude()
    return outcome


class _FailedStop(NamedTuple):
    """A stop of a running job that an error of this process or of the network has prevented.

    outcome: that the stop was for. It is the job's outcome if the job turns out to be deleted: only the API server's
    response to the deletion was lost then.
    observed_since: monotonic seconds since when the job is observed again, without a gap.
    """

    outcome: Outcome
    observed_since: float


class _JobPoller:
    """Poll one job until it has ended, then read its logs to their end.

    The caller repeats each step until it is done. A step that fails by an error of this process (a full disk, no free
    descriptors) is logged once and can be called again:

        open()      starts to watch the job; done when `is_open`
        poll()      reads states and logs once; done when `outcome` is set
        conclude()  stops what still runs and reads every log to its end; done when it returns the final outcome

    A verdict about a running job, such as a hang, counts for one try to stop it. If that fails, `outcome` is None
    again, and the job is judged anew once it is observed: it may have recovered meanwhile.

    All of it runs on the caller's thread; the watch has its own threads, which the caller's ExitStack stops.
    RunInUseError if another process has taken the run over.
    """

    def __init__(self, handle: Handle, emit: EmitJobEvent) -> None:
        now = time.monotonic()
        self.is_open = False
        self.outcome: Outcome | None = None
        self._handle = handle
        self._emit = emit
        self._submitted_at = now - handle.age_s
        self._pacer = PollPacer()
        self._status: tuple[Status, Diagnosis | None] = (Status(state="pending", reason=""), None)
        self._status_basis: tuple[int, bool] | None = None  # the log lines, and whether they were current; None: none
        self._has_news = False  # that the status does not contain
        self._next_news_at = 0.0  # monotonic seconds, before which news waits
        self._next_status_at = 0.0  # monotonic seconds, at which the status is read even without news
        self._started_reason = ""  # of the first status that was `running`; empty until then
        self._has_ended = False  # by its own objects or processes; else an outcome is a verdict about a running job
        self._is_stop_over = False  # the job is stopped, or its stop was given up
        self._failed_stop: _FailedStop | None = None
        self._watch: JobWatch
        self._launcher = registry.load_launcher(handle.plan.launcher)
        self._logs = JobLogReader(handle.plan)
        self._local_errors = LocalErrorGuard()
        self._deadlines = DeadlineMonitor(handle.deadlines, job_age_s=handle.age_s, now=now)
        self._fabric = FabricMonitor(handle.plan)
        self._failures = FailureMonitor(handle.plan, self._logs.failure_signs, emit)
        self._hangs = HangMonitor(handle.plan, emit)
        self._parse_row = get_line_reader(handle.plan.metrics)
        self._losses = LossMonitor(handle.plan, emit)
        self._wait_reporter = _WaitReporter()
        self._lost_line_reporter = _LostLineReporter()

    def open(self, stack: ExitStack) -> None:
        """Start to watch the job; after an error of this process, the next call tries again."""
        with self._local_errors.tolerate("watch the job"):
            self._watch = stack.enter_context(job_of(self._handle.plan).watch(self._read_logs))
            self.is_open = True
        self._local_errors.pause()

    def poll(self) -> None:
        """Read states and logs once, report what has changed, and set `outcome` if the job has ended or must end."""
        with self._pacer.pace(is_urgent=self._logs.is_behind):
            self._poll_once()

    def _poll_once(self) -> None:
        with self._local_errors.tolerate("poll the job"):
            has_changed = self._watch.poll(timeout_s=self._choose_timeout_s())
            self._lost_line_reporter.report(self._watch.losing_logs())
            are_logs_current = self._read_logs() and not self._watch.is_disconnected()
            if not self._logs.is_behind:  # else the log may show that the workers were started again
                with self._local_errors.tolerate("report the rank that failed", ignore_errors=True):
                    self._failures.check()
            self._update_status(has_changed=has_changed, are_logs_current=are_logs_current)
            status, diagnosis = self._status
            if self._may_lack_exit_codes(status):
                self._watch.await_exit_codes(timeout_s=EXIT_CODES_TIMEOUT_S)
                status, diagnosis = self._read_status(are_logs_current=are_logs_current)
            self._publish_status(status, diagnosis)
            self.outcome = self._find_outcome(status, are_logs_current=are_logs_current)
            if self.outcome is None:
                self._log_progress(status, diagnosis)
                self._withdraw_failed_stop()
        self._local_errors.pause()

    def _may_lack_exit_codes(self, status: Status) -> bool:
        """Whether the watch may not have delivered yet what a job's end follows from, or which logs it has."""
        if status.state == "succeeded":
            exit_codes = self._watch.exit_codes()
            return any(exit_codes.get(node) is None for node in self._handle.plan.nodes)
        return status.state == "failed"  # the end of a pod may be the cause

    def _choose_timeout_s(self) -> float:
        """How long a poll waits for changes."""
        if self._logs.is_behind:
            return 0.0
        return SETTLE_S if self._failures.is_pending else MAX_SLEEP_S

    def _update_status(self, *, has_changed: bool, are_logs_current: bool) -> None:
        """Read the status again if the objects or the logs have changed, or after a while: some causes need patience.

        Each read looks at all pods several times. While changes come without a pause, the reads take at most
        `_MAX_STATUS_SHARE` of a processor: a job of 500 pods is then judged once a second.
        """
        basis = (self._logs.line_count, are_logs_current)
        self._has_news = self._has_news or has_changed or basis != self._status_basis
        now = time.monotonic()
        if (self._has_news and now >= self._next_news_at) or now >= self._next_status_at:
            started_at = time.thread_time()
            self._status = self._read_status(are_logs_current=are_logs_current)
            self._status_basis = basis
            self._has_news = False
            self._next_news_at = now + (time.thread_time() - started_at) / _MAX_STATUS_SHARE
            self._next_status_at = now + _STATUS_INTERVAL_S

    def _find_outcome(self, status: Status, *, are_logs_current: bool) -> Outcome | None:
        """The outcome of a job that has ended, or that its network, a loss, a hang or a deadline ends; else None."""
        if status.state == "gone" and self._failed_stop:
            return self._failed_stop.outcome
        expired = self._deadlines.check(self._take_snapshot(status, are_logs_current=are_logs_current))
        if not self._has_ended and self._count_observed_s() < deadlines.LOG_GRACE_S:
            return None
        if status.state in ENDED_STATES:
            stop = None
            if status.failure and status.failure.stopped_at is not None:
                stop = self._build_stop_request(status.failure.sentence, status.failure.stopped_at)
            return Outcome(status=status, exit_codes=self._watch.exit_codes(), stop=stop)
        failed_status = self._fabric.check(self._logs) or self._losses.check() or self._check_hang()
        outcome = None
        if failed_status:
            outcome = Outcome(status=failed_status, exit_codes=self._watch.exit_codes())
        elif expired:
            outcome = _build_deadline_outcome(expired, status, self._watch)
        if outcome is None:
            return None
        stop = self._build_stop_request(outcome.status.reason, self._watch.now())
        return outcome.model_copy(update={"stop": stop})

    def _count_observed_s(self) -> float:
        """For how many seconds the job has been observed since its last gap after a failed stop; inf without one."""
        if self._failed_stop is None:
            return math.inf
        now = time.monotonic()
        if not self._watch.is_fully_observed():
            self._failed_stop = self._failed_stop._replace(observed_since=now)
        return now - self._failed_stop.observed_since

    def _withdraw_failed_stop(self) -> None:
        """If the job continues after a stop that failed, remove the records that it ends."""
        if self._failed_stop is None or self._count_observed_s() < CONTINUES_AFTER_S:
            return
        reason = self._failed_stop.outcome.status.reason
        self._emit(StopWithdrawn(reason))
        self._watch.record_outcome(None)
        get_log().info("the job continues, and is not stopped any more: %s", reason)
        self._failed_stop = None

    def _build_stop_request(self, author: str, asked_at: float) -> StopRequest:
        return StopRequest(author=author, asked_at=asked_at, grace_s=self._handle.deadlines.grace)

    def _read_logs(self) -> bool:
        """Emit rank 0's new rows; return whether all logs are read to their current end."""
        lines: list[str] = []
        rows: tuple[Row, ...] = ()
        is_current = False
        with self._local_errors.tolerate("read the logs"):
            lines = self._logs.read()
            is_current = not self._logs.is_behind
        with self._local_errors.tolerate("read the metrics", ignore_errors=True):
            rows = tuple(filter(None, map(self._parse_row, lines)))
        with self._local_errors.tolerate("report the progress", ignore_errors=True):
            self._emit(RowsRead(rows, tuple(lines), self._logs.black_box.count_collectives(rank=0)))
        with self._local_errors.tolerate("check the losses", ignore_errors=True):
            self._losses.add_rows(rows)
        return is_current

    def _publish_status(self, status: Status, diagnosis: Diagnosis | None) -> None:
        """Emit the status; its reason contains the diagnosis, if there is one."""
        is_pending_again = status.state == "pending" and bool(self._started_reason)
        waited_s = 0.0 if is_pending_again else time.monotonic() - self._submitted_at
        published = status.model_copy(update={"reason": describe_progress(status.reason, diagnosis)})
        with self._local_errors.tolerate("report the status", ignore_errors=True):
            self._emit(StatusRead(published, waited_s))

    def _read_status(self, *, are_logs_current: bool) -> tuple[Status, Diagnosis | None]:
        """The job's status, and the diagnosis of what prevents its progress; None if no obstacle is found.

        A permanent obstacle ends a job, but not before its logs are read: it may have started long ago. `_has_ended`
        is updated.
        """
        observation = Observation(self._watch.states, frozenset(self._logs.joined), self._watch.now())
        status = self._launcher.read_status(observation)
        status = status.model_copy(update={"retries": max(status.retries, count_retries(observation))})
        self._has_ended = status.state in ENDED_STATES
        diagnosis = None if self._has_ended else self._watch.diagnose()
        can_end = are_logs_current and status.state == "pending" and not self._started_reason
        if diagnosis and diagnosis.is_final and can_end:
            return Status(state="failed", reason=diagnosis.sentence, failure=diagnosis.failure), None
        return status, diagnosis

    def _take_snapshot(self, status: Status, *, are_logs_current: bool) -> JobSnapshot:
        """The state of the job for its deadlines.

        A job whose logs lack lines counts as started, because the missing lines may be those that show its start.
        """
        has_started = status.state == "running" or bool(self._started_reason) or bool(self._watch.losing_logs())
        return JobSnapshot(
            time=time.monotonic(),
            states_known=self._watch.is_fully_observed(),
            logs_current=are_logs_current,
            started=has_started,
            line_count=self._logs.line_count,
            collective_count=self._logs.black_box.count_all_collectives(),
            job_age_s=self._watch.job_age_s(),
        )

    def _check_hang(self) -> Status | None:
        """The failed status if a rank hangs and the profile ends such a job; else None, also if the check fails."""
        with self._local_errors.tolerate("judge the ranks' records", ignore_errors=True):
            return self._hangs.check(self._logs.black_box)
        return None

    def _log_progress(self, status: Status, diagnosis: Diagnosis | None) -> None:
        """Log once that the job has started, and what it waits for."""
        self._wait_reporter.report(status, diagnosis)
        if status.state == "running" and not self._started_reason:
            self._started_reason = status.reason
            joined_at = self._logs.joined_at
            started_at = _find_start_time(self._logs, self._watch)
            event = "the last node joined" if joined_at else "the last process started"
            delay = f": {event} {started_at - self._handle.submitted_at:.1f} s after the submit" if started_at else ""
            get_log().info("%s%s", self._started_reason, delay)

    def conclude(self) -> Outcome | None:
        """Stop what still runs, and read every log to its end; None if that must be tried again.

        If a job that has not ended could not be stopped, `outcome` is None too: `poll` judges it again.
        """
        outcome = None
        with self._local_errors.tolerate("end the job"):
            assert self.outcome
            if self.outcome.stop and self.outcome.status.state != "succeeded":
                self._emit(StopRequested(self.outcome.stop))
            outcome = self._finish_job(self.outcome)
            started_at = _find_start_time(self._logs, self._watch)
            started_after = started_at - self._handle.submitted_at if started_at else None
            update = {"started_after": started_after} | self._hangs.get_outcome_fields(outcome.status)
            outcome = self._losses.complete(outcome.model_copy(update=update))
        if outcome is None and self.outcome and not (self._has_ended or self._is_stop_over):
            self._failed_stop = _FailedStop(self.outcome, observed_since=time.monotonic())
            self._next_status_at = 0.0  # the status may contain the verdict
            self.outcome = None
        self._local_errors.pause()
        return outcome

    def _finish_job(self, outcome: Outcome) -> Outcome:
        """Stop what still runs, so that every log is complete before it is read; add when the job ended, and where.

        The exit codes and end times are read before the stop: afterwards they would be those of the stop.
        """
        watch = self._watch
        ended_at = watch.ended_at()
        container_failures = watch.container_failures()
        watch.record_outcome(outcome)
        is_stopped = True
        if outcome.status.state != "succeeded":
            get_log().warning("%s; stopping what still runs", outcome.status.reason)
            watch.drain_ended_logs(self._read_logs, idle_timeout_s=LOG_SILENCE_S)
            with self._local_errors.tolerate("report the rank that failed", ignore_errors=True):
                self._failures.conclude(outcome.exit_codes)
            is_stopped = _stop_job(self._handle.plan)
        self._is_stop_over = True
        if is_stopped:
            watch.drain_logs(self._read_logs, idle_timeout_s=LOG_SILENCE_S)
        else:  # a process that could not be stopped may print forever
            watch.drain_ended_logs(self._read_logs, idle_timeout_s=LOG_SILENCE_S)
        update = {
            "ended_at": ended_at,
            "lost": self._list_losses(outcome),
            "machines": watch.machines(),
            "container_failures": container_failures,
        }
        return outcome.model_copy(update=update)

    def _list_losses(self, outcome: Outcome) -> dict[str, str]:
        """What the logs lack, by node. Each node of a job that succeeded has run, also one that was never observed."""
        losses = dict(self._watch.lost_logs())
        if outcome.status.state == "succeeded":
            observed_nodes = self._watch.exit_codes().keys() | self._watch.machines().keys()  # a pod may be gone by now
            for node, log in self._handle.plan.nodes.items():
                if node not in observed_nodes and not Path(log).exists():
                    losses.setdefault(node, "all lines: its process was never observed")
        return losses


def _ignore_event(event: JobEvent) -> None:
    """Ignore the event: the caller passed no `emit`."""


class FabricMonitor:
    """Checks the network as soon as a log has a new line about it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._reported_verdict = ""  # empty until a verdict was reported

    def check(self, logs: JobLogReader) -> Status | None:
        """Warn once of a network that is not the expected one; return the failed status if it ends the attempt.

        None if it does not, and while no log has a new line about the network.
        """
        if not logs.has_nccl_update or not self._plan.expect:
            return None
        verdict = evaluate_fabric(logs.nccl.build_reading(), self._plan.expect, len(self._plan.nodes))
        cause = _FABRIC_CAUSES.get(verdict.verdict)
        if cause is None:
            logs.has_nccl_update = False
            return None
        if verdict.verdict != self._reported_verdict:
            self._reported_verdict = verdict.verdict
            get_log().warning("the network is %s: %s", verdict.verdict, verdict.sentence)
        if self._plan.on_fabric != "fail":
            logs.has_nccl_update = False
            return None
        failure = Failure(cause=cause, sentence=verdict.sentence, line=verdict.proof)
        return Status(state="failed", reason=f"{verdict.sentence} (on_fabric: fail)", failure=failure)


class _WaitReporter:
    """Logs why a job makes no progress: when the reason changes, and at most every ten seconds."""

    def __init__(self) -> None:
        self._reported_reason = ""
        self._next_report_at = time.monotonic() + _REPORT_INTERVAL_S

    def report(self, status: Status, diagnosis: Diagnosis | None) -> None:
        is_running = status.state == "running"
        if is_running and not diagnosis:
            return
        reason = describe_progress(status.reason, diagnosis)
        if reason in ("", self._reported_reason) or time.monotonic() < self._next_report_at:
            return
        self._reported_reason = reason
        self._next_report_at = time.monotonic() + _REPORT_INTERVAL_S
        get_log().info("%s: %s", "running with problems" if is_running else "not started yet", reason)


class _LostLineReporter:
    """Warns at the first lost line of a log that cannot be written, not only at the end of the run."""

    def __init__(self) -> None:
        self._reported_nodes: set[str] = set()

    def report(self, lost: Mapping[str, str]) -> None:
        for name in lost.keys() - self._reported_nodes:
            self._reported_nodes.add(name)
            get_log().warning("%s: log lines are being lost: %s", name, lost[name])


def _find_start_time(logs: JobLogReader, watch: JobWatch) -> float:
    """When the program started on every node. 0 if it is not known.

    That is when the last node joined, as the agents logged it; without such a line, when the last container or process
    started.
    """
    return logs.joined_at or watch.started_at()


def _build_deadline_outcome(expired: ExpiredDeadline, status: Status, watch: JobWatch) -> Outcome:
    """The outcome of an expired deadline. If the cluster reports why it expired, that is the cause."""
    diagnosis = None
    if expired.cause is not LauncherCause.RUN_DEADLINE:
        diagnosis = watch.diagnose(is_last=True)
    failure = _select_failure(expired, diagnosis)
    explanation = ""
    if failure:
        explanation = failure.sentence
    elif expired.cause is LauncherCause.START_DEADLINE:
        explanation = describe_progress(status.reason, diagnosis)
    reason = f"{expired.message}: {explanation}" if explanation else expired.message
    if failure:
        failure = failure.model_copy(update={"sentence": reason})
    failed_status = Status(state="failed", reason=reason, failure=failure, retries=status.retries)
    return Outcome(status=failed_status, cause=expired.cause, exit_codes=watch.exit_codes())


def _select_failure(expired: ExpiredDeadline, diagnosis: Diagnosis | None) -> Failure | None:
    """The failure that explains an expired deadline; None if none does.

    Silence is explained only by a lost node: an elastic job may wait for pods while it trains.
    """
    if not diagnosis or not diagnosis.failure:
        return None
    if expired.cause is LauncherCause.SILENCE and diagnosis.failure.cause not in _SILENCE_CAUSES:
        return None
    return diagnosis.failure


def _stop_job(plan: Plan) -> bool:
    """Stop the job, whose outcome is decided; return False if the API server or a host does not stop it.

    That is only logged: the teardown that follows deletes the job or reports its leftovers. Raises ClusterError if this
    machine is the cause, such as a full disk.
    """
    try:
        job_of(plan).stop()
    except (ClusterError, HostError) as error:
        if is_local_error(error):
            raise
        get_log().warning("%s", error)
        return False
    return True
