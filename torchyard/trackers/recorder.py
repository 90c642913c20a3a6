"""Writes the rows and the end of a run to a tracker. One that fails or hangs does not delay the run, and is retried."""

import contextlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torchyard.common.log import get_log
from torchyard.common.outbox import Outbox, OutboxSettings
from torchyard.common.private_files import write_private_text
from torchyard.trackers.tracker import Experiment, ExperimentEnd, MetricPoint, Tracker

_SETTINGS = OutboxSettings(collect_s=2.0, retry_s=10.0, last_retry_s=1.0, max_batch=500)
MAX_WAITING_ROWS = 20_000  # rows that wait for a tracker


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


class TrackerRecorder:
    """Write the rows of one run, and its end, to one tracker.

    `add` is called for each row, `end` and `finish` at the end of the run; an outbox calls the tracker on its own
    thread. The tracker is opened before its first row. Each of its calls is repeatable: after an error the outbox
    repeats it. Rows that an earlier process has written are skipped; above `MAX_WAITING_ROWS` rows are dropped.
    """

    def __init__(
        self, name: str, tracker: Tracker, experiment: Experiment, settings: OutboxSettings = _SETTINGS
    ) -> None:
        self._name = name
        self._tracker = tracker
        self._experiment = experiment
        self._written_rows = _WrittenRows(Path(experiment.folder) / f"metrics-to-{name}.json")
        self._written_before = self._written_rows.written  # by an earlier process
        self._read_counts: Counter[int] = Counter()  # rows that this process has read, by attempt
        self._dropped_count = 0
        self._is_open = False
        self._outbox: Outbox[_Row | ExperimentEnd] = Outbox(f"metrics_to: {name}", self._deliver, settings).start()

    def add(self, attempt: int, point: MetricPoint) -> None:
        """Add the next row of an attempt, unless an earlier process has written it."""
        self._read_counts[attempt] += 1
        if (attempt, self._read_counts[attempt]) <= self._written_before:
            return
        if self._outbox.count_waiting() < MAX_WAITING_ROWS:
            self._outbox.put(_Row(attempt, point))
        else:
            self._dropped_count += 1

    def end(self, end: ExperimentEnd) -> None:
        """Write the end of the run after its rows."""
        self._outbox.put(end)

    def finish(self, timeout_s: float) -> str | None:
        """Wait until everything is written, at most `timeout_s`; None, or a sentence about what is not, and why."""
        undelivered = self._outbox.finish(timeout_s)
        items = undelivered.items if undelivered else ()
        row_count = sum(isinstance(item, _Row) for item in items) + self._dropped_count
        missing: list[str] = []
        if row_count:
            missing.append(f"{row_count} rows")
        if any(isinstance(item, ExperimentEnd) for item in items):
            missing.append("the end of the run")
        if not missing:
            return None
        reason = undelivered.reason if undelivered else "too many rows at once"
        sentence = f"{self._name} has not recorded {' and '.join(missing)}: {reason}"
        get_log().warning("metrics_to: %s", sentence)
        return sentence

    def _deliver(self, items: Sequence[_Row | ExperimentEnd]) -> int:
        """Write the rows before the end, or the end; return how many items that are.

        The errors of the tracker are raised.
        """
        if not self._is_open:
            self._tracker.open(self._experiment)
            self._is_open = True
        rows: list[_Row] = []
        for item in items:
            if isinstance(item, ExperimentEnd):
                if not rows:
                    self._tracker.close(item)
                    return 1
                break
            rows.append(item)
        self._tracker.write([row.point for row in rows])
        for attempt, count in Counter(row.attempt for row in rows).items():
            self._written_rows.add(attempt, count)
        return len(rows)
