"""Records a run that has ended, and compares its number with those of the last nights."""

import math
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from torchyard.common.log import get_log
from torchyard.model.profile import Profile
from torchyard.model.run import Collected, End, Metrics
from torchyard.model.trend import Trend, TrendVerdict
from torchyard.trend.records import (
    History,
    Record,
    RunIdentity,
    get_history_key,
    history_path,
    read_history,
    store_record,
)
from torchyard.trend.regression import MIN_NIGHTS, Band, JudgedValue, evaluate_nights

_MAX_NUMBERS, _MAX_NAME_CHARS = 100, 80
_MAX_VALUE = 1e300  # above it no distance can be squared, and nothing drawn


def build_record(profile: Profile, run: RunIdentity, end: End, collected: Collected | None) -> Record:
    """The record of a run that ends now."""
    now = time.time()
    return Record(
        at=round(now, 3),
        run=run.name,
        began=run.started_at,
        end=end,
        seconds=round(now - run.started_at, 3),
        numbers=_select_numbers(collected.metrics) if collected else {},
        trend=profile.trend,
        fabric=collected.fabric.verdict if collected and collected.fabric else "",
        version=_read_version(),
        key=get_history_key(profile),
    )


def compare_run(runs: Path, record: Record) -> TrendVerdict | None:
    """Record a run, and compare it as its profile asks; None if nothing is to be compared.

    It never raises: what goes wrong here is no fact about the job.
    """
    path = history_path(runs, record.key)
    try:
        record = store_record(path, record)
    except OSError as error:
        get_log().warning("the run's numbers are not kept: %s", error)
    if record.trend is None or record.end != "succeeded":
        return None
    try:
        return _evaluate_record(read_history(path), record, record.trend)
    except Exception as error:
        return TrendVerdict(verdict="unknown", sentence=f"the run cannot be compared with {path}: {error}")


def get_number(record: Record, name: str) -> float | None:
    """A number of a run by its name; `seconds` is how long the run took, unless the program has such a number."""
    return record.numbers.get(name, record.seconds if name == "seconds" else None)


def evaluate_records(records: Sequence[Record], trend: Trend) -> list[tuple[Record, JudgedValue]]:
    """Each run that succeeded and has the number, and how it compares with those before it."""
    numbers = [(record, get_number(record, trend.value)) for record in records if record.end == "succeeded"]
    valued = [(record, value) for record, value in numbers if value is not None]
    nights = evaluate_nights([value for _, value in valued], trend.better)
    return [(record, night) for (record, _), night in zip(valued, nights, strict=True)]


def format_number(value: float) -> str:
    return f"{value:.4g}"


def format_band(band: Band) -> str:
    """What is usual: `199.1 to 215.7`."""
    return f"{format_number(band.low)} to {format_number(band.high)}"


def _evaluate_record(history: History, record: Record, trend: Trend) -> TrendVerdict:
    if get_number(record, trend.value) is None:
        available = ", ".join(sorted(record.numbers)) or "none"
        return TrendVerdict(
            verdict="unknown", sentence=f"the run has no number {trend.value}; its numbers: {available}"
        )
    earlier_records = [
        candidate
        for candidate in history.records
        if candidate.identity != record.identity and candidate.at <= record.at
    ]
    *earlier, (_, night) = evaluate_records([*earlier_records, record], trend)
    unread = f"; {history.skipped} lines of the history cannot be read" if history.skipped else ""
    return TrendVerdict(verdict=night.verdict, sentence=_describe_night(trend.value, night, len(earlier)) + unread)


def _describe_night(name: str, night: JudgedValue, earlier: int) -> str:
    """`busbw is 182.3, 12.1 % below 207.4, the median of the last 23 runs; 199.1 to 215.7 would be usual`."""
    sentence = f"{name} is {format_number(night.value)}"
    if night.band is None:
        runs = "1 earlier run has" if earlier == 1 else f"{earlier} earlier runs have"
        return f"{sentence}; {runs} this number, and a comparison needs {MIN_NIGHTS}"
    change = night.value - night.band.middle
    share = f"{abs(change / night.band.middle):.1%} ".replace("%", " %") if night.band.middle else ""
    side = "above" if change > 0 else "below"
    verb = "is" if night.verdict == "usual" else "would be"
    middle = f"{format_number(night.band.middle)}, the median of the last {night.band.nights} runs"
    return f"{sentence}, {share}{side} {middle}; {format_band(night.band)} {verb} usual"


def _select_numbers(metrics: Metrics) -> dict[str, float]:
    """The numbers of the last row and of the summary, which says more about the whole run."""
    values = {**(metrics.rows[-1] if metrics.rows else {}), **metrics.summary}
    numbers = {name: value for name, value in values.items() if _is_number(value) and len(name) <= _MAX_NAME_CHARS}
    return {name: float(value) for name, value in list(numbers.items())[:_MAX_NUMBERS] if value is not None}


def _is_number(value: object) -> bool:
    """Whether it is a number that can be compared and drawn: JSON's integers may be longer than any float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < _MAX_VALUE and math.isfinite(value)


def _read_version() -> str:
    try:
        return version("torchyard")
    except PackageNotFoundError:
        return ""
