"""Pure readers of what rank 0 printed. A profile's `metrics` names one of READERS."""

import json
from collections.abc import Callable, Iterable
from typing import Any

from tasks.model import Metrics, Row
from tasks.spec import MetricsFormat

ROW_KEYS = ("epoch", "step", "trial", "size")
Reader = Callable[[Iterable[str]], Metrics]


def read_json_lines(lines: Iterable[str]) -> Metrics:
    """One JSON object a line. With an epoch, step, trial or size it is a row; else it is about the whole run.

    A resumed program says its last row again: the later one of the same epoch, step or trial counts.
    """
    rows: dict[Any, Row] = {}
    summary: Row = {}
    for line in lines:
        row = read_object(line)
        key = next((name for name in ROW_KEYS if name in row), None)
        if key:
            rows[key, row[key]] = row
        else:
            summary |= row
    return Metrics(rows=tuple(rows.values()), summary=summary)


def read_object(line: str) -> Row:
    """The plain values of a JSON object; nothing where the line is something else."""
    start = line.find("{")
    if start < 0 or line[:start].strip():
        return {}
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return {str(key): each for key, each in value.items() if isinstance(each, float | int | str | bool)}


def read_nothing(lines: Iterable[str]) -> Metrics:
    """The profile asks for no metrics."""
    return Metrics()


READERS: dict[MetricsFormat, Reader] = {"none": read_nothing, "json-lines": read_json_lines}


def read_progress(row: Row) -> float | None:
    """How far a row says that the run is, 0 to 1: `epoch` of `epochs`, `step` of `steps`, `trial` of `trials`."""
    for key in ROW_KEYS:
        done, total = row.get(key), row.get(key + "s")
        if isinstance(done, int | float) and isinstance(total, int | float) and total > 0:
            return min(done / total, 1.0)
    return None


def describe(row: Row) -> str:
    """A row in words: `epoch 3: accuracy 0.9722, loss 0.1045`."""
    key = next((name for name in ROW_KEYS if name in row), None)
    rest = ", ".join(f"{name} {number(value)}" for name, value in row.items() if name not in (key, f"{key}s"))
    return f"{key} {row[key]}: {rest}" if key else rest


def number(value: float | int | str | bool | None, digits: int = 4) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
