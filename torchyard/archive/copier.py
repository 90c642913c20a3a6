"""Copies a run's folder to the archive while the run goes on, on a thread of its own.

The store's trouble is this process's own: it is reported once, tried again, and shown in the report. No step waits for
it; the end of the run does, after its teardown, for as long as the store takes what is left.
"""

import contextlib
import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from torchyard.archive import histories
from torchyard.archive.contents import JOURNAL, RECORD, Version, is_log, list_ended_logs, list_records, merge_journals
from torchyard.archive.fetch import fetch_run
from torchyard.archive.store import Store, call_bounded, open_store
from torchyard.common.log import get_log
from torchyard.common.private_files import write_private_text
from torchyard.model.errors import ArchiveError, RunInUseError
from torchyard.model.profile import Profile
from torchyard.trend.records import HistoryKey, Record, key_of

_COPY_INTERVAL_S = 2.0  # between two looks at the folder, which cost no request
_MAX_RETRY_PAUSE_S = 60.0  # between two tries while the store is away
_FETCH_TIMEOUT_S = 60.0  # how long a process that resumes the run waits for the archive
_FETCH_PAUSE_S = 2.0
_SETTLE_PAUSE_S = 1.0
_SETTLE_TIMEOUT_S = 20.0  # how long the end of a run waits for a store that takes nothing
_MAX_SETTLE_S = 600.0  # and for one that is slow


