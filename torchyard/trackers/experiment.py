"""What of a run goes into a tracker: the profile as parameters, rows as points, and how the run ended."""

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from torchyard.common.escaping import single_line
from torchyard.common.secrets import mask_document
from torchyard.metrics.text import ROW_KEYS
from torchyard.model.profile import Profile
from torchyard.model.run import Report, Row
from torchyard.trackers.tracker import Experiment, ExperimentEnd, Point

_MAX_VALUE_CHARS, _MAX_NAME_CHARS, _MAX_NUMBERS = 500, 200, 200
# Keys of a profile that are no parameter of the experiment, or are too large for one.
_LEFT_OUT = frozenset({"name", "notify", "metrics_to", "manifest", "files", "hardware"})
_FINEST_FIRST = ("step", "trial", "size", "epoch")  # of a row with several keys, the one by which a curve is drawn
_TOTALS = frozenset(f"{before}{key}{after}" for key in ROW_KEYS for before, after in (("", "s"), ("last_", "")))


def describe_experiment(profile: Profile, run: tuple[str, str], folder: str, link: str) -> Experiment:
    """A run, given by its name and its id, as its trackers know it."""
    name, run_id = run
    said = mask_document(profile.model_dump(mode="json", exclude_unset=True, exclude=set(_LEFT_OUT)))
    found = dict(_flatten("", {**said, "hardware": profile.hardware.name if profile.hardware else None}))
    tags = {"torchyard.run": name, "torchyard.profile": profile.name, "torchyard.launcher": profile.launcher}
    tags |= {"torchyard.link": link} if link else {}
    return Experiment(name, run_id, profile.name, folder, found, tags)


class RowSteps:
    """Makes points of rows; a row without a key belongs to the step of the row before it."""

    def __init__(self) -> None:
        self._step = 0

    def read(self, row: Row) -> Point | None:
        """The row's numbers; None if it has none."""
        key = next((key for key in _FINEST_FIRST if _is_number(row.get(key))), None)
        if key:
            self._step = int(row[key] or 0)
        numbers = {name: value for name, value in _select_numbers(row) if name != key and name not in _TOTALS}
        return Point(self._step, time.time(), numbers) if numbers else None


def describe_end(report: Report) -> ExperimentEnd:
    """How a run ended, and the numbers of its summary."""
    summary = report.collected.metrics.summary if report.collected else {}
    failure = report.collected.failure if report.collected and report.end == "failed" else None
    fabric = report.collected.fabric if report.collected else None
    tags = {
        "torchyard.end": report.end,
        "torchyard.sentence": single_line(report.sentence, _MAX_VALUE_CHARS),
        "torchyard.cause": failure.cause if failure else "",
        "torchyard.fabric": fabric.verdict if fabric else "",
        "torchyard.attempts": str(len(report.attempts)),
        "torchyard.seconds": f"{report.seconds:.1f}",
    }
    numbers = {f"summary.{name}": value for name, value in _select_numbers(summary)}
    return ExperimentEnd(report.end, time.time(), numbers, {name: value for name, value in tags.items() if value})


def _flatten(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """The values of a nested mapping, by keys with dots."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flatten(f"{name}.{key}" if name else str(key), each)
    elif value not in (None, [], "") and name:
        said = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield name[:_MAX_NAME_CHARS], single_line(said, _MAX_VALUE_CHARS)


def _select_numbers(row: Row) -> list[tuple[str, float]]:
    found = [(name, value) for name, value in row.items() if _is_number(value) and len(name) <= _MAX_NAME_CHARS]
    return [(name, float(value or 0)) for name, value in found[:_MAX_NUMBERS]]


def _is_number(value: object) -> bool:
    """Whether it is a finite number: JSON's integers may be longer than any float."""
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and math.isfinite(value)
    )
