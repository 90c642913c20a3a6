"""What a user sees while the job runs: rank 0's measurements as log lines, and the percentage that is done."""

import time

from torchyard.common import escaping
from torchyard.common.log import get_log
from torchyard.metrics.registry import LINE_READERS, describe_row, read_progress
from torchyard.model.profile import MetricsFormat
from torchyard.model.run import Row
from torchyard.run.reporter import Reporter

_REPORT_INTERVAL_S = 2.0
_MAX_LINE_CHARS = 500  # characters of a line


class Progress:
    """Called by `wait` with rank 0's new lines. Its own failures never affect the job.

    Every two seconds it checks whether the run was cancelled, which ends the wait.
    """

    def __init__(self, name: str, metrics: MetricsFormat, reporter: Reporter) -> None:
        self._name, self._read, self._reporter = name, LINE_READERS[metrics], reporter
        self._row: Row = {}
        self._next = 0.0

    def __call__(self, lines: list[str]) -> None:
        for line in lines:
            self._row = {**self._row, **self._read(line)}
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _REPORT_INTERVAL_S
            self._reporter.check_cancelled()
            self.close()

    def close(self) -> None:
        """Report what has not been reported yet: the last row may come less than two seconds after the one before."""
        if self._row:
            get_log().info("%s", escaping.single_line(describe_row(self._row), _MAX_LINE_CHARS))
            if (done := read_progress(self._row)) is not None:
                self._reporter.show_progress(self._name, round(100 * done, 1))
            self._row = {}
