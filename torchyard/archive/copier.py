"""Copies a run's folder to the archive while the run continues, on a separate thread.

An error of the store never fails the run: it is reported once, retried, and shown in the report. No step waits for the
store, only the end of the run, after its teardown, for as long as the store accepts the remaining files.
"""

import contextlib
import contextvars
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from torchyard.archive import histories
from torchyard.archive.contents import (
    JOURNAL,
    RECORD,
    Version,
    build_journal_name,
    is_log,
    list_ended_logs,
    list_records,
)
from torchyard.archive.fetch import list_missing_logs, read_run, save_records
from torchyard.archive.log_fetcher import LogFetcher
from torchyard.archive.store import Store, call_bounded, open_store
from torchyard.common.log import get_log
from torchyard.model.errors import ArchiveError, NoArchiveError, RunInUseError
from torchyard.model.profile import Profile
from torchyard.trend.records import HistoryKey, Record, get_history_key

_COPY_INTERVAL_S = 2.0  # between two checks of the folder, which send no request
_MAX_RETRY_PAUSE_S = 60.0  # between two tries while the store cannot be reached


class ArchiveTimeouts(NamedTuple):
    """How long a run waits for its archive, in seconds.

    start_s: of a new run, until the archive answers whether it is one.
    fetch_s: of a process that resumes the run, until the archive answers, and for a log of which nothing arrives.
    fetch_pause_s: between two tries of it.
    settle_s: at the end of the run, for a store that makes no progress.
    settle_pause_s: between two checks of its progress.
    max_settle_s: at the end of the run, for a store that is slow.
    """

    start_s: float = 10.0
    fetch_s: float = 60.0
    fetch_pause_s: float = 2.0
    settle_s: float = 20.0
    settle_pause_s: float = 1.0
    max_settle_s: float = 600.0


_DEFAULT_TIMEOUTS = ArchiveTimeouts()


