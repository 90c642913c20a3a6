"""The data of a run for a tracker: the profile as parameters, rows as points, and the end of the run."""

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from torchyard.common.escaping import single_line
from torchyard.common.secrets import mask_document
from torchyard.metrics.text import ROW_KEYS
from torchyard.model.profile import Profile
from torchyard.model.run import Report, Row
from torchyard.trackers.tracker import Experiment, ExperimentEnd, MetricPoint

_MAX_VALUE_CHARS = 500
_MAX_NAME_CHARS = 200
_MAX_NUMBERS = 200  # of one row
# Keys of a profile that are not parameters of the experiment, or are too large for one.
_EXCLUDED_KEYS = frozenset({"name", "notify", "metrics_to", "manifest", "files", "hardware"})
FINEST_FIRST = ("step", "trial", "size", "epoch")  # of a row with several keys, the one by which a curve is drawn
_STEPS_PER_UNIT = 1000  # of a key with fractions
_TOTALS = frozenset([f"{key}s" for key in ROW_KEYS] + [f"last_{key}" for key in ROW_KEYS])


def describe_experiment(profile: Profile, run_name: str, run_id: str, folder: str, link: str) -> Experiment:
    """A run as its trackers record it. `link`: the address of its page; "" if it has none."""
    settings = mask_document(profile.model_dump(mode="json", exclude_unset=True, exclude=set(_EXCLUDED_KEYS)))
    settings["hardware"] = profile.hardware.name if profile.hardware else None
    tags = {"torchyard.run": run_name, "torchyard.profile": profile.name, "torchyard.launcher": profile.launcher}
    if link:
        tags["torchyard.link"] = link
    return Experiment(run_name, run_id, profile.name, folder, dict(_flatten("", settings)), tags)


class RowSteps:
    """Convert the rows of a run to points, in order. A row without a key belongs to the step of the previous row.

    A step is a whole number. From the first fraction on, as in the epochs of transformers' Trainer, it counts
    thousandths, and the key is one of the point's numbers too.
    """

    def __init__(self) -> None:
        self._step = 0
        self._has_fractions = False

    def convert(self, row: Row) -> MetricPoint | None:
        """The point with the row's numbers; None if it has none."""
        keys = [key for key in FINEST_FIRST if _is_number(row.get(key))]
        key = keys[0] if keys else None
        if key:
            position = float(row[key] or 0)
            self._has_fractions = self._has_fractions or not position.is_integer()
            self._step = round(_STEPS_PER_UNIT * position) if self._has_fractions else int(position)
        numbers: dict[str, float] = {}
        for name, value in _select_numbers(row):
            is_step = name == key and not self._has_fractions
            if not is_step and name not in _TOTALS:
                numbers[name] = value
        return MetricPoint(self._step, time.time(), numbers) if numbers else None


def describe_end(report: Report) -> ExperimentEnd:
    """The end of a run, with the numbers of its summary."""
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
        for key, item in value.items():
            yield from _flatten(f"{name}.{key}" if name else str(key), item)
    elif value not in (None, [], "") and name:
        text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        yield name[:_MAX_NAME_CHARS], single_line(text, _MAX_VALUE_CHARS)


def _select_numbers(row: Row) -> list[tuple[str, float]]:
    """The finite numbers of a row by name, at most _MAX_NUMBERS."""
    numbers: list[tuple[str, float]] = []
    for name, value in row.items():
        if isinstance(value, int | float) and _is_number(value) and len(name) <= _MAX_NAME_CHARS:
            numbers.append((name, float(value)))
    return numbers[:_MAX_NUMBERS]


def _is_number(value: object) -> bool:
    """Whether a value is a finite number that fits a float: integers in JSON may be larger than any float."""
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300 and math.isfinite(value)
    )
