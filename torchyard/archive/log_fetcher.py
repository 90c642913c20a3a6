"""Fetches the archived logs of a resumed run on a separate thread, while the run continues.

Logs may be large and a store slow, so the run decides how to start without them. It waits only for those of an attempt
whose job has ended and whose logs are still to be read, for as long as they arrive.
"""

import contextvars
import math
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from torchyard.archive.fetch import fetch_log
from torchyard.archive.store import Store
from torchyard.common.log import get_log
from torchyard.model.errors import ArchiveError

_RETRY_PAUSE_S = 5.0
_POLL_INTERVAL_S = 0.5  # Prefect ends a run by an exception in this thread, which a longer sleep would delay


class LogFetcher:
    """Fetch a run's archived logs to its folder, those of the last attempt first.

    Threads. `start` starts a daemon thread that fetches one log after the other, and tries again after an error; `stop`
    ends it, and a log that is not complete by then is not in the folder. The run's thread calls all public methods.
    Nothing is locked: only the fetching thread writes the attributes, and `wait` reads them.
    """

    def __init__(self, store: Store, folder: Path, names: Iterable[str], idle_timeout_s: float) -> None:
        """`names`: of the logs, as `list_missing_logs` returns them.

        `idle_timeout_s`: how long `wait` waits for a store from which nothing arrives.
        """
        self._store = store
        self._folder = folder
        self._pending = sorted(names, key=_get_attempt, reverse=True)
        self._idle_timeout_s = idle_timeout_s
        self._error: ArchiveError | None = None  # of the last try
        self._chunk_count = 0  # of the current try
        self._max_chunk_count = 0  # of all tries of the current log
        self._last_progress_at = time.monotonic()
        self._changed = threading.Event()
        self._stop_event = threading.Event()

    def start(self) -> None:
        if self._pending:
            run = contextvars.copy_context().run  # the run's log belongs to a context
            threading.Thread(target=run, args=(self._fetch_logs,), daemon=True, name="archive-logs").start()

    def stop(self) -> None:
        self._stop_event.set()

    def wait(self, attempt: int | None = None, *, timeout_s: float = math.inf) -> None:
        """Wait for the logs of an attempt, or for all; ArchiveError if nothing arrives, or after `timeout_s`."""
        started_at = time.monotonic()
        while any(attempt in (None, _get_attempt(name)) for name in self._pending):
            now = time.monotonic()
            idle_s = now - max(self._last_progress_at, started_at)
            if idle_s > self._idle_timeout_s or now - started_at > timeout_s:
                raise self._error or ArchiveError(self._store.url, f"it sends {self._folder.name} too slowly")
            self._changed.wait(min(_POLL_INTERVAL_S, self._idle_timeout_s))
            self._changed.clear()

    # --- on its own thread

    def _fetch_logs(self) -> None:
        while self._pending and not self._stop_event.is_set():
            self._chunk_count = 0
            try:
                fetch_log(self._store, self._folder, self._pending[0], self._take_chunk)
            except ArchiveError as error:
                self._report_error(error)
                self._stop_event.wait(_RETRY_PAUSE_S)
            else:
                self._pending = self._pending[1:]
                self._error = None
                self._max_chunk_count = 0
                self._last_progress_at = time.monotonic()
                self._changed.set()

    def _take_chunk(self) -> None:
        """Record the progress, unless it only repeats what an earlier try has received. InterruptedError if stopped."""
        if self._stop_event.is_set():
            raise InterruptedError("the run has left this folder")
        self._chunk_count += 1
        if self._chunk_count > self._max_chunk_count:
            self._max_chunk_count = self._chunk_count
            self._last_progress_at = time.monotonic()

    def _report_error(self, error: ArchiveError) -> None:
        """Log an error once, until a log is fetched."""
        if not self._error and not self._stop_event.is_set():
            get_log().warning("%s (retrying; the run is not affected)", error)
        self._error = error


def _get_attempt(name: str) -> int:
    """The number of the attempt whose log it is: `attempt-NUMBER/NODE/log`."""
    return int(name.partition("/")[0].removeprefix("attempt-"))
