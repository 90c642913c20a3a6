"""An axis: the range of its values, and the ticks with their labels."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

from torchyard.charts.chart import Scale

_MARGIN = 0.05  # of the range, at both ends
_MAX_TICKS = 6
_MIN_RELATIVE_RANGE = 1e-9  # a smaller range is drawn as one value: floats have no round numbers in it
_HOUR_S = 3600
_DAY_S = 86_400
_TIME_STEPS_S = (60, 300, 900, 1800, _HOUR_S, 3 * _HOUR_S, 6 * _HOUR_S, 12 * _HOUR_S, _DAY_S, 2 * _DAY_S, 4 * _DAY_S)
_MIN_EXPONENT = -1074  # of the smallest positive float
_SIZE_UNITS = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")


class Tick(NamedTuple):
    """A value of an axis, and the text beside it."""

    value: float
    label: str


class Axis(NamedTuple):
    """The range of an axis, in the unit of its scale: the exponents of 2 for `log2`."""

    scale: Scale
    low: float
    high: float

    def place(self, value: float) -> float:
        """The position of a value, from 0 at the low end to 1."""
        position = math.log2(value) if self.scale == "log2" else value
        return (position - self.low) / (self.high - self.low)

    def list_ticks(self) -> list[Tick]:
        """At most `_MAX_TICKS` round values in the range, in their order."""
        match self.scale:
            case "log2":
                return self._list_size_ticks()
            case "time":
                return self._list_time_ticks()
            case "linear":
                return self._list_number_ticks()

    def _list_number_ticks(self) -> list[Tick]:
        step = _choose_step((self.high - self.low) / _MAX_TICKS)
        values = [index * step for index in _list_multiples(self.low, self.high, step)]
        return [Tick(value, _format_number(value, step, max(map(abs, values)))) for value in values]

    def _list_size_ticks(self) -> list[Tick]:
        step = max(1, math.ceil((self.high - self.low) / _MAX_TICKS))
        exponents = [index * step for index in _list_multiples(self.low, self.high, step)]
        return [Tick(2.0**exponent, _format_size(exponent)) for exponent in exponents]

    def _list_time_ticks(self) -> list[Tick]:
        step = _choose_time_step((self.high - self.low) / _MAX_TICKS)
        form = "%Y-%m-%d" if step >= _DAY_S else "%m-%d %H:%M"
        ticks: list[Tick] = []
        for index in _list_multiples(self.low, self.high, step):
            ticks.append(Tick(index * step, datetime.fromtimestamp(index * step, UTC).strftime(form)))
        return ticks


def fit_axis(scale: Scale, values: Iterable[float], *, starts_at_zero: bool = False) -> Axis:
    """The axis that shows all values with a margin, or 0 and 1 if there is none.

    Values of `log2` are positive, and its ends are powers of two, which have ticks.
    """
    positions = [math.log2(value) if scale == "log2" else value for value in values]
    if starts_at_zero:
        positions.append(0.0)
    low = min(positions, default=0.0)
    high = max(positions, default=1.0)
    if scale == "log2":
        return Axis(scale, max(math.ceil(low) - 1, _MIN_EXPONENT), math.floor(high) + 1)
    largest = max(abs(low), abs(high))
    margin = _MARGIN * (high - low)
    if high - low <= _MIN_RELATIVE_RANGE * largest or margin == 0:
        margin = _MARGIN * largest or 1.0
    bottom = 0.0 if starts_at_zero and low >= 0 else low - margin
    return Axis(scale, bottom, high + margin)


def _list_multiples(low: float, high: float, step: float) -> range:
    """The factors of the multiples of `step` from `low` to `high`."""
    return range(math.ceil(low / step), math.floor(high / step) + 1)


def _choose_step(minimum: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below `minimum`."""
    power: float = 10.0 ** math.floor(math.log10(minimum))
    for factor in (1, 2, 5):
        if factor * power >= minimum:
            return factor * power
    return 10 * power


def _choose_time_step(minimum_s: float) -> float:
    for step_s in _TIME_STEPS_S:
        if step_s >= minimum_s:
            return step_s
    return math.ceil(minimum_s / (7 * _DAY_S)) * 7 * _DAY_S


def _format_number(value: float, step: float, largest: float) -> str:
    """A value with the decimals of its step: `0.25`, `1200`; as `2.5e+06` if the axis has very large or small ones."""
    if 1e-4 <= largest < 1e6:
        decimals = max(0, -math.floor(math.log10(step)))
        return f"{value:.{decimals}f}"
    digits = math.floor(math.log10(largest)) - math.floor(math.log10(step))
    return f"{value:.{digits}e}" if value else "0"


def _format_size(exponent: int) -> str:
    """2 to the power of `exponent`: `512`, `4 Ki`, `1 Gi`."""
    if not 0 <= exponent < 10 * len(_SIZE_UNITS):
        return f"2^{exponent}"
    return f"{2 ** (exponent % 10)} {_SIZE_UNITS[exponent // 10]}".rstrip()
