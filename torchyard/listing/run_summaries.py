"""Read the state of each run from its folder: whether it waits or runs, its attempts, the GPUs that it may hold.

No cluster and no host is queried: a scrape costs as much as reading the journals of the runs that are open.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torchyard.model.errors import FolderError
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.run.history import find_start_time
from torchyard.run.record import JournalEvent, RunRecord

_JOURNAL = "journal"
_MAX_NUMBER = 1e12  # of GPUs, or of seconds
_RECOVERIES = ("attach", "finish")  # entries of a process that resumes a run which another process has left


class RunSummary(NamedTuple):
    """One run.

    state: of a run that goes on: preparing, waiting, running, ending, or lost; else how it ended.
    attempts: how many have a plan.
    host, user: where its last process runs, and as whom; empty if the journal does not name them.
    processes: per node; None if the pods of a manifest decide that.
    started_at, ended_at: in seconds since the epoch; None for a run that has not ended.
    sentence: why it ended like that; empty for a run that has not ended.
    waiting_s: seconds since the submit of a job that has not started; 0 for any other run.
    gpus: of a job that has started and may still exist; 0 for any other run.
    start_delay_s: seconds from the submit to the start of the last job that started; None if none has.
    is_open: something of the run goes on (RunRecord.is_over).
    """

    run: str
    profile: str
    launcher: str
    state: str
    attempts: int
    recoveries: int
    host: str = ""
    user: str = ""
    processes: int | None = None
    started_at: float = 0.0
    ended_at: float | None = None
    sentence: str = ""
    waiting_s: float = 0.0
    gpus: int = 0
    start_delay_s: float | None = None
    is_open: bool = False


class UnreadableFolder(NamedTuple):
    """A folder that may be that of a run, and why it cannot be read."""

    name: str
    reason: str


class AllRuns(NamedTuple):
    """Every run of this machine, and the folders that cannot be read."""

    runs: tuple[RunSummary, ...]
    unreadable: tuple[UnreadableFolder, ...]


class _CachedRun(NamedTuple):
    """A run that has ended, and the version of its journal from which it was read."""

    mtime_ns: int
    size: int
    summary: RunSummary


class RunsReader:
    """Read all runs, again at each call. A run that has ended is cached until its journal changes. Not thread-safe."""

    def __init__(self) -> None:
        self._cache: dict[str, _CachedRun] = {}

    def read(self) -> AllRuns:
        """All runs as they are now. OSError if the folder of all runs cannot be listed."""
        runs: list[RunSummary] = []
        unreadable: list[UnreadableFolder] = []
        for path in _list_folders():
            try:
                summary = self._read_folder(path)
            except Exception as error:  # whatever a journal contains, the other runs are reported
                unreadable.append(UnreadableFolder(_make_encodable(path.name), _describe_error(error)))
                continue
            if summary:
                runs.append(summary)
        names = {summary.run for summary in runs}
        self._cache = {name: cached for name, cached in self._cache.items() if name in names}
        return AllRuns(tuple(runs), tuple(unreadable))

    def _read_folder(self, path: Path) -> RunSummary | None:
        """One run; None if the folder does not belong to a run."""
        try:
            stat = (path / _JOURNAL).stat()
        except FileNotFoundError:
            os.listdir(path)  # raises: a folder that may not be listed can be the folder of a run
            return None
        cached = self._cache.get(path.name)
        if cached and (cached.mtime_ns, cached.size) == (stat.st_mtime_ns, stat.st_size):
            return cached.summary
        summary = read_run(RunFolder(path), time.time())
        if not summary.is_open:
            self._cache[path.name] = _CachedRun(stat.st_mtime_ns, stat.st_size, summary)
        return summary


def read_run(folder: RunFolder, now: float) -> RunSummary:
    """The summary of one run at the time `now`. FolderError if its journal has no readable line, or a wrong number."""
    try:
        return summarize_run(folder.name, folder.read_record(), len(folder.attempts()), folder.is_owned, now)
    except ValueError as error:
        raise FolderError(str(folder.path), str(error), "repair the line, or remove the folder") from error


def summarize_run(
    name: str, record: RunRecord, attempt_count: int, is_owned: Callable[[], bool], now: float
) -> RunSummary:
    """The summary of a run, from its journal.

    `is_owned`: whether a process owns the run; it is called for a run that has not ended.

    ValueError if no line of the journal can be read, or if a number in it is not one.
    """
    if not record.events:
        raise ValueError("no line of its journal can be read")
    start = record.last_start
    job = record.job
    end = record.find_last("end") if record.end else {}
    processes = _parse_number(start, "processes")
    summary = RunSummary(
        run=_make_encodable(name),
        profile=_make_encodable(start.get("profile") or name.rpartition("-")[0]),
        launcher=_make_encodable(start.get("launcher") or ""),
        state=_make_encodable(record.end or _find_state(record, is_owned)),
        attempts=attempt_count,
        recoveries=sum(map(record.count_starts, _RECOVERIES)),
        host=_make_encodable(start.get("host") or ""),
        user=_make_encodable(start.get("user") or ""),
        processes=None if processes is None else int(processes),
        started_at=find_start_time(record, now),
        ended_at=_parse_number(end, "ended_at" if "ended_at" in end else "at"),  # the former if it was reported again
        sentence=_make_encodable(end.get("sentence") or ""),
        start_delay_s=_parse_number(record.find_last("running"), "waited_s"),
        is_open=not record.is_over,
    )
    if job is None:
        return summary
    if not job.has_started and summary.state == "waiting":
        return summary._replace(waiting_s=max(now - job.submitting_since, 0.0))
    return summary._replace(gpus=int(_parse_number(start, "gpus") or 0))


def _parse_number(event: JournalEvent, field: str) -> float | None:
    """A number of an event; None if it has none. ValueError if it is not a finite number that is 0 or more."""
    value = event.get(field)
    if value is None:
        return None
    if not isinstance(value, int | float) or not 0 <= value < _MAX_NUMBER:
        raise ValueError(f"{field} in its journal is not a number")
    return float(value)


def _describe_error(error: Exception) -> str:
    """Why a folder cannot be read: the reason alone, because its path is reported beside it."""
    if isinstance(error, FolderError):
        return error.reason
    return getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"


def _make_encodable(value: object) -> str:
    """A text that can be sent: a lone surrogate, of a folder's name or of JSON, becomes `?`."""
    return str(value).encode(errors="replace").decode()


def _list_folders() -> list[Path]:
    """The folders in the folder of all runs; none if that does not exist. OSError if it cannot be listed."""
    try:
        with os.scandir(runs_folder()) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return []


def _find_state(record: RunRecord, is_owned: Callable[[], bool]) -> str:
    """The state of a run that has not ended."""
    if not is_owned():
        return "lost"
    if record.ending:
        return "ending"
    if record.job is None:
        return "preparing"
    return "running" if record.job.has_started else "waiting"
