"""What a run returns to the flow that asked for it."""

from pydantic import ConfigDict, Field

from torchyard.model.base import FrozenModel
from torchyard.model.run import End, Row


class RunResult(FrozenModel):
    """How a run ended and what it measured: small enough to be carried as JSON, wherever the caller is.

    Everything else is in the report.

    Example: `if train_profile("digits-local").metrics["accuracy"] > 0.9: ...`
    """

    # The caller's version of torchyard may be older than the one that wrote the result.
    model_config = ConfigDict(frozen=True, extra="ignore")

    profile: str
    run: str = Field(description="its name: of its folder, its objects and its processes")
    end: End
    sentence: str = Field(description="why it ended so")
    seconds: float
    attempts: int
    metrics: Row = Field({}, description="rank 0's last row, and what it said about the whole run")
    checkpoints: tuple[str, ...] = Field(
        (), description="what rank 0 named as `checkpoint`, then the files in the run's folder; the newest last in each"
    )
    report: str = Field("", description="the path of report.json, on the machine of the launcher")
