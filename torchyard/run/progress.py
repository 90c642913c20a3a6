"""The progress of a running job for its user: rank 0's metrics as log lines and curves, and the remaining time."""

import time
from collections.abc import Callable, Sequence

from torchyard.common import escaping
from torchyard.common.log import get_log
from torchyard.metrics.registry import LINE_READERS, RowProgress, describe_row, get_progress
from torchyard.metrics.rows import Rows
from torchyard.model.profile import MetricsFormat
from torchyard.model.run import Row
from torchyard.pages.report import render_metrics_page
from torchyard.pages.text import format_duration
from torchyard.run.reporter import Reporter

_REPORT_INTERVAL_S = 2.0
_PAGE_INTERVAL_S = 15.0  # between two drawings of the curves, each of which takes a third of a second
_MAX_LINE_CHARS = 500
_MAX_PROGRESS_CHARS = 60  # of `epoch 3 of 10`, whose key the program chooses


class Progress:
    """Report the rows of rank 0's output: as a log line, as the job's progress in percent, and as a page of curves.

    `add_lines` is called at every poll of the job. Each row is passed to `on_row` at once. A log line and the progress
    follow every `report_interval_s`, the page every `_PAGE_INTERVAL_S`. `close` reports the last row.
    """

    def __init__(
        self,
        name: str,
        metrics: MetricsFormat,
        reporter: Reporter,
        on_row: Callable[[Row], object] | None = None,
        *,
        report_interval_s: float = _REPORT_INTERVAL_S,
    ) -> None:
        self._name = name
        self._parse_row = LINE_READERS[metrics]
        self._reporter = reporter
        self._on_row = on_row
        self._report_interval_s = report_interval_s
        self._row: Row = {}  # the values since the last report, the newest of each key
        self._rows = Rows()
        self._next_report_at = 0.0
        self._next_page_at = time.monotonic() + _PAGE_INTERVAL_S  # a short job's curves are in its report
        # When this process read its first progress, and the share of the work that was done by then.
        self._first_progress: tuple[float, float] | None = None

    def add_lines(self, lines: Sequence[str]) -> None:
        """Read the rows among rank 0's new lines."""
        for line in lines:
            row = self._parse_row(line)
            if not row:
                continue
            self._row |= row
            self._rows.add(row)
            if self._on_row:
                self._on_row(row)
        if time.monotonic() >= self._next_report_at:
            self._next_report_at = time.monotonic() + self._report_interval_s
            self.close()

    def close(self) -> None:
        """Report what has not been reported yet: the last row may follow the previous report too soon for its own."""
        if not self._row:
            return
        get_log().info("%s", escaping.single_line(describe_row(self._row), _MAX_LINE_CHARS))
        progress = get_progress(self._row)
        if progress is not None:
            self._reporter.show_progress(self._describe(progress), round(100 * progress.share, 1))
        self._row = {}
        if time.monotonic() >= self._next_page_at:
            self._next_page_at = time.monotonic() + _PAGE_INTERVAL_S
            name = self._name
            rows = self._rows.all()
            self._reporter.show_page("metrics", lambda: render_metrics_page(name, rows))

    def _describe(self, progress: RowProgress) -> str:
        """`epoch 3 of 10, about 12 min left`, by the pace since the first progress that this process read."""
        text = escaping.single_line(f"{progress.key} {progress.finished} of {progress.total}", _MAX_PROGRESS_CHARS)
        if self._first_progress is None:
            self._first_progress = (time.monotonic(), progress.share)
        first_seen_at, first_share = self._first_progress
        if not first_share < progress.share < 1:
            return text
        remaining_s = (time.monotonic() - first_seen_at) / (progress.share - first_share) * (1 - progress.share)
        return f"{text}, about {format_duration(remaining_s)} left"
