"""Feeds a tracker with rows, on a thread of its own: one that fails or hangs delays nothing, and is tried again."""

import contextlib
import contextvars
import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from torchyard.common.escaping import single_line
from torchyard.common.log import get_log
from torchyard.common.private_files import write_private_text
from torchyard.common.secrets import mask_text
from torchyard.trackers.tracker import Experiment, ExperimentEnd, Point, Tracker

_BATCH_INTERVAL_S = 2.0  # rows are collected for so long
_RETRY_INTERVAL_S, _LAST_RETRY_INTERVAL_S = 10.0, 1.0  # after a failure, and after one at the end of the run
_MAX_BATCH, _MAX_WAITING = 500, 20_000  # rows of a batch, and rows that wait for a tracker
_MAX_REASON_CHARS = 300


class _RowMemory:
    """How many rows of the last attempt are written: the next process reads the job's log from its beginning."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.attempt, self.rows = self._read()

    def add(self, attempt: int, rows: int) -> None:
        """Count rows that were written; a disk that is full costs a repeated row, no more."""
        self.attempt, self.rows = attempt, rows + (self.rows if attempt == self.attempt else 0)
        with contextlib.suppress(OSError):
            part = self._path.with_suffix(".part")
            write_private_text(part, json.dumps({"attempt": self.attempt, "rows": self.rows}))
            part.replace(self._path)

    def _read(self) -> tuple[int, int]:
        try:
            found = json.loads(self._path.read_text("utf-8"))
            return int(found["attempt"]), int(found["rows"])
        except (OSError, ValueError, LookupError, TypeError):
            return 0, 0


class TrackerWorker:
    """One tracker of one run. `add` and `finish` are called by the run, everything else is on the feed's thread."""

    def __init__(self, name: str, tracker: Tracker, experiment: Experiment) -> None:
        self._name, self._tracker, self._experiment = name, tracker, experiment
        self._memory = _RowMemory(Path(experiment.folder) / f"metrics-to-{name}.json")
        self._before = self._memory.attempt, self._memory.rows  # by an earlier process
        self._read: dict[int, int] = {}  # rows that this process has read, by attempt
        self._waiting: list[tuple[int, Point]] = []
        self._dropped = 0
        self._end: ExperimentEnd | None = None
        self._is_open, self._is_over, self._why = False, False, ""
        self._news = threading.Condition()
        run = contextvars.copy_context().run  # the run's log belongs to a context
        self._thread = threading.Thread(target=run, args=(self._run,), daemon=True, name=f"metrics to {name}")
        self._thread.start()

    def add(self, attempt: int, point: Point) -> None:
        """Add the next row of an attempt, unless an earlier process has written it."""
        with self._news:
            self._read[attempt] = self._read.get(attempt, 0) + 1
            if (attempt, self._read[attempt]) <= self._before:
                return
            if len(self._waiting) < _MAX_WAITING:
                self._waiting.append((attempt, point))
            else:
                self._dropped += 1

    def finish(self, end: ExperimentEnd, timeout_s: float) -> str:
        """Write what is left, and the end; returns what is not recorded and why, or nothing."""
        with self._news:
            self._end = end
            self._news.notify()
        self._thread.join(timeout_s)
        is_done, self._is_over = self._is_over, True
        with self._news:
            lost = len(self._waiting) + self._dropped
        if is_done and not lost:
            return ""
        what = " and ".join([*([f"{lost} rows"] if lost else []), *([] if is_done else ["the end of the run"])])
        why = self._why or ("too many rows at once" if is_done else f"no answer for {timeout_s:.0f} s")
        said = f"{self._name} has not recorded {what}: {why}"
        get_log().warning("metrics_to: %s", said)
        return said

    def _run(self) -> None:
        pause = 0.0
        while not self._is_over:
            with self._news:
                if self._end is None:
                    self._news.wait(pause)
                end = self._end
            worked = self._try(end)
            pause = _BATCH_INTERVAL_S if worked else _RETRY_INTERVAL_S
            if end and not worked:
                time.sleep(_LAST_RETRY_INTERVAL_S)

    def _try(self, end: ExperimentEnd | None) -> bool:
        """Write what waits; whether that worked."""
        try:
            if not self._is_open:
                self._tracker.open(self._experiment)
                self._is_open = True
            while batch := self._waiting[:_MAX_BATCH]:
                self._tracker.write([point for _, point in batch])
                self._forget(batch)
            if end:
                self._tracker.close(end)
                self._is_over = True
        except Exception as error:  # no job depends on it, and every library has errors of its own
            self._report(error)
            return False
        if self._why:
            self._why = ""
            get_log().info("metrics_to: %s works again", self._name)
        return True

    def _forget(self, batch: Sequence[tuple[int, Point]]) -> None:
        with self._news:
            del self._waiting[: len(batch)]
        for attempt, rows in Counter(attempt for attempt, _ in batch).items():
            self._memory.add(attempt, rows)

    def _report(self, error: Exception) -> None:
        """Warn once, until it works again."""
        why = single_line(mask_text(f"{type(error).__name__}: {error}"), _MAX_REASON_CHARS)
        if not self._why:
            get_log().warning("metrics_to: %s: %s; the job goes on, and it is tried again", self._name, why)
        self._why = why
