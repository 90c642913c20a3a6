"""Record a run that has ended, and compare one of its numbers with those of the last nights."""

import math
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from torchyard.common.log import get_log
from torchyard.model.profile import Profile
from torchyard.model.run import Collected, End, Metrics, Row
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

_MAX_NUMBERS = 100  # of a record
_MAX_NAME_CHARS = 80
_MAX_VALUE = 1e300  # a float close to its limit overflows in a margin of the plot


def build_record(profile: Profile, run: RunIdentity, end: End, collected: Collected | None) -> Record:
    """The record of a run that ends now; without numbers if nothing was collected."""
    now = time.time()
    fabric = collected.fabric if collected else None
    failure = collected.failure if collected and end == "failed" else None
    return Record(
        at=round(now, 3),
        run=run.name,
        began=run.started_at,
        end=end,
        cause=failure.cause if failure else "",
        seconds=round(now - run.started_at, 3),
        numbers=_select_numbers(collected.metrics) if collected else {},
        trend=profile.trend,
        fabric=fabric.verdict if fabric else "",
        version=_read_version(),
        key=get_history_key(profile),
    )


def compare_run(runs: Path, record: Record) -> TrendVerdict | None:
    """Append a run to its history, and compare its number with earlier runs.

    None if the profile compares no number, or the job did not succeed. Nothing is raised, because an error here is
    not a fact about the job: it is logged, or it is the sentence of a verdict `unknown`.
    """
    path = history_path(runs, record.key)
    try:
        record = store_record(path, record)
    except OSError as error:
        get_log().warning("cannot record the run's numbers: %s", error)
    if record.trend is None or record.end != "succeeded":
        return None
    try:
        return _evaluate_record(read_history(path), record, record.trend)
    except Exception as error:
        return TrendVerdict(verdict="unknown", sentence=f"the run cannot be compared with {path}: {error}")


def get_number(record: Record, name: str) -> float | None:
    """A number of a run by its name; None if it has none.

    `seconds` is the duration of the run, unless the program prints a number with this name.
    """
    if name == "seconds":
        return record.numbers.get(name, record.seconds)
    return record.numbers.get(name)


class EvaluatedRecord(NamedTuple):
    """A run, and how its number compares with those of earlier runs."""

    record: Record
    night: JudgedValue


def evaluate_records(records: Sequence[Record], trend: Trend) -> list[EvaluatedRecord]:
    """Compare the number of each run that succeeded with those before it. Runs without the number are left out."""
    evaluated: list[Record] = []
    values: list[float] = []
    for record in records:
        value = get_number(record, trend.value)
        if record.end == "succeeded" and value is not None:
            evaluated.append(record)
            values.append(value)
    nights = evaluate_nights(values, trend.better)
    return [EvaluatedRecord(record, night) for record, night in zip(evaluated, nights, strict=True)]


def format_number(value: float) -> str:
    return f"{value:.4g}"


def format_band(band: Band) -> str:
    """The range of usual values: `199.1 to 215.7`."""
    return f"{format_number(band.low)} to {format_number(band.high)}"


def _evaluate_record(history: History, record: Record, trend: Trend) -> TrendVerdict:
    """The verdict on one run, by the earlier ones of its history: a resumed run may already be in it."""
    if get_number(record, trend.value) is None:
        available = ", ".join(sorted(record.numbers)) or "none"
        sentence = f"the run has no number {trend.value}; its numbers: {available}"
        return TrendVerdict(verdict="unknown", sentence=sentence)
    records: list[Record] = []
    for candidate in history.records:
        if candidate.identity != record.identity and candidate.at <= record.at:
            records.append(candidate)
    records.append(record)
    *earlier, (_, night) = evaluate_records(records, trend)
    sentence = _describe_night(trend.value, night, len(earlier))
    if history.skipped:
        sentence += f"; {history.skipped} lines of the history cannot be read"
    return TrendVerdict(verdict=night.verdict, sentence=sentence)


def _describe_night(name: str, night: JudgedValue, earlier_count: int) -> str:
    """`busbw is 182.3, 12.1 % below 207.4, the median of the last 23 runs; 199.1 to 215.7 would be usual`."""
    sentence = f"{name} is {format_number(night.value)}"
    band = night.band
    if band is None:
        runs = "1 earlier run has" if earlier_count == 1 else f"{earlier_count} earlier runs have"
        return f"{sentence}; {runs} this number, and a comparison needs {MIN_NIGHTS}"
    change = night.value - band.middle
    side = "above" if change > 0 else "below"
    if band.middle:
        percent = 100 * abs(change / band.middle)
        side = f"{percent:.1f} % {side}"
    verb = "is" if night.verdict == "usual" else "would be"
    median = f"{format_number(band.middle)}, the median of the last {band.nights} runs"
    return f"{sentence}, {side} {median}; {format_band(band)} {verb} usual"


def _select_numbers(metrics: Metrics) -> dict[str, float]:
    """The numbers of the last row and of the summary, at most _MAX_NUMBERS; the summary's are about the whole run."""
    values: Row = dict(metrics.rows[-1]) if metrics.rows else {}
    values |= metrics.summary
    numbers: dict[str, float] = {}
    for name, value in values.items():
        number = _convert_number(value)
        if number is not None and len(name) <= _MAX_NAME_CHARS and len(numbers) < _MAX_NUMBERS:
            numbers[name] = number
    return numbers


def _convert_number(value: object) -> float | None:
    """A number that can be compared and drawn; None for other values, nan, inf, and integers above any float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < _MAX_VALUE and math.isfinite(value) else None


def _read_version() -> str:
    """The version of the installed package; "" if it is not installed."""
    try:
        return version("torchyard")
    except PackageNotFoundError:
        return ""
