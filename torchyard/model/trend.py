"""How a run compares with the earlier runs of its profile: what the user asks for, and the verdict."""

from typing import Literal

from pydantic import Field

from torchyard.model.base import FrozenModel

Better = Literal["higher", "lower"]


class Trend(FrozenModel):
    """Which number of a run is compared with the last nights."""

    value: str = Field(
        min_length=1, description="a number of the summary or of the last row, such as busbw; or seconds, of the run"
    )
    better: Better = Field("higher", description="which change is an improvement")
    on_regression: Literal["report", "fail"] = Field(
        "report", description="what a run does whose number became worse: report it, or end as failed"
    )


class TrendVerdict(FrozenModel):
    """How a run's number compares with those before it."""

    verdict: Literal["usual", "worse", "better", "unknown"]
    sentence: str
