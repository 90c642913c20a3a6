"""The progress of a running job, from what rank 0 prints, for a log line and a progress bar."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from torchyard.common import escaping
from torchyard.common.secrets import mask_text
from torchyard.common.text import format_duration
from torchyard.metrics.registry import RowProgress, describe_row, get_progress
from torchyard.metrics.text import split_terminal_lines
from torchyard.model.event import RowsRead
from torchyard.model.run import Row

_REPORT_INTERVAL_S = 2.0
_OUTPUT_INTERVAL_S = 60.0  # between two lines about a program whose rows are not read
_MAX_OUTPUT_CHARS = 200
_MAX_LINE_CHARS = 500
_MAX_PROGRESS_CHARS = 60  # of `epoch 3 of 10`, whose key the program chooses


class ProgressUpdate(NamedTuple):
    """The progress since the last update.

    line: the values of the newest row, such as `epoch 3: loss 0.25`.
    done: `epoch 3 of 10`; None if the rows name no total.
    percent: of the work that is done; None likewise.
    remaining_s: the estimated seconds until all of it is done; None if there is no estimate.
    """

    line: str
    done: str | None = None
    percent: float | None = None
    remaining_s: float | None = None

    @property
    def sentence(self) -> str | None:
        """`epoch 3 of 10, about 12 min left`; None if the rows name no total."""
        if self.done is None or self.remaining_s is None:
            return self.done
        return f"{self.done}, about {format_duration(self.remaining_s)} left"


class Progress:
    """Summarize rows that may come fast: at most one update every `report_interval_s`.

    `add` is called at every poll of the job, with or without rows. `flush` gives the last update: the last row may
    follow the previous update too soon for its own.
    """

    def __init__(self, *, report_interval_s: float = _REPORT_INTERVAL_S) -> None:
        self._report_interval_s = report_interval_s
        self._row: Row = {}  # the values since the last update, the newest of each key
        self._next_report_at = 0.0
        # When this process read its first progress, and the share of the work that was done by then.
        self._first_progress: tuple[float, float] | None = None

    def add(self, rows: Sequence[Row]) -> ProgressUpdate | None:
        """Add new rows; return an update if one is due and there is something new, else None."""
        for row in rows:
            self._row |= row
        if time.monotonic() < self._next_report_at:
            return None
        self._next_report_at = time.monotonic() + self._report_interval_s
        return self.flush()

    def flush(self) -> ProgressUpdate | None:
        """The update about what is not reported yet; None if everything is."""
        if not self._row:
            return None
        row = self._row
        self._row = {}
        line = escaping.single_line(describe_row(row), _MAX_LINE_CHARS)
        progress = get_progress(row)
        if progress is None:
            return ProgressUpdate(line)
        done = escaping.single_line(f"{progress.key} {progress.finished} of {progress.total}", _MAX_PROGRESS_CHARS)
        return ProgressUpdate(line, done, round(100 * progress.share, 1), self._estimate_remaining_s(progress))

    def _estimate_remaining_s(self, progress: RowProgress) -> float | None:
        """The seconds left, by the pace since the first progress that this process read; None before and at the end."""
        if self._first_progress is None:
            self._first_progress = (time.monotonic(), progress.share)
        first_seen_at, first_share = self._first_progress
        if not first_share < progress.share < 1:
            return None
        return (time.monotonic() - first_seen_at) / (progress.share - first_share) * (1 - progress.share)


class OutputProgress:
    """Summarize a job from which no rows are read: at most once in `report_interval_s`, what rank 0 did last.

    `add` is called at every poll of the job. The first row ends the summaries, because rows report the progress better.
    """

    def __init__(self, *, report_interval_s: float = _OUTPUT_INTERVAL_S) -> None:
        self._report_interval_s = report_interval_s
        self._next_report_at = time.monotonic() + report_interval_s
        self._last_line = ""
        self._collectives: int | None = None
        self._reported: tuple[str, int | None] = ("", None)
        self._has_rows = False

    def add(self, event: RowsRead) -> str | None:
        """Return a summary if one is due and there is news, else None.

        Such as `rank 0: 1,204 collectives done; its last line: epoch 3`.
        """
        self._has_rows = self._has_rows or bool(event.rows)
        self._last_line = _find_last_line(event.lines) or self._last_line
        if event.collectives is not None:
            self._collectives = event.collectives
        state = (self._last_line, self._collectives)
        if self._has_rows or time.monotonic() < self._next_report_at or state == self._reported:
            return None
        self._next_report_at = time.monotonic() + self._report_interval_s
        self._reported = state
        return self._describe()

    def _describe(self) -> str:
        clauses: list[str] = []
        if self._collectives is not None:
            clauses.append(f"{self._collectives:,} collectives done")
        visible_lines = [line for line in split_terminal_lines([self._last_line]) if line.strip()]
        if visible_lines:
            line = escaping.single_line(mask_text(visible_lines[-1].strip()), _MAX_OUTPUT_CHARS)
            clauses.append(f"its last line: {line}")
        return f"rank 0: {'; '.join(clauses)}"


def _find_last_line(lines: Sequence[str]) -> str:
    """The last line that is not blank; empty if there is none."""
    for line in reversed(lines):
        if line.strip():
            return line
    return ""
