"""Whether a job is late, judged from what is seen of it, by this machine's monotonic clock.

Only what is known is judged: a log that is still arriving is not silent, and a job that ended while no process watched
it is not late.
"""

import math
from typing import Literal, NamedTuple

from torchyard.model.profile import Deadlines

_SUSPENDED_AFTER_S = (
    10.0  # between two polls; after more, this process was stopped or its machine slept, and saw nothing
)
_LOG_GRACE_S = 10.0  # from the moment that all logs are heard again until the lines written before it have arrived
_MAX_ARRIVAL_S = 7200.0  # that the logs of an ended job may take to arrive


class JobSnapshot(NamedTuple):
    """What one poll of a job shows.

    `known`: every process has reported its state. `heard`: every log is read to its current end. `lines`: how many so
    far.
    """

    time: float
    states_known: bool
    logs_current: bool
    started: bool
    line_count: int


class ExpiredDeadline(NamedTuple):
    """A deadline that has passed."""

    cause: Literal["start-deadline", "run-deadline", "silence"]
    message: str


class DeadlineMonitor:
    """The deadlines of one job, judged at each poll. Once the job has started, its start deadline no longer applies."""

    def __init__(self, deadlines: Deadlines, job_age_s: float, now: float) -> None:
        """`age`: the seconds since the submit, at the moment `at`."""
        self._deadlines, self._submitted_at, self._last_poll_at = deadlines, now - job_age_s, now
        self._silence_s, self._last_log_gap_at, self._last_suspension_at = 0.0, -math.inf, -math.inf
        self._has_started, self._line_count = False, 0

    def check(self, snapshot: JobSnapshot) -> ExpiredDeadline | None:
        """The deadline that has passed, if one has."""
        self._update(snapshot)
        limits, job_age_s = self._deadlines, snapshot.time - self._submitted_at
        states_current = snapshot.states_known and snapshot.time - self._last_suspension_at >= _LOG_GRACE_S
        logs_current = snapshot.time - max(self._last_log_gap_at, self._last_suspension_at) >= _LOG_GRACE_S
        if states_current and logs_current and not self._has_started and job_age_s > limits.start:
            return ExpiredDeadline("start-deadline", f"not started within {limits.start:g} s (deadlines.start)")
        if states_current and job_age_s > limits.run:
            return ExpiredDeadline("run-deadline", f"not ended within {limits.run:g} s (deadlines.run)")
        if logs_current and self._has_started and self._silence_s > limits.silence:
            message = f"no line in any log for {limits.silence:g} s (deadlines.silence): the job hangs"
            return ExpiredDeadline("silence", message)
        return None

    def _update(self, snapshot: JobSnapshot) -> None:
        """Count the silence: the time since the last line arrived, as far as every log was heard."""
        elapsed_s = snapshot.time - self._last_poll_at
        if elapsed_s > _SUSPENDED_AFTER_S:
            self._last_suspension_at = snapshot.time
        elif not snapshot.logs_current:
            self._last_log_gap_at = snapshot.time
        elif self._has_started:
            self._silence_s += elapsed_s
        if snapshot.line_count != self._line_count:
            self._silence_s = 0.0
        self._last_poll_at, self._line_count = snapshot.time, snapshot.line_count
        self._has_started = self._has_started or snapshot.started


class ArrivalTimer:
    """How long to wait for data on its way: while some of it arrives, and `quiet` seconds after the last of it."""

    def __init__(self, idle_timeout_s: float, now: float) -> None:
        self._idle_timeout_s, self._deadline, self._last_growth_at, self._size = (
            idle_timeout_s,
            now + _MAX_ARRIVAL_S,
            now,
            -1,
        )

    def is_expired(self, now: float, size: int, is_unreachable: bool = False) -> bool:
        """Whether to give up. `size`: what has arrived so far; `away`: its sender does not answer."""
        if size != self._size or is_unreachable:
            self._size, self._last_growth_at = size, now
        return now - self._last_growth_at > self._idle_timeout_s or now > self._deadline
