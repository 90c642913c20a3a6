"""What happens in a run, in the order in which it can happen: its pipeline emits these events, and sinks take them."""

from collections.abc import Callable
from typing import NamedTuple

from torchyard.model.checkpoint import StopRequest
from torchyard.model.finding import Finding
from torchyard.model.hang import HangUpdate
from torchyard.model.plan import Plan
from torchyard.model.profile import Profile
from torchyard.model.run import BadLoss, Report, Row, Status

# --- of a job, while the run waits for its end ---------------------------------------------------------------------


class RowsRead(NamedTuple):
    """The logs were read, at least every half second.

    rows: rank 0's new rows; empty if there are none.
    lines: all lines that rank 0 has printed since the previous event.
    collectives: the number that rank 0 has completed, by its last record; None if it has none.
    """

    rows: tuple[Row, ...]
    lines: tuple[str, ...] = ()
    collectives: int | None = None


class BadLossRead(NamedTuple):
    """Rank 0 has printed the first loss that is not a finite number."""

    bad_loss: BadLoss


class StatusRead(NamedTuple):
    """The job's status was read; its reason names the obstacle of a job that waits.

    waited_s: seconds since the submit. 0 for a job that is pending again after it had started: it has not waited since
        its submit.
    """

    status: Status
    waited_s: float


class RankFailed(NamedTuple):
    """A rank has failed: the first one, as far as the logs show. Emitted again when more is known about it.

    rank: global; None if it is not known.
    local_rank: None if it is not known; without `rank` too, the node's agent or its only process has failed.
    exit_code: negative: a signal. None: not known yet.
    has_ended: False if it has only printed an exception that it does not catch, and may still run.
    lines: its traceback or its last lines, without prefixes; empty if it has none, or if an earlier event had them.
    same_ranks: the other ranks that have failed with the same words.
    """

    node: str
    local_rank: int | None
    rank: int | None
    exit_code: int | None
    has_ended: bool
    lines: tuple[str, ...]
    same_ranks: tuple[int, ...] = ()


class StopRequested(NamedTuple):
    """The job is asked to stop now, because its outcome is decided: it gets SIGTERM, and has its grace to save."""

    stop: StopRequest


class StopWithdrawn(NamedTuple):
    """The job is not asked to stop any more: that has failed, and what it was for is no longer so.

    reason: why it was to be stopped.
    """

    reason: str


JobEvent = RowsRead | BadLossRead | StatusRead | HangUpdate | RankFailed | StopRequested | StopWithdrawn
EmitJobEvent = Callable[[JobEvent], object]

# --- of a run ------------------------------------------------------------------------------------------------------


class RunStarted(NamedTuple):
    """A process takes the run to its end, from whatever state an earlier process has left."""


class PlanMade(NamedTuple):
    """An attempt is planned, with the profile that it uses; nothing is started yet."""

    profile: Profile
    plan: Plan


class ChecksMade(NamedTuple):
    """Preflight has checked an attempt, successfully or not."""

    checks: tuple[Finding, ...]


class AttemptStarted(NamedTuple):
    """The job of an attempt is submitted: the events that follow are about it."""

    number: int
    job: str


class WaitEnded(NamedTuple):
    """The job of the attempt has ended: no more rows follow."""


class EndReached(NamedTuple):
    """The run has ended, and everything of it is removed as far as possible; the report lacks what was not sent."""

    report: Report


class ReportWritten(NamedTuple):
    """The report is complete. It is written again if the archive is incomplete."""

    report: Report


RunEvent = (
    RunStarted
    | PlanMade
    | ChecksMade
    | AttemptStarted
    | RowsRead
    | BadLossRead
    | StatusRead
    | HangUpdate
    | RankFailed
    | WaitEnded
    | EndReached
    | ReportWritten
)
