"""How a run compares with earlier runs of its profile: the setting and the verdict."""

from typing import Literal

from pydantic import Field

from torchyard.model.base import FrozenModel

Better = Literal["higher", "lower"]


class Trend(FrozenModel):
    """The number of a run that is compared with the last runs."""

    value: str = Field(
        min_length=1,
        description="a number of the summary or of the last row, such as busbw; or seconds, the run's duration",
    )
    better: Better = Field("higher", description="the direction of an improvement")
    on_regression: Literal["report", "fail"] = Field(
        "report", description="if the number became worse: report it, or end the run as failed"
    )


class TrendVerdict(FrozenModel):
    """How a run's number compares with those of earlier runs."""

    verdict: Literal["usual", "worse", "better", "unknown"]
    sentence: str