class RunArchive:
    """One run in the archive. Only the process that owns the run may have one; without a store it does nothing.

    fault   why there is no store although there should be one
    """

    def __init__(self, folder: Path, check_owner: Callable[[], None], store: Store | None, fault: str = "") -> None:
        self._store, self._folder, self._check_owner = store, folder, check_owner
        self._copied: dict[str, Version] = {}
        self._before: bytes | None = None  # the journal that was in the archive, once that is known
        self._key: HistoryKey | None = None  # of the history that is still to be fetched
        self._fault, self._progress_at = fault, time.monotonic()
        self._wake, self._looked, self._over = threading.Event(), threading.Event(), threading.Event()
        self._over.set()  # until it is started
        self._asked = self._answered = 0  # complete copies: how many were asked for, and which one is done

    # --- called by the run

    def fetch(self, timeout_s: float | None = None) -> bool:
        """Bring the folder up to what the archive has. False if the archive does not say, which is reported."""
        if self._store is None:
            return not self._fault
        store, until = self._store, time.monotonic() + (timeout_s or _FETCH_TIMEOUT_S)
        while True:
            try:
                left = max(until - time.monotonic(), _SETTLE_PAUSE_S)
                if call_bounded(lambda: fetch_run(store, self._folder), left, store.url):
                    get_log().info("what earlier processes of this run have recorded comes from %s", store.url)
                return True
            except ArchiveError as error:
                self._report(error)
            if time.monotonic() + _FETCH_PAUSE_S > until:
                return False
            time.sleep(_FETCH_PAUSE_S)

    def start(self, profile: Profile | None = None) -> None:
        """Copy from now on, and fetch the history of the profile's runs."""
        if self._store is not None:
            self._key = key_of(profile) if profile else None
            run = contextvars.copy_context().run  # the run's log belongs to a context
            self._over.clear()
            threading.Thread(target=run, args=(self._copy_until_over,), daemon=True, name="archive").start()

    def keep_record(self, record: Record) -> None:
        """Let the archive have the run's numbers."""
        if self._store is not None:
            with contextlib.suppress(OSError):  # a full disk is reported by what needs it more
                write_private_text(self._folder / RECORD, record.model_dump_json(exclude_defaults=True) + "\n")

    def describe(self) -> str:
        """Where the run is archived, or what prevents it; empty without an archive."""
        return self._fault or (f"{self._store.url}/{self._folder.name}" if self._store else "")

    def settle(self) -> str:
        """Copy what is left, as long as the store takes it; returns what is missing there, empty if nothing is."""
        if self._store is None or self._over.is_set():
            return ""
        self._progress_at = began = time.monotonic()
        self._asked += 1
        while not self._is_settled():
            now = time.monotonic()
            if now > self._progress_at + _SETTLE_TIMEOUT_S or now > began + _MAX_SETTLE_S:
                self._over.set()
                return self._describe_missing()
        return ""

    def drop(self) -> None:
        """Copy nothing more: another process owns the run, or this one has settled it."""
        self._over.set()
        self._wake.set()

    # --- on the archive's own thread

    def _copy_until_over(self) -> None:
        pause = _COPY_INTERVAL_S
        while not self._over.is_set():
            self._wake.clear()
            asked = self._asked
            try:
                self._check_owner()
                self._copy_due()
            except RunInUseError:
                self._over.set()
            except Exception as error:  # whatever it is, no job depends on this
                self._report(error)
                pause = min(2 * pause, _MAX_RETRY_PAUSE_S)
            else:
                pause = _COPY_INTERVAL_S
                if self._fault:
                    get_log().info("the archive takes this run again")
                self._fault, self._answered = "", asked
            self._looked.set()
            self._wake.wait(pause)

    def _copy_due(self) -> None:
        """Copy what has changed: the journal after what it speaks of, and the large logs one at a time."""
        assert self._store is not None
        if self._key:
            histories.fetch_history(self._store, self._folder.parent, self._key)
            self._key = None
        if self._before is None:
            self._look_first(self._store)
        self._copy_records(self._store)
        while logs := self._list_due(list_ended_logs(self._folder)):
            name = next(iter(logs))
            self._store.copy(self._folder / name, f"{self._folder.name}/{name}", self._note_progress)
            self._note_copied(name, logs[name])
            self._copy_records(self._store)

    def _look_first(self, store: Store) -> None:
        """Learn which lines of the journal the archive has, and which logs need not be copied again."""
        found = store.list_files(self._folder.name)
        logs = list_ended_logs(self._folder)
        self._copied |= {name: version for name, version in logs.items() if found.get(name) == version.size}
        self._before = store.read(f"{self._folder.name}/{JOURNAL}") if JOURNAL in found else b""

    def _copy_records(self, store: Store) -> None:
        journal = (self._folder / JOURNAL).read_bytes() if (self._folder / JOURNAL).exists() else b""
        for name, version in self._list_due(list_records(self._folder)).items():
            data = (self._folder / name).read_bytes()
            if name == RECORD:
                store.write(histories.name_record(Record.model_validate_json(data)), data)
            store.write(f"{self._folder.name}/{name}", data)
            self._note_copied(name, version)
        lines = Version(len(journal), 0)  # it only grows
        if journal and self._copied.get(JOURNAL) != lines:
            store.write(f"{self._folder.name}/{JOURNAL}", merge_journals(journal, self._before or b""))
            self._note_copied(JOURNAL, lines)

    def _list_due(self, found: dict[str, Version]) -> dict[str, Version]:
        return {name: version for name, version in found.items() if self._copied.get(name) != version}

    def _note_copied(self, name: str, version: Version) -> None:
        self._copied[name] = version
        self._note_progress()

    def _note_progress(self) -> None:
        self._progress_at = time.monotonic()

    def _report(self, error: Exception) -> None:
        """Report a fault once, however often it comes back while it lasts."""
        if not self._fault:
            get_log().warning("%s; the run goes on, and it is tried again", error)
        self._fault = str(error)

    # --- at the end

    def _is_settled(self) -> bool:
        """Wait a moment for the thread, or have it try again; whether it has copied all that was there when asked."""
        self._looked.clear()
        self._wake.set()
        self._looked.wait(_SETTLE_PAUSE_S)
        done = self._answered >= self._asked or self._over.is_set()
        if self._fault and not done:
            time.sleep(_SETTLE_PAUSE_S)
        return done

    def _describe_missing(self) -> str:
        """Which files the archive lacks, as far as that is known here."""
        assert self._store is not None
        due = self._list_due({**list_records(self._folder), **list_ended_logs(self._folder)})
        names = [*due, *([JOURNAL] if not due or self._fault else [])]
        logs = sum(map(is_log, names))
        why = self._fault or "it takes too long"
        return (
            f"incomplete: {len(names) - logs} of its records and {logs} of its logs are only in {self._folder}: {why}"
        )


@contextlib.contextmanager
def archived(folder: Path, check_owner: Callable[[], None], resumes: bool) -> Iterator[RunArchive]:
    """The archive of a run that this process owns: complete at the end, unless another process owns the run by then.

    ArchiveError if TORCHYARD_ARCHIVE is wrong; for a run that is resumed this is a fault like any other.
    """
    archive = _open_archive(folder, check_owner, resumes)
    try:
        yield archive
    except RunInUseError:
        archive.drop()
        raise
    finally:
        if missing := archive.settle():
            get_log().warning("the run's archive is %s", missing)
        archive.drop()


def _open_archive(folder: Path, check_owner: Callable[[], None], resumes: bool) -> RunArchive:
    try:
        return RunArchive(folder, check_owner, open_store())
    except ArchiveError as error:
        if not resumes:
            raise
        get_log().warning("%s", error)
        return RunArchive(folder, check_owner, None, str(error))
