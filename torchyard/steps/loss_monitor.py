"""Detects a loss that is nan or infinite in rank 0's metrics while a job runs; `on_nan` selects the action."""

from collections.abc import Callable, Sequence

from torchyard.common.escaping import single_line
from torchyard.common.log import get_log
from torchyard.metrics.losses import find_bad_loss
from torchyard.metrics.registry import describe_row
from torchyard.model.causes.launcher import LauncherCause
from torchyard.model.event import BadLossRead
from torchyard.model.plan import Plan
from torchyard.model.run import BadLoss, Failure, Outcome, Row, Status

_MAX_ROW_CHARS = 300


class LossMonitor:
    """Check the losses of rank 0's rows, in the order in which they were printed.

    `bad_loss` is the first one that is not a finite number; None if there is none so far. It is logged and emitted
    once. With `on_nan: fail` it ends the job, also one that has succeeded by then. Errors of `emit` are raised.
    """

    def __init__(self, plan: Plan, emit: Callable[[BadLossRead], object]) -> None:
        self.bad_loss: BadLoss | None = None
        self._plan = plan
        self._emit = emit

    def add_rows(self, rows: Sequence[Row]) -> None:
        """Check new rows."""
        for row in rows:
            name = find_bad_loss(row)
            if name is None:
                continue
            if self.bad_loss:
                self.bad_loss = self.bad_loss.model_copy(update={"count": self.bad_loss.count + 1})
                continue
            text = single_line(describe_row(row), _MAX_ROW_CHARS)
            self.bad_loss = BadLoss(name=single_line(name, _MAX_ROW_CHARS), row=text, count=1)
            get_log().warning("%s", self.bad_loss.sentence)
            self._emit(BadLossRead(self.bad_loss))

    def check(self) -> Status | None:
        """The failed status of a job with such a loss, if the profile ends it; else None."""
        if self.bad_loss is None or self._plan.on_nan != "fail":
            return None
        cause = LauncherCause.LOSS_NAN
        sentence = self.bad_loss.sentence
        failure = Failure(cause=cause, sentence=f"{sentence}: {cause.advice}", rank=0, line=self.bad_loss.row)
        return Status(state="failed", reason=f"{sentence} (on_nan: fail)", failure=failure)

    def complete(self, outcome: Outcome) -> Outcome:
        """The outcome with the loss. A job that succeeded with it has failed, if the profile ends such a job."""
        status = outcome.status
        if status.state == "succeeded":
            status = self.check() or status
        return outcome.model_copy(update={"status": status, "bad_loss": self.bad_loss})
