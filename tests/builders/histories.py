"""Generated histories of nightly runs: random values, and their records."""

import math
import random
from collections.abc import Callable, Sequence

from torchyard.model.trend import Trend
from torchyard.trend.records import History, HistoryKey, Record

KEY = HistoryKey(profile="sample", nodes="2x1")
TREND = Trend(value="busbw", on_regression="fail")
_NIGHT_S = 86_400


# Noise with standard deviation 1 around 0; most kinds have heavier tails than normal noise.
NOISES: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda rng: rng.gauss(0, 1),
    "t3": lambda rng: rng.gauss(0, 1) / sum(rng.gauss(0, 1) ** 2 for _ in range(3)) ** 0.5,
    "laplace": lambda rng: rng.choice((-1, 1)) * rng.expovariate(2**0.5),
    "lognormal": lambda rng: (math.exp(1 / 32) - rng.lognormvariate(0, 1 / 4)) / 0.2623,  # its long tail is low
    "outliers": lambda rng: rng.gauss(0, 3 if rng.random() < 0.05 else 1) / 1.4**0.5,
}


def draw_noisy_values(seed: int, noise: float, count: int = 20, kind: str = "normal") -> list[float]:
    """Values around 200; `noise` is their standard deviation, as a share of 200."""
    rng = random.Random(seed)
    return [200 * (1 + noise * NOISES[kind](rng)) for _ in range(count)]


def build_records(values: Sequence[float], end: str = "succeeded", trend: Trend | None = TREND) -> list[Record]:
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


def build_history(values: Sequence[float]) -> History:
    return History(tuple(build_records(values)))
