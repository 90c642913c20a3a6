"""Which deadline of a job has expired, decided from what its polls have shown, by this machine's monotonic clock.

Only what was observed counts: a log that is still arriving is not silent, and a job that may have ended while no
process watched it is not late.
"""

import math
from typing import NamedTuple

from torchyard.model.causes.launcher import LauncherCause
from torchyard.model.profile import Deadlines

_SUSPENDED_AFTER_S = 10.0  # between two polls; after more, this process was suspended and observed nothing
LOG_GRACE_S = 10.0  # after a gap, until the lines written during it have arrived
_MAX_ARRIVAL_S = 7200.0  # that the logs of an ended job may take to arrive


class JobSnapshot(NamedTuple):
    """What one poll shows of a job.

    time: of the poll, in monotonic seconds.
    states_known: every process has reported its state.
    logs_current: every log is read to its current end.
    started: the job is running, or has been.
    line_count: log lines read so far, of all logs.
    collective_count: collectives that the ranks have completed so far, as far as their records show.
    job_age_s: seconds since the job was submitted, as its host has measured them; None if it has not reported them.
    """

    time: float
    states_known: bool
    logs_current: bool
    started: bool
    line_count: int
    collective_count: int = 0
    job_age_s: float | None = None


class ExpiredDeadline(NamedTuple):
    """A deadline that has expired: its cause slug, and the message for the report."""

    cause: LauncherCause
    message: str


class DeadlineMonitor:
    """Check a job's deadlines at every poll.

    All times are seconds of this machine's monotonic clock: no wall clock, here or on a node, expires a deadline.
    A deadline is checked only while the job is fully observed:

    - `start` and `run` need the state of every process, and `start` and `silence` every log, read to its end.
    - `run` expires earlier by `notice`, so that the job has ended by then.
    - After a gap (a log stream was broken, or this process was suspended) they are checked again `LOG_GRACE_S` later,
      because what was written during the gap is still arriving. `run` does not wait for logs.
    - `silence` is the time since the last new line or completed collective, once the job has started: a program whose
      progress bar prints nothing into a file trains on. Gaps are not counted and do not reset it.

    A job that has started once is never late for its start. `check` returns an expired deadline; nothing is raised.
    """

    def __init__(self, deadlines: Deadlines, *, job_age_s: float, now: float) -> None:
        """`job_age_s`: seconds since the job was submitted, at the time `now`; 0 if that is not known yet."""
        self._deadlines = deadlines
        self._submitted_at = now - job_age_s
        self._last_poll_at = now
        self._last_log_gap_at = -math.inf
        self._last_suspension_at = -math.inf
        self._silence_s = 0.0
        self._progress = (0, 0)  # lines and collectives
        self._has_started = False

    def check(self, snapshot: JobSnapshot) -> ExpiredDeadline | None:
        """Record a poll, and return the deadline that has expired by then; None if none has."""
        self._update(snapshot)
        deadlines = self._deadlines
        job_age_s = snapshot.time - self._submitted_at
        states_current = snapshot.states_known and snapshot.time - self._last_suspension_at >= LOG_GRACE_S
        last_gap_at = max(self._last_log_gap_at, self._last_suspension_at)
        logs_current = snapshot.time - last_gap_at >= LOG_GRACE_S

        if states_current and logs_current and not self._has_started and job_age_s > deadlines.start:
            return ExpiredDeadline(
                LauncherCause.START_DEADLINE, f"not started within {deadlines.start:g} s (deadlines.start)"
            )
        if states_current and job_age_s > deadlines.run - deadlines.notice:
            message = f"not ended within {deadlines.run:g} s (deadlines.run)"
            if deadlines.notice:
                message = f"not ended by {deadlines.notice:g} s (deadlines.notice) before {deadlines.run:g} s"
                message += " (deadlines.run)"
            return ExpiredDeadline(LauncherCause.RUN_DEADLINE, message)
        if logs_current and self._has_started and self._silence_s > deadlines.silence:
            message = f"no line in any log and no completed collective for {deadlines.silence:g} s (deadlines.silence)"
            return ExpiredDeadline(LauncherCause.SILENCE, message)
        return None

    def _update(self, snapshot: JobSnapshot) -> None:
        """Add the time since the last poll to the silence, unless it was a gap; reset the silence on progress."""
        if snapshot.job_age_s is not None:
            self._submitted_at = snapshot.time - snapshot.job_age_s
        elapsed_s = snapshot.time - self._last_poll_at
        if elapsed_s > _SUSPENDED_AFTER_S:
            self._last_suspension_at = snapshot.time
        elif not snapshot.logs_current:
            self._last_log_gap_at = snapshot.time
        elif self._has_started:
            self._silence_s += elapsed_s
        progress = (snapshot.line_count, snapshot.collective_count)
        if progress != self._progress:
            self._silence_s = 0.0
        self._last_poll_at = snapshot.time
        self._progress = progress
        self._has_started = self._has_started or snapshot.started


class ArrivalTimer:
    """How long to wait for the rest of an ended job's logs.

    The wait goes on while data arrives, and ends `idle_timeout_s` seconds after the last of it, `_MAX_ARRIVAL_S` after
    the start at the latest. While the sender cannot be reached, the idle time does not run.
    """

    def __init__(self, idle_timeout_s: float, now: float) -> None:
        """`now`: monotonic seconds, as in `is_expired`."""
        self._idle_timeout_s = idle_timeout_s
        self._deadline = now + _MAX_ARRIVAL_S
        self._last_growth_at = now
        self._size = -1  # no size that was reported: the first one counts as growth

    def is_expired(self, now: float, size: int, *, is_unreachable: bool = False) -> bool:
        """Whether to give up. `size`: bytes or lines that have arrived so far; `is_unreachable`: the sender."""
        if size != self._size or is_unreachable:
            self._size = size
            self._last_growth_at = now
        return now - self._last_growth_at > self._idle_timeout_s or now > self._deadline
