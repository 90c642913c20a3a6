"""The result that a run returns to the flow that started it."""

from pydantic import ConfigDict, Field

from torchyard.model.base import FrozenModel
from torchyard.model.run import End, Row


class RunResult(FrozenModel):
    """How a run ended and what it measured, small enough to be passed as JSON to a caller on another machine.

    The report contains everything else.

    Example: `if train_profile("digits-local").metrics["accuracy"] > 0.9: ...`
    """

    # The caller's version of torchyard may be older than the one that wrote the result.
    model_config = ConfigDict(frozen=True, extra="ignore")

    profile: str = Field(description="the name of the profile")
    run: str = Field(description="the name of the run's folder, objects and processes")
    end: End = Field(description="succeeded, failed, stopped (by a signal), cancelled, swept or gave-up")
    sentence: str = Field(description="why it ended this way")
    seconds: float = Field(description="the duration of the run, in all its processes")
    attempts: int = Field(description="the number of attempts that have ended")
    metrics: Row = Field({}, description="rank 0's last row, and its summary of the whole run")
    warnings: tuple[str, ...] = Field((), description="signs that the job did not do what was intended")
    checkpoints: tuple[str, ...] = Field(
        (),
        description="the paths that rank 0 printed as `checkpoint`, then the files in the run's folder; in each the "
        "newest is last",
    )
    report: str = Field("", description="the path of report.json, on the machine of the launcher")
