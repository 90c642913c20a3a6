"""What a user sees while the job runs: rank 0's measurements as log lines and curves, and how much is left."""

import time
from collections.abc import Callable

from torchyard.common import escaping
from torchyard.common.log import get_log
from torchyard.metrics.registry import LINE_READERS, RowProgress, describe_row, read_progress
from torchyard.metrics.rows import Rows
from torchyard.model.profile import MetricsFormat
from torchyard.model.run import Row
from torchyard.pages.report import render_metrics_page
from torchyard.pages.text import format_duration
from torchyard.run.reporter import Reporter

_REPORT_INTERVAL_S = 2.0
_PAGE_INTERVAL_S = 15.0  # between two drawings of the curves, each of which takes a third of a second
_MAX_LINE_CHARS, _MAX_NAME_CHARS = 500, 60  # characters of a line, and of what names how much is done


class Progress:
    """Called by `wait` with rank 0's new lines; passes each row on. Its own failures never affect the job.

    Every two seconds it checks whether the run was cancelled, which ends the wait.
    """

    def __init__(
        self, name: str, metrics: MetricsFormat, reporter: Reporter, on_row: Callable[[Row], object] = lambda _: None
    ) -> None:
        self._name = name
        self._parse_row = LINE_READERS[metrics]
        self._reporter = reporter
        self._on_row = on_row
        self._row: Row = {}
        self._rows = Rows()
        self._next_report_at = 0.0
        self._next_page_at = time.monotonic() + _PAGE_INTERVAL_S  # a short job's curves are in its report
        self._first_progress: tuple[float, float] | None = (
            None  # when the first progress was seen, and how much that was
        )

    def __call__(self, lines: list[str]) -> None:
        for line in lines:
            if row := self._parse_row(line):
                self._row = {**self._row, **row}
                self._rows.add(row)
                self._on_row(row)
        if time.monotonic() >= self._next_report_at:
            self._next_report_at = time.monotonic() + _REPORT_INTERVAL_S
            self._reporter.check_cancelled()
            self.close()

    def close(self) -> None:
        """Report what has not been reported yet: the last row may come less than two seconds after the one before."""
        if self._row:
            get_log().info("%s", escaping.single_line(describe_row(self._row), _MAX_LINE_CHARS))
            if (progress := read_progress(self._row)) is not None:
                self._reporter.show_progress(self._describe(progress), round(100 * progress.share, 1))
            self._row = {}
            if time.monotonic() >= self._next_page_at:
                self._next_page_at = time.monotonic() + _PAGE_INTERVAL_S
                name = self._name
                rows = self._rows.all()
                self._reporter.show_page("metrics", lambda: render_metrics_page(name, rows))

    def _describe(self, progress: RowProgress) -> str:
        """`epoch 3 of 10, about 12 min left`, by the pace since the first progress that this process saw."""
        text = escaping.single_line(f"{progress.key} {progress.done} of {progress.total}", _MAX_NAME_CHARS)
        first_seen_at, first_share = self._first_progress = self._first_progress or (time.monotonic(), progress.share)
        if not first_share < progress.share < 1:
            return text
        remaining_s = (time.monotonic() - first_seen_at) / (progress.share - first_share) * (1 - progress.share)
        return f"{text}, about {format_duration(remaining_s)} left"