class RunArchive:
    """Copy one run's folder to the archive while the run continues. Without a store, nothing is done.

    Only the process that owns the run may have one: `check_owner` raises RunInUseError before each pass if it no longer
    does, and then nothing more is copied.

    Threads. `start` starts a daemon thread that copies what has changed, every `_COPY_INTERVAL_S`; `stop` ends it after
    the current pass. `fetch` reads on a thread that writes nothing, because it cannot be ended, and starts another one
    that fetches the logs (LogFetcher). All public methods are called by the run's thread. Nothing is locked: only the
    run's thread writes `_requested_copies`, and only the copying thread `_finished_copies`; it reads the request's
    number before a pass.

    Order of calls. `fetch` first, if the run is resumed; then `start`; `complete_logs` and `settle` at the end, and
    `stop`.

    Errors. Nothing is raised for a store that fails, except by `await_logs`: the first error of a row is logged, every
    pass tries again, and `describe` and `settle` return the error as text for the report.
    """

    def __init__(
        self,
        folder: Path,
        check_owner: Callable[[], None],
        store: Store | None,
        fault: str = "",
        *,
        timeouts: ArchiveTimeouts = _DEFAULT_TIMEOUTS,
    ) -> None:
        """`fault`: why there is no `store` although TORCHYARD_ARCHIVE names one; empty if it names none."""
        self._store = store
        self._folder = folder
        self._check_owner = check_owner
        self._timeouts = timeouts
        self._copied_versions: dict[str, Version] = {}
        self._journal_name = build_journal_name(uuid.uuid4().hex[:12])  # of this process
        self._has_read_archive = False  # whether the files that the archive already has are known
        self._archived_log_sizes: dict[str, int] = {}  # when this process began to copy
        self._log_fetcher: LogFetcher | None = None  # once the records are fetched
        self._has_missed_past = False  # whether the archive may have newer records than this folder
        self._unverified_records: dict[str, Version] = {}  # those of earlier processes, if it may
        self._pending_history: HistoryKey | None = None  # of the history that is still to be fetched
        self._fault = fault  # of the last pass; empty if it succeeded
        self._last_progress_at = time.monotonic()
        self._wake = threading.Event()
        self._pass_finished = threading.Event()
        self._stop_event = threading.Event()
        self._stop_event.set()  # until it is started
        self._requested_copies = 0  # how many complete copies `settle` has requested
        self._finished_copies = 0  # the number of the last one that is finished

    # --- called by the run

    def fetch(self, timeout_s: float | None = None) -> bool:
        """Update the folder with what the archive contains; return False, with a warning, if it does not answer.

        The logs follow later: see `await_logs`. It is tried for `timeout_s` seconds, by default
        `ArchiveTimeouts.fetch_s`.
        """
        if self._store is None:
            return not self._fault
        store = self._store
        deadline = time.monotonic() + (timeout_s or self._timeouts.fetch_s)
        while True:
            try:
                remaining_s = max(deadline - time.monotonic(), self._timeouts.settle_pause_s)
                archived = call_bounded(lambda: read_run(store, self._folder), remaining_s, store.url)
                if save_records(store, self._folder, archived):
                    get_log().info("fetched the records of earlier processes of this run from %s", store.url)
                names = list_missing_logs(self._folder, archived.sizes)
                self._log_fetcher = LogFetcher(store, self._folder, names, self._timeouts.fetch_s)
                self._log_fetcher.start()
                return True
            except (ArchiveError, OSError) as error:  # of the store, or of this machine's disk
                self._report_fault(error)
            if time.monotonic() + self._timeouts.fetch_pause_s > deadline:
                self._has_missed_past = True
                return False
            time.sleep(self._timeouts.fetch_pause_s)

    def await_logs(self, attempt: int) -> None:
        """Wait for those logs of an attempt that `fetch` has found, while they arrive; ArchiveError if they do not."""
        if self._log_fetcher:
            self._log_fetcher.wait(attempt)

    def start(self, profile: Profile | None = None) -> None:
        """Copy from now on, and fetch the history of the profile's runs.

        If `fetch` has failed, only what this process records replaces a record of the archive: the older records of
        this folder may be older than those of another machine, too. OSError if they cannot be listed.
        """
        if self._store is not None:
            if self._has_missed_past:
                self._unverified_records = list_records(self._folder)
            self._pending_history = get_history_key(profile) if profile else None
            run = contextvars.copy_context().run  # the run's log belongs to a context
            self._stop_event.clear()
            threading.Thread(target=run, args=(self._copy_until_stopped,), daemon=True, name="archive").start()

    def describe(self) -> str:
        """Where the run is archived, or what prevents it; empty without an archive."""
        if self._fault or self._store is None:
            return self._fault
        return f"{self._store.url}/{self._folder.name}"

    def settle(self) -> str | None:
        """Copy the remaining files while the store makes progress; return what it lacks, None if it is complete."""
        if self._store is None or self._stop_event.is_set():
            return None
        started_at = time.monotonic()
        self._last_progress_at = started_at
        self._requested_copies += 1
        while not self._is_settled():
            now = time.monotonic()
            is_stuck = now > self._last_progress_at + self._timeouts.settle_s
            if is_stuck or now > started_at + self._timeouts.max_settle_s:
                self._stop_event.set()
                return self._describe_missing()
        return None

    def complete_logs(self) -> None:
        """Wait at the end of the run for the logs that are still fetched; those that do not arrive are a warning."""
        if self._log_fetcher:
            try:
                self._log_fetcher.wait(timeout_s=self._timeouts.max_settle_s)
            except ArchiveError as error:
                get_log().warning("not all logs of the run were fetched: %s", error)

    def stop(self) -> None:
        """Copy and fetch nothing more: another process owns the run, or this one has settled it."""
        if self._log_fetcher:
            self._log_fetcher.stop()
        self._stop_event.set()
        self._wake.set()

    # --- on the archive's own thread

    def _copy_until_stopped(self) -> None:
        pause = _COPY_INTERVAL_S
        while not self._stop_event.is_set():
            self._wake.clear()
            requested_copies = self._requested_copies
            try:
                self._check_owner()
                self._copy_changes()
            except RunInUseError:
                self._stop_event.set()
            except Exception as error:  # no job depends on the archive, so no error of it may end this thread
                self._report_fault(error)
                pause = min(2 * pause, _MAX_RETRY_PAUSE_S)
            else:
                pause = _COPY_INTERVAL_S
                if self._fault:
                    get_log().info("the archive accepts this run again")
                self._fault = ""
                self._finished_copies = requested_copies
            self._pass_finished.set()
            self._wake.wait(pause)

    def _copy_changes(self) -> None:
        """Copy the changed files: the large logs one at a time, and the journal after the files that it mentions."""
        assert self._store is not None
        if self._pending_history:
            histories.fetch_history(self._store, self._folder.parent, self._pending_history)
            self._pending_history = None
        if not self._has_read_archive:
            self._find_archived_files(self._store)
        self._copy_records(self._store)
        while logs := self._select_changed(list_ended_logs(self._folder)):
            name = next(iter(logs))
            self._store.copy(self._folder / name, f"{self._folder.name}/{name}", self._record_progress)
            self._record_copied(name, logs[name])
            self._copy_records(self._store)

    def _find_archived_files(self, store: Store) -> None:
        """Find the files that an earlier process has archived and that are not to be replaced."""
        sizes = store.list_files(self._folder.name)
        self._archived_log_sizes = {name: size for name, size in sizes.items() if is_log(name)}
        for name, version in self._unverified_records.items():
            if name in sizes:
                self._copied_versions[name] = version
        self._has_read_archive = True

    def _copy_records(self, store: Store) -> None:
        journal = (self._folder / JOURNAL).read_bytes() if (self._folder / JOURNAL).exists() else b""
        for name, version in self._select_changed(list_records(self._folder)).items():
            data = (self._folder / name).read_bytes()
            if name == RECORD:
                store.write(histories.build_record_path(Record.model_validate_json(data)), data)
            store.write(f"{self._folder.name}/{name}", data)
            self._record_copied(name, version)
        lines = Version(len(journal), 0)  # it only grows
        if journal and self._copied_versions.get(JOURNAL) != lines:
            store.write(f"{self._folder.name}/{self._journal_name}", journal)
            self._record_copied(JOURNAL, lines)

    def _select_changed(self, versions: dict[str, Version]) -> dict[str, Version]:
        """The files that the archive lacks as they are now; it also lacks a log of which it had a shorter one."""
        changed: dict[str, Version] = {}
        for name, version in versions.items():
            is_longer = version.size > self._archived_log_sizes.get(name, -1)
            if is_longer and self._copied_versions.get(name) != version:
                changed[name] = version
        return changed

    def _record_copied(self, name: str, version: Version) -> None:
        self._copied_versions[name] = version
        self._record_progress()

    def _record_progress(self) -> None:
        self._last_progress_at = time.monotonic()

    def _report_fault(self, error: Exception) -> None:
        """Log an error once, until a pass succeeds."""
        if not self._fault:
            get_log().warning("%s (retrying; the run is not affected)", error)
        self._fault = str(error)

    # --- at the end

    def _is_settled(self) -> bool:
        """Wake the thread and wait a moment for it; return whether it has copied everything, or was stopped."""
        self._pass_finished.clear()
        self._wake.set()
        self._pass_finished.wait(self._timeouts.settle_pause_s)
        is_done = self._finished_copies >= self._requested_copies or self._stop_event.is_set()
        if self._fault and not is_done:
            time.sleep(self._timeouts.settle_pause_s)
        return is_done

    def _describe_missing(self) -> str:
        """How many files the archive does not have as they are now, and why, as a sentence for the report."""
        assert self._store is not None
        names = list(self._select_changed(list_records(self._folder) | list_ended_logs(self._folder)))
        if not names or self._fault:
            names.append(JOURNAL)  # which is not among the records: it is copied last
        log_count = sum(map(is_log, names))
        record_count = len(names) - log_count
        reason = self._fault or "it takes too long"
        counts = f"{record_count} of its records and {log_count} of its logs"
        return f"incomplete: {counts} are only in {self._folder}: {reason}"


