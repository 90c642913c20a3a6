"""The readers of rank 0's output, by format, which a profile's `metrics` names.

A new format is one module in this folder, its two readers in READERS and LINE_READERS, and its name in MetricsFormat
(torchyard/model/profile.py). Most formats are a TerminalReader (text.py), from whose rows both readers are made. A
format of another package is an entry point that names a LineReader; its rows are the metrics. A pattern in the profile
is read by pattern.py.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from torchyard.common.escaping import single_line
from torchyard.common.extensions import find_extension, list_extensions, load_function
from torchyard.common.log import get_log
from torchyard.metrics.allreduce_bench import read_allreduce_bench, read_allreduce_bench_line
from torchyard.metrics.huggingface import HuggingFaceReader
from torchyard.metrics.imagenet import ImageNetReader
from torchyard.metrics.json_lines import parse_row, read_json_lines
from torchyard.metrics.lightning import LightningReader
from torchyard.metrics.mnist import read_mnist, read_mnist_line
from torchyard.metrics.nccl_tests import read_nccl_tests, read_nccl_tests_line
from torchyard.metrics.pattern import PatternReader, find_pattern_problem, read_pattern
from torchyard.metrics.rows import Rows, build_metrics
from torchyard.metrics.step_lines import StepLineReader
from torchyard.metrics.text import ROW_KEYS, drop_non_finite, find_row_key, split_terminal_lines
from torchyard.metrics.yolov5 import Yolov5LineReader, read_yolov5
from torchyard.model.errors import ExtensionError
from torchyard.model.finding import Finding
from torchyard.model.profile import MetricsPattern, MetricsSetting
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
    "find_metrics_problem",
    "format_number",
    "get_line_reader",
    "get_progress",
    "get_reader",
    "parse_row",
    "read_json_lines",
]

Reader = Callable[[Iterable[str]], Metrics]
LineReader = Callable[[str], Row]
_MAX_WARNING_CHARS = 300
_TOTAL_NAMES = frozenset({"last_epoch"} | {f"{key}s" for key in ROW_KEYS})
_POSITION_NAMES = frozenset({"batch", "batches", "last_epoch"})


def _read_no_metrics(lines: Iterable[str]) -> Metrics:
    """The metrics of a profile with `metrics: none`."""
    return Metrics()


def _read_no_row(line: str) -> Row:
    return {}


def _read_by_line(create_reader: Callable[[], LineReader], lines: Iterable[str]) -> Metrics:
    """The metrics that a line reader reads from the lines that a terminal shows."""
    return _read_rows(create_reader(), split_terminal_lines(lines))


READERS: dict[str, Reader] = {
    "none": _read_no_metrics,
    "json-lines": read_json_lines,
    "step-lines": partial(_read_by_line, StepLineReader),
    "huggingface": partial(_read_by_line, HuggingFaceReader),
    "lightning": partial(_read_by_line, LightningReader),
    "imagenet": partial(_read_by_line, ImageNetReader),
    "yolov5": read_yolov5,
    "mnist": read_mnist,
    "allreduce-bench": read_allreduce_bench,
    "nccl-tests": read_nccl_tests,
}
# Bytes that every line of interest contains, for formats that have such a marker: other lines need not be parsed.
LINE_MARKERS: dict[str, bytes] = {"json-lines": b"{"}
# What creates the reader of one line, used while the job runs: it may remember earlier lines of the same output.
LINE_READERS: dict[str, Callable[[], LineReader]] = {
    "none": lambda: _read_no_row,
    "json-lines": lambda: parse_row,
    "step-lines": StepLineReader,
    "huggingface": HuggingFaceReader,
    "lightning": LightningReader,
    "imagenet": ImageNetReader,
    "yolov5": Yolov5LineReader,
    "mnist": lambda: read_mnist_line,
    "allreduce-bench": lambda: read_allreduce_bench_line,
    "nccl-tests": lambda: read_nccl_tests_line,
}


def find_metrics_problem(metrics: MetricsSetting) -> Finding | None:
    """Why metrics of this format cannot be read, and what to do; None if they can."""
    if isinstance(metrics, MetricsPattern):
        problem = find_pattern_problem(metrics.pattern)
        return Finding("metrics.pattern", problem) if problem else None
    if metrics in READERS:
        return None
    try:
        _load_line_reader(metrics)
    except ExtensionError as error:
        return Finding("metrics", error.problem, error.remedy)
    return None


def get_reader(metrics: MetricsSetting) -> Reader:
    """The reader of a whole output. One that can no longer be loaded reads nothing, with a warning in the log."""
    if isinstance(metrics, MetricsPattern):
        return partial(read_pattern, metrics.pattern)
    return READERS.get(metrics) or partial(_read_rows, get_line_reader(metrics))


def get_line_reader(metrics: MetricsSetting) -> LineReader:
    """A new reader for the lines of one output, in order.

    One that can no longer be loaded reads nothing, with a warning in the log.
    """
    if isinstance(metrics, MetricsPattern):
        return PatternReader(metrics.pattern)
    create_reader = LINE_READERS.get(metrics)
    if create_reader:
        return create_reader()
    try:
        return _GuardedLineReader(metrics, _load_line_reader(metrics))
    except ExtensionError as error:  # the job does not depend on its metrics
        get_log().warning("metrics: %s", error)
        return _read_no_row


def _load_line_reader(name: str) -> Callable[[str], object]:
    """The line reader of another package. ExtensionError if there is none of this name, or if it cannot be used."""
    extension = find_extension("metrics", name)
    if extension is None:
        names = [extension.name for extension in list_extensions("metrics")]
        choices = ", ".join(dict.fromkeys([*READERS, *names]))
        raise ExtensionError(f"must be one of {choices}, not {name}", "or install the package that has it")
    reader: Callable[[str], object] = load_function(extension, "returns the row of a line")
    return reader


class _GuardedLineReader:
    """A line reader of another package. A line for which it raises, or returns something else, has no row.

    The first such line is logged.
    """

    def __init__(self, name: str, read_line: Callable[[str], object]) -> None:
        self._name = name
        self._read_line = read_line
        self._has_warned = False

    def __call__(self, line: str) -> Row:
        try:
            row = self._read_line(line)
        except Exception as error:  # the reader is not torchyard's, and no job depends on its metrics
            self._warn(line, f"{type(error).__name__}: {error}")
            return {}
        if not row:
            return {}
        if not isinstance(row, dict) or not all(_is_field(key, value) for key, value in row.items()):
            self._warn(line, f"{row!r} is not a dict of numbers, texts and booleans by name")
            return {}
        return {key: drop_non_finite(value) for key, value in row.items()}

    def _warn(self, line: str, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            text = single_line(f"{reason}, for the line {line!r}", _MAX_WARNING_CHARS)
            get_log().warning("metrics: the reader %s failed: %s", self._name, text)


def _is_field(key: object, value: object) -> bool:
    """Whether a field of a row can be stored and shown."""
    return isinstance(key, str) and isinstance(value, float | int | str | bool | None)


def _read_rows(read_line: LineReader, lines: Iterable[str]) -> Metrics:
    """The metrics that a line reader reads: its rows, those with the same epoch, step, trial or size merged.

    A row without one belongs to the summary. The position inside an epoch is left out: at its end it is the same in
    all rows.
    """
    rows = Rows()
    summary: Row = {}
    for line in lines:
        row = {name: value for name, value in read_line(line).items() if name not in _POSITION_NAMES}
        key = find_row_key(row)
        if key:
            earlier = rows.get((key, row[key])) or {}
            rows.put((key, row[key]), earlier | row)
        else:
            summary |= row
    return build_metrics(rows, summary)


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
    """A row in words, without its totals: `epoch 3: accuracy 0.9722, loss 0.1045`."""
    key = find_row_key(row)
    values_text = ", ".join(
        f"{name} {format_number(value)}" for name, value in row.items() if name != key and name not in _TOTAL_NAMES
    )
    return f"{key} {row[key]}: {values_text}" if key else values_text


def format_number(value: RowValue, digits: int = 4) -> str:
    """A value as text, a float with `digits` significant digits; None is shown as nan, which JSON cannot hold."""
    if value is None:
        return "nan"
    return f"{value:.{digits}g}" if isinstance(value, float) else str(value)
