"""Whether a job is late, judged from what is seen of it, by this machine's monotonic clock.

Only what is known is judged: a log that is still arriving is not silent, and a job that ended while no process watched
it is not late.
"""

import math
from typing import Literal, NamedTuple

from torchyard.model.profile import Deadlines

_MAX_GAP_S = 10.0  # between two polls; after more, this process was stopped or its machine slept, and saw nothing
_LOG_GRACE_S = 10.0  # from the moment that all logs are heard again until the lines written before it have arrived
_MAX_ARRIVAL_S = 7200.0  # that the logs of an ended job may take to arrive


class ProgressSample(NamedTuple):
    """What one poll of a job shows.

    `known`: every process has reported its state. `heard`: every log is read to its current end. `lines`: how many so
    far.
    """

    at: float
    known: bool
    heard: bool
    started: bool
    lines: int


class PassedDeadline(NamedTuple):
    """A deadline that has passed."""

    cause: Literal["start-deadline", "run-deadline", "silence"]
    sentence: str


class DeadlineMonitor:
    """The deadlines of one job, judged at each poll. Once the job has started, its start deadline no longer applies."""

    def __init__(self, limits: Deadlines, age: float, at: float) -> None:
        """`age`: the seconds since the submit, at the moment `at`."""
        self._limits, self._submitted_at, self._looked_at = limits, at - age, at
        self._silent, self._deaf_at, self._blind_at = 0.0, -math.inf, -math.inf
        self._started, self._lines = False, 0

    def judge(self, look: ProgressSample) -> PassedDeadline | None:
        """The deadline that has passed, if one has."""
        self._note_arrivals(look)
        limits, took = self._limits, look.at - self._submitted_at
        is_current = look.known and look.at - self._blind_at >= _LOG_GRACE_S
        is_clear = look.at - max(self._deaf_at, self._blind_at) >= _LOG_GRACE_S
        if is_current and is_clear and not self._started and took > limits.start:
            return PassedDeadline("start-deadline", f"not started within {limits.start:g} s (deadlines.start)")
        if is_current and took > limits.run:
            return PassedDeadline("run-deadline", f"not ended within {limits.run:g} s (deadlines.run)")
        if is_clear and self._started and self._silent > limits.silence:
            said = f"no line in any log for {limits.silence:g} s (deadlines.silence): the job hangs"
            return PassedDeadline("silence", said)
        return None

    def _note_arrivals(self, look: ProgressSample) -> None:
        """Count the silence: the time since the last line arrived, as far as every log was heard."""
        since = look.at - self._looked_at
        if since > _MAX_GAP_S:
            self._blind_at = look.at
        elif not look.heard:
            self._deaf_at = look.at
        elif self._started:
            self._silent += since
        if look.lines != self._lines:
            self._silent = 0.0
        self._looked_at, self._lines = look.at, look.lines
        self._started = self._started or look.started


class ArrivalTimer:
    """How long to wait for data on its way: while some of it arrives, and `quiet` seconds after the last of it."""

    def __init__(self, quiet: float, at: float) -> None:
        self._quiet, self._until, self._moved_at, self._size = quiet, at + _MAX_ARRIVAL_S, at, -1

    def is_over(self, at: float, size: int, away: bool = False) -> bool:
        """Whether to give up. `size`: what has arrived so far; `away`: its sender does not answer."""
        if size != self._size or away:
            self._size, self._moved_at = size, at
        return at - self._moved_at > self._quiet or at > self._until
