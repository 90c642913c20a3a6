"""Send rows to a tracker on a separate thread. A tracker that fails or hangs does not delay the run, and is retried."""

import contextlib
import contextvars
import json
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from torchyard.common.escaping import single_line
from torchyard.common.log import get_log
from torchyard.common.private_files import write_private_text
from torchyard.common.secrets import mask_text
from torchyard.trackers.tracker import Experiment, ExperimentEnd, MetricPoint, Tracker

_BATCH_INTERVAL_S = 2.0  # rows are collected for this long
_RETRY_INTERVAL_S = 10.0  # after a failure
_LAST_RETRY_INTERVAL_S = 1.0  # after a failure at the end of the run
_MAX_BATCH = 500  # rows of a batch
MAX_WAITING_ROWS = 20_000  # rows that wait for a tracker
_MAX_REASON_CHARS = 300


class _Written(NamedTuple):
    """The number of rows of the last attempt that a tracker has."""

    attempt: int
    rows: int


class _Row(NamedTuple):
    """A row that waits for the tracker."""

    attempt: int
    point: MetricPoint


class _WrittenRows:
    """The number of rows of the last attempt that were written, stored on disk.

    The next process of the run needs it, because it reads the job's log from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.written = self._read()

    def add(self, attempt: int, rows: int) -> None:
        """Count rows that were written. If the disk is full, the next process sends these rows again."""
        if attempt == self.written.attempt:
            rows += self.written.rows
        self.written = _Written(attempt, rows)
        with contextlib.suppress(OSError):
            temp_path = self._path.with_suffix(".part")
            write_private_text(temp_path, json.dumps(self.written._asdict()))
            temp_path.replace(self._path)

    def _read(self) -> _Written:
        """The stored count; zero if there is none, or if it is damaged."""
        try:
            data = json.loads(self._path.read_text("utf-8"))
            return _Written(int(data["attempt"]), int(data["rows"]))
        except (OSError, ValueError, LookupError, TypeError):
            return _Written(0, 0)


class TrackerWorker:
    """Send the rows of one run to one tracker.

    The run calls `add` for each row and `finish` at its end. Everything else happens on the worker's daemon thread,
    which ends after the tracker was closed, or once `finish` has given up; both sides share state under `_condition`.
    The tracker is opened before its first row. A call that raises is logged once and repeated after _RETRY_INTERVAL_S,
    so no error reaches the run. Rows that an earlier process has written are skipped; above MAX_WAITING_ROWS rows are
    dropped.
    """

    def __init__(self, name: str, tracker: Tracker, experiment: Experiment) -> None:
        self._name = name
        self._tracker = tracker
        self._experiment = experiment
        self._written_rows = _WrittenRows(Path(experiment.folder) / f"metrics-to-{name}.json")
        self._written_before = self._written_rows.written  # by an earlier process
        self._read_counts: Counter[int] = Counter()  # rows that this process has read, by attempt
        self._waiting: list[_Row] = []
        self._dropped_count = 0
        self._end: ExperimentEnd | None = None
        self._is_open = False
        self._is_finished = False
        self._error: str | None = None  # of the last call; None if it succeeded
        self._condition = threading.Condition()
        run_in_context = contextvars.copy_context().run  # the run's log belongs to a context
        self._thread = threading.Thread(
            target=run_in_context, args=(self._run,), daemon=True, name=f"metrics to {name}"
        )
        self._thread.start()

    def add(self, attempt: int, point: MetricPoint) -> None:
        """Add the next row of an attempt, unless an earlier process has written it."""
        with self._condition:
            self._read_counts[attempt] += 1
            if (attempt, self._read_counts[attempt]) <= self._written_before:
                return
            if len(self._waiting) < MAX_WAITING_ROWS:
                self._waiting.append(_Row(attempt, point))
            else:
                self._dropped_count += 1

    def finish(self, end: ExperimentEnd, timeout_s: float) -> str | None:
        """Write the remaining rows and the end of the run.

        Returns None, or a sentence about what is not recorded after `timeout_s`, and why.
        """
        with self._condition:
            self._end = end
            self._condition.notify()
        self._thread.join(timeout_s)
        is_closed = self._is_finished
        self._is_finished = True
        with self._condition:
            lost_count = len(self._waiting) + self._dropped_count
        if is_closed and not lost_count:
            return None
        missing: list[str] = []
        if lost_count:
            missing.append(f"{lost_count} rows")
        if not is_closed:
            missing.append("the end of the run")
        default_reason = "too many rows at once" if is_closed else f"no answer for {timeout_s:.0f} s"
        sentence = f"{self._name} has not recorded {' and '.join(missing)}: {self._error or default_reason}"
        get_log().warning("metrics_to: %s", sentence)
        return sentence

    def _run(self) -> None:
        pause_s = 0.0
        while not self._is_finished:
            with self._condition:
                if self._end is None:
                    self._condition.wait(pause_s)
                end = self._end
            has_succeeded = self._send(end)
            pause_s = _BATCH_INTERVAL_S if has_succeeded else _RETRY_INTERVAL_S
            if end and not has_succeeded:
                time.sleep(_LAST_RETRY_INTERVAL_S)

    def _send(self, end: ExperimentEnd | None) -> bool:
        """Write the waiting rows, and the end if it is known. Returns whether that succeeded."""
        try:
            if not self._is_open:
                self._tracker.open(self._experiment)
                self._is_open = True
            while batch := self._waiting[:_MAX_BATCH]:
                self._tracker.write([row.point for row in batch])
                self._remove(batch)
            if end:
                self._tracker.close(end)
                self._is_finished = True
        except Exception as error:  # every library raises its own errors, and no job depends on them
            self._report(error)
            return False
        if self._error:
            self._error = None
            get_log().info("metrics_to: %s works again", self._name)
        return True

    def _remove(self, batch: list[_Row]) -> None:
        """Remove rows that were written, and count them on disk."""
        with self._condition:
            del self._waiting[: len(batch)]
        for attempt, count in Counter(row.attempt for row in batch).items():
            self._written_rows.add(attempt, count)

    def _report(self, error: Exception) -> None:
        """Warn about the first of several errors."""
        message = single_line(mask_text(f"{type(error).__name__}: {error}"), _MAX_REASON_CHARS)
        if not self._error:
            get_log().warning("metrics_to: %s: %s (retrying; the job is not affected)", self._name, message)
        self._error = message
