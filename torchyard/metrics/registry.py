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
from torchyard.metrics.text import ROW_KEYS, find_row_key
from torchyard.metrics.yolov5 import read_yolov5, read_yolov5_line
from torchyard.model.profile import MetricsFormat
from torchyard.model.run import Metrics, Row, RowValue

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


def _read_no_metrics(lines: Iterable[str]) -> Metrics:
    """The metrics of a profile with `metrics: none`."""
    return Metrics()


def _read_no_row(line: str) -> Row:
    return {}


READERS: dict[MetricsFormat, Reader] = {
    "none": _read_no_metrics,
    "json-lines": read_json_lines,
    "yolov5": read_yolov5,
    "mnist": read_mnist,
    "allreduce-bench": read_allreduce_bench,
    "nccl-tests": read_nccl_tests,
}
# Bytes that every line of interest contains, for formats that have such a marker: other lines need not be parsed.
LINE_MARKERS: dict[MetricsFormat, bytes] = {"json-lines": b"{"}
# Readers of one line, used while the job runs.
LINE_READERS: dict[MetricsFormat, LineReader] = {
    "none": _read_no_row,
    "json-lines": parse_object,
    "yolov5": read_yolov5_line,
    "mnist": read_mnist_line,
    "allreduce-bench": read_allreduce_bench_line,
    "nccl-tests": read_nccl_tests_line,
}


class RowProgress(NamedTuple):
    """The progress of a run: `epoch` 3 of 10. `share` is 0 to 1, here 0.3."""

    key: str
    finished: float
    total: float
    share: float


def get_progress(row: Row) -> RowProgress | None:
    """The run's progress according to a row: `epoch` of `epochs`, `step` of `steps`, `trial` of `trials`.

    If epochs are counted from 0, the row has `last_epoch` in place of `epochs`. None if the row has no total, or its
    values cannot be counts.
    """
    for key in ROW_KEYS:
        finished = row.get(key)
        total = row.get(f"{key}s", row.get(f"last_{key}"))
        if not isinstance(finished, int | float) or not isinstance(total, int | float):
            continue
        if finished >= 0 and total > 0:
            with suppress(OverflowError):  # integers in JSON may be larger than any float
                return RowProgress(key, finished, total, min(finished / total, 1.0))
    return None


def describe_row(row: Row) -> str:
    """A row in words, without its total: `epoch 3: accuracy 0.9722, loss 0.1045`."""
    key = find_row_key(row)
    excluded_names = (key, f"{key}s", f"last_{key}")
    values_text = ", ".join(
        f"{name} {format_number(value)}" for name, value in row.items() if name not in excluded_names
    )
    return f"{key} {row[key]}: {values_text}" if key else values_text


def format_number(value: RowValue, digits: int = 4) -> str:
    """A value as text, a float with `digits` significant digits; None is shown as nan, which JSON cannot hold."""
    if value is None:
        return "nan"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
