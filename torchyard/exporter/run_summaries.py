"""Read the state of each run from its folder: whether it waits or runs, its attempts, the GPUs that it may hold.

No cluster and no host is queried: a scrape costs as much as reading the journals of the runs that are open.
"""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torchyard.model.errors import FolderError, TorchyardError
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.run.resume import find_last_event

_JOURNAL = "journal"
_RECOVERIES = ("attach", "finish")  # entries of a process that resumes a run which another process has left
JournalEvent = dict[str, Any]


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
            except (OSError, TorchyardError):
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
    """The summary of one run at the time `now`. FolderError if its journal has no readable line."""
    events = folder.events()
    if not events:
        raise FolderError(str(folder.path), "no line of its journal can be read")
    start = find_last_event(events, "start")
    end = str(events[-1].get("end", "")) if events[-1]["event"] == "end" else ""
    job_events = _select_job_events(events)
    summary = RunSummary(
        run=folder.name,
        profile=str(start.get("profile") or folder.name.rpartition("-")[0]),
        launcher=str(start.get("launcher") or ""),
        state=end or _find_state(folder, events, job_events),
        attempts=len(folder.attempts()),
        recoveries=sum(event["event"] == "start" and event.get("entry") in _RECOVERIES for event in events),
        start_delay_s=_find_start_delay(events),
        is_open=not end or bool(job_events),
    )
    if not job_events:
        return summary
    has_started = any(event["event"] == "running" for event in job_events)
    if not has_started and summary.state == "waiting":
        return summary._replace(waiting_s=max(now - float(job_events[0]["at"]), 0.0))
    return summary._replace(gpus=int(start.get("gpus") or 0))


def _find_start_delay(events: Sequence[JournalEvent]) -> float | None:
    """Seconds from the submit to the start of the last job that started; None if none has."""
    for event in reversed(events):
        if event["event"] == "running":
            return float(event["waited_s"])
    return None


def _list_folders() -> list[Path]:
    """The folders in the folder of all runs; none if that does not exist. OSError if it cannot be listed."""
    try:
        with os.scandir(runs_folder()) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return []


def _select_job_events(events: Sequence[JournalEvent]) -> list[JournalEvent]:
    """The events since the submit of a job that may still exist; none if no job can exist.

    A run that was given up has left its job to a sweep.
    """
    job_events: list[JournalEvent] = []
    for event in events:
        has_ended = event["event"] == "end" and event.get("end") not in ("gave-up", "moved")
        is_torn_down = event["event"] == "step-end" and event.get("name") == "teardown"
        if has_ended or is_torn_down:
            job_events = []
        elif job_events or (event["event"] == "step" and event.get("name") == "submit"):
            job_events.append(event)
    return job_events


def _find_state(folder: RunFolder, events: Sequence[JournalEvent], job_events: Sequence[JournalEvent]) -> str:
    """The state of a run that has not ended."""
    if not folder.is_owned():
        return "lost"
    if any(event["event"] == "ending" for event in _select_process_events(events)):
        return "ending"
    if not job_events:
        return "preparing"
    has_started = any(event["event"] == "running" for event in job_events)
    return "running" if has_started else "waiting"


def _select_process_events(events: Sequence[JournalEvent]) -> Iterator[JournalEvent]:
    """The events of the last process."""
    starts = [index for index, event in enumerate(events) if event["event"] == "start"]
    yield from events[starts[-1] if starts else 0 :]
