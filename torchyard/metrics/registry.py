"""The readers of rank 0's output, by format. A profile's `metrics` names one of READERS.

A new format is one module in this folder, its two readers in READERS and LINE_READERS, and its name in MetricsFormat
(torchyard/model/profile.py).
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from torchyard.metrics.allreduce_bench import read_allreduce_bench, read_allreduce_bench_line
from torchyard.metrics.json_lines import parse_object, read_json_lines
from torchyard.metrics.mnist import read_mnist, read_mnist_line
from torchyard.metrics.nccl_tests import read_nccl_tests, read_nccl_tests_line
from torchyard.metrics.text import ROW_KEYS
from torchyard.metrics.yolov5 import read_yolov5, read_yolov5_line
from torchyard.model.profile import MetricsFormat
from torchyard.model.run import Metrics, Row

__all__ = [
    "LINE_MARKERS",
    "LINE_READERS",
    "READERS",
    "ROW_KEYS",
    "LineReader",
    "Reader",
    "RowProgress",
    "describe_row",
    "format_number",
    "get_progress",
    "parse_object",
    "read_json_lines",
]

Reader = Callable[[Iterable[str]], Metrics]
LineReader = Callable[[str], Row]


def _read_nothing(lines: Iterable[str]) -> Metrics:
    """The profile asks for no metrics."""
    return Metrics()


READERS: dict[MetricsFormat, Reader] = {
    "none": _read_nothing,
    "json-lines": read_json_lines,
    "yolov5": read_yolov5,
    "mnist": read_mnist,
    "allreduce-bench": read_allreduce_bench,
    "nccl-tests": read_nccl_tests,
}
# What every line of interest contains, for formats that have such a mark.
LINE_MARKERS: dict[MetricsFormat, bytes] = {"json-lines": b"{"}
# Readers of one line, used while the job runs.
LINE_READERS: dict[MetricsFormat, LineReader] = {
    "none": lambda line: {},
    "json-lines": parse_object,
    "yolov5": read_yolov5_line,
    "mnist": read_mnist_line,
    "allreduce-bench": read_allreduce_bench_line,
    "nccl-tests": read_nccl_tests_line,
}


class RowProgress(NamedTuple):
    """How far a run is: `epoch` 3 of 10, a share of 0.3."""

    key: str
    finished: float
    total: float
    share: float


def get_progress(row: Row) -> RowProgress | None:
    """The run's progress according to a row: `epoch` of `epochs`, `step` of `steps`, `trial` of `trials`.

    If epochs are counted from 0, the row has `last_epoch` in place of `epochs`.
    """
    for key in ROW_KEYS:
        done, total = row.get(key), row.get(f"{key}s", row.get(f"last_{key}"))
        if isinstance(done, int | float) and isinstance(total, int | float) and total > 0 <= done:
            with suppress(OverflowError):  # JSON's integers may be longer than any float
                return RowProgress(key, done, total, min(done / total, 1.0))
    return None


def describe_row(row: Row) -> str:
    """A row in words: `epoch 3: accuracy 0.9722, loss 0.1045`."""
    key = next((name for name in ROW_KEYS if name in row), None)
    rest = ", ".join(
        f"{name} {format_number(value)}" for name, value in row.items() if name not in (key, f"{key}s", f"last_{key}")
    )
    return f"{key} {row[key]}: {rest}" if key else rest


def format_number(value: float | int | str | bool | None, digits: int = 4) -> str:
    """A value as text; None stands for nan and inf, which JSON cannot hold."""
    if value is None:
        return "nan"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
