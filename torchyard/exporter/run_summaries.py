"""Read the state of each run from its folder: whether it waits or runs, its attempts, the GPUs that it may hold.

No cluster and no host is queried: a scrape costs as much as reading the journals of the runs that are open.
"""

import os
import time
from pathlib import Path
from typing import NamedTuple

from torchyard.model.errors import FolderError
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.run.record import JournalEvent, RunRecord

_JOURNAL = "journal"
_MAX_NUMBER = 1e12  # of GPUs, or of seconds
_RECOVERIES = ("attach", "finish")  # entries of a process that resumes a run which another process has left


class RunSummary(NamedTuple):
    """One run.

    waiting_s: seconds since the submit of a job that has not started; 0 for any other run.
    gpus: of a job that has started and may still exist; 0 for any other run.
    start_delay_s: seconds from the submit to the start of the last job that started; None if none has.
    is_open: the run has not ended, or its job may still exist.
    """

    run: str
    profile: str
    launcher: str
    state: str
    attempts: int
    recoveries: int
    waiting_s: float = 0.0
    gpus: int = 0
    start_delay_s: float | None = None
    is_open: bool = False


class AllRuns(NamedTuple):
    """Every run of this machine, and the names of the folders that cannot be read."""

    runs: tuple[RunSummary, ...]
    unreadable: tuple[str, ...]


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
        unreadable: list[str] = []
        for path in _list_folders():
            try:
                summary = self._read_folder(path)
            except Exception:  # whatever a journal contains, the other runs are reported
                unreadable.append(path.name)
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
    record = folder.read_record()
    if not record.events:
        raise FolderError(str(folder.path), "no line of its journal can be read")
    start = record.last_start
    job = record.job
    summary = RunSummary(
        run=_make_encodable(folder.name),
        profile=_make_encodable(start.get("profile") or folder.name.rpartition("-")[0]),
        launcher=_make_encodable(start.get("launcher") or ""),
        state=_make_encodable(record.end or _find_state(folder, record)),
        attempts=len(folder.attempts()),
        recoveries=sum(map(record.count_starts, _RECOVERIES)),
        start_delay_s=_parse_number(folder, record.find_last("running"), "waited_s"),
        is_open=not record.end or job is not None,
    )
    if job is None:
        return summary
    if not job.has_started and summary.state == "waiting":
        return summary._replace(waiting_s=max(now - job.submitting_since, 0.0))
    return summary._replace(gpus=int(_parse_number(folder, start, "gpus") or 0))


def _parse_number(folder: RunFolder, event: JournalEvent, field: str) -> float | None:
    """A number of an event; None if it has none. FolderError if it is not a finite number that is 0 or more."""
    value = event.get(field)
    if value is None:
        return None
    if not isinstance(value, int | float) or not 0 <= value < _MAX_NUMBER:
        raise FolderError(str(folder.path), f"{field} in its journal is not a number")
    return float(value)


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


def _find_state(folder: RunFolder, record: RunRecord) -> str:
    """The state of a run that has not ended."""
    if not folder.is_owned():
        return "lost"
    if record.ending:
        return "ending"
    if record.job is None:
        return "preparing"
    return "running" if record.job.has_started else "waiting"
