"""Histories of nights that nobody has run: random values, and their records."""

import random
from collections.abc import Sequence

from torchyard.model.trend import Trend
from torchyard.trend.records import History, HistoryKey, Record

KEY = HistoryKey(profile="sample", nodes="2x1")
TREND = Trend(value="busbw", on_regression="fail")
_NIGHT_S = 86_400


def noisy_nights(seed: int, noise: float, count: int = 20) -> list[float]:
    """Values around 200 with normal noise, as a share of them."""
    drawn = random.Random(seed)
    return [200 * (1 + drawn.gauss(0, noise)) for _ in range(count)]


def heavy_nights(seed: int, noise: float, count: int = 20) -> list[float]:
    """The same with the heavy tails of Student's t with 3 degrees of freedom; `noise` is its standard deviation."""
    drawn = random.Random(seed)
    scale = [(sum(drawn.gauss(0, 1) ** 2 for _ in range(3)) / 3) ** 0.5 for _ in range(count)]
    return [200 * (1 + noise * drawn.gauss(0, 1) / each / 3**0.5) for each in scale]


def recorded(values: Sequence[float], end: str = "succeeded", trend: Trend | None = TREND) -> list[Record]:
    """One record per value and night."""
    return [
        Record(
            at=_NIGHT_S * number,
            run=f"sample-{number:08}",
            began=_NIGHT_S * number - 60.0,
            end=end,
            seconds=60,
            numbers={"busbw": value, "step": 3.0},
            trend=trend,
            key=KEY,
        )
        for number, value in enumerate(values, 1)
    ]


def history(values: Sequence[float]) -> History:
    return History(tuple(recorded(values)))