@contextlib.contextmanager
def open_run_archive(
    folder: Path,
    check_owner: Callable[[], None],
    *,
    is_resumed: bool,
    timeouts: ArchiveTimeouts = _DEFAULT_TIMEOUTS,
) -> Iterator[RunArchive]:
    """The archive of a run that this process owns: complete at the end, unless another process owns the run by then.

    ArchiveError if TORCHYARD_ARCHIVE is wrong or there is no archive at its URL; for a resumed run that is only a
    warning, because its job may be running.
    """
    archive = _create_run_archive(folder, check_owner, timeouts, is_resumed=is_resumed)
    try:
        yield archive
    except RunInUseError:
        archive.stop()
        raise
    else:
        archive.complete_logs()
    finally:
        missing = archive.settle()
        if missing:
            get_log().warning("the run's archive is %s", missing)
        archive.stop()


def _create_run_archive(
    folder: Path, check_owner: Callable[[], None], timeouts: ArchiveTimeouts, *, is_resumed: bool
) -> RunArchive:
    try:
        store = open_store()
        if store and not is_resumed:
            _require_marker(store, timeouts.start_s)
        return RunArchive(folder, check_owner, store, timeouts=timeouts)
    except ArchiveError as error:
        if not is_resumed:
            raise
        get_log().warning("%s", error)
        return RunArchive(folder, check_owner, None, str(error), timeouts=timeouts)


def _require_marker(store: Store, timeout_s: float) -> None:
    """Raise NoArchiveError if there is no archive at this URL; a store that does not answer is reported later."""
    try:
        call_bounded(store.require_marker, timeout_s, store.url)
    except NoArchiveError:
        raise
    except ArchiveError:
        return
