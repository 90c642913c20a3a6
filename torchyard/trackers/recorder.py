"""Writes the rows and the end of a run to a tracker. One that fails or hangs does not delay the run, and is retried."""

import contextlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torchyard.common.outbox import Outbox, OutboxSettings
from torchyard.common.private_files import write_private_text
from torchyard.trackers.tracker import Experiment, ExperimentEnd, MetricPoint, Tracker

_SETTINGS = OutboxSettings(collect_s=2.0, retry_s=10.0, last_retry_s=1.0, max_batch=500)
MAX_WAITING_ROWS = 20_000  # rows that wait for a tracker


class RowNumber(NamedTuple):
    """The place of a row in its run: the attempt, and its number there, from 1."""

    attempt: int
    row: int


class NumberedRow(NamedTuple):
    """A row of an attempt, which waits for a tracker."""

    number: RowNumber
    point: MetricPoint


class Unrecorded(NamedTuple):
    """What a tracker has not recorded when its run ended.

    rows: may be delivered later; those that were dropped are not among them.
    end: None if it was recorded.
    sentence: what is missing, and why.
    """

    rows: tuple[NumberedRow, ...]
    end: ExperimentEnd | None
    sentence: str


class _LastWritten:
    """The number of the last row that was written, stored on disk.

    The next process of the run needs it, because it reads the job's log from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.number = self._read()

    def store(self, number: RowNumber) -> None:
        """Store the number. If the disk is full, the next process sends these rows again."""
        self.number = number
        with contextlib.suppress(OSError):
            write_private_text(self._path, json.dumps(number._asdict()))

    def _read(self) -> RowNumber:
        """The stored number; zero if there is none, or if it is damaged."""
        try:
            data = json.loads(self._path.read_text("utf-8"))
            return RowNumber(int(data["attempt"]), int(data["row"]))
        except (OSError, ValueError, LookupError, TypeError):
            return RowNumber(0, 0)


class TrackerRecorder:
    """Write the rows of one run, and its end, to one tracker.

    `add` is called for each row, `end` and `finish` at the end of the run; an outbox calls the tracker on its own
    thread. The tracker is opened before its first row. Each of its calls is repeatable: after an error the outbox
    repeats it. Rows that an earlier process has written or kept are skipped; above `MAX_WAITING_ROWS` rows are dropped.
    """

    def __init__(
        self,
        name: str,
        tracker: Tracker,
        experiment: Experiment,
        settings: OutboxSettings = _SETTINGS,
        late_rows: Sequence[NumberedRow] = (),
    ) -> None:
        """`late_rows`: those that an earlier process of the run could not deliver, in order."""
        self._name = name
        self._tracker = tracker
        self._experiment = experiment
        self._last_written = _LastWritten(Path(experiment.folder) / f"metrics-to-{name}.json")
        self._last_known = self._last_written.number  # the last row that needs not be read again
        self._read_counts: Counter[int] = Counter()  # rows that this process has read, by attempt
        self._dropped_count = 0
        self._is_open = False
        self._outbox: Outbox[NumberedRow | ExperimentEnd] = Outbox(f"metrics_to: {name}", self._deliver, settings)
        for row in late_rows:
            if row.number > self._last_known:
                self._last_known = row.number
                self._outbox.put(row)
        self._outbox.start()

    def add(self, attempt: int, point: MetricPoint) -> None:
        """Add the next row of an attempt, unless an earlier process has written or kept it."""
        self._read_counts[attempt] += 1
        number = RowNumber(attempt, self._read_counts[attempt])
        if number <= self._last_known:
            return
        if self._outbox.count_waiting() < MAX_WAITING_ROWS:
            self._outbox.put(NumberedRow(number, point))
        else:
            self._dropped_count += 1

    def end(self, end: ExperimentEnd) -> None:
        """Write the end of the run after its rows."""
        self._outbox.put(end)

    def finish(self, timeout_s: float) -> Unrecorded | None:
        """Wait until everything is written, at most `timeout_s`; None, or what is not."""
        undelivered = self._outbox.finish(timeout_s)
        rows: list[NumberedRow] = []
        end: ExperimentEnd | None = None
        for item in undelivered.items if undelivered else ():
            if isinstance(item, ExperimentEnd):
                end = item
            else:
                rows.append(item)
        missing: list[str] = []
        row_count = len(rows) + self._dropped_count
        if row_count:
            missing.append(f"{row_count} rows")
        if end:
            missing.append("the end of the run")
        if not missing:
            return None
        reason = undelivered.reason if undelivered else "too many rows at once"
        return Unrecorded(tuple(rows), end, f"{self._name} has not recorded {' and '.join(missing)}: {reason}")

    def _deliver(self, items: Sequence[NumberedRow | ExperimentEnd]) -> int:
        """Write the rows before the end, or the end; return how many items that are.

        The errors of the tracker are raised.
        """
        if not self._is_open:
            self._tracker.open(self._experiment)
            self._is_open = True
        rows: list[NumberedRow] = []
        for item in items:
            if isinstance(item, ExperimentEnd):
                if not rows:
                    self._tracker.close(item)
                    return 1
                break
            rows.append(item)
        self._tracker.write([row.point for row in rows])
        self._last_written.store(rows[-1].number)
        return len(rows)
