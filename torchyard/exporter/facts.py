"""What the folder of a run says about it: its state, how long it waits, what it holds. One that cannot be read counts.

Nothing is asked of clusters and hosts: a scrape costs as much as reading the journals of the runs that are open.
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
_RECOVERIES = ("attach", "finish")  # entries of a process that goes on with what another one has left
JournalEvent = dict[str, Any]


class RunFacts(NamedTuple):
    """One run; `waiting_s` and `gpus` are 0 unless it has a job that waits, or that may hold GPUs."""

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

    runs: tuple[RunFacts, ...]
    unreadable: tuple[str, ...]


class RunsReader:
    """Reads all runs, again and again; a run that has ended is read once, until its journal changes."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int], RunFacts]] = {}

    def read(self) -> AllRuns:
        """All runs as they are now. OSError if the folder of all runs cannot be listed: that is not `no runs`."""
        found: list[RunFacts] = []
        unreadable: list[str] = []
        for path in _list_folders():
            try:
                if facts := self._read_folder(path):
                    found.append(facts)
            except (OSError, TorchyardError):
                unreadable.append(path.name)
        names = {each.run for each in found}
        self._known = {name: each for name, each in self._known.items() if name in names}
        return AllRuns(tuple(found), tuple(unreadable))

    def _read_folder(self, path: Path) -> RunFacts | None:
        """One run; None if the folder is none of a run."""
        try:
            about = (path / _JOURNAL).stat()
        except FileNotFoundError:
            os.listdir(path)  # a folder that may not be listed may well be a run
            return None
        version = (about.st_mtime_ns, about.st_size)
        known = self._known.get(path.name)
        if known and known[0] == version:
            return known[1]
        facts = read_run(RunFolder(path), time.time())
        if not facts.is_open:
            self._known[path.name] = (version, facts)
        return facts


def read_run(folder: RunFolder, now: float) -> RunFacts:
    """The facts about one run. FolderError if they cannot be read."""
    events = folder.events()
    if not events:
        raise FolderError(str(folder.path), "no line of its journal can be read")
    start = find_last_event(events, "start")
    end = str(events[-1].get("end", "")) if events[-1]["event"] == "end" else ""
    job = _select_job_events(events)
    facts = RunFacts(
        run=folder.name,
        profile=str(start.get("profile") or folder.name.rpartition("-")[0]),
        launcher=str(start.get("launcher") or _read_launcher(folder)),
        state=end or _find_state(folder, events, job),
        attempts=len(folder.attempts()),
        recoveries=sum(event["event"] == "start" and event.get("entry") in _RECOVERIES for event in events),
        start_delay_s=next((float(each["waited"]) for each in reversed(events) if each["event"] == "running"), None),
        is_open=not end or bool(job),
    )
    if not job:
        return facts
    waits = not any(event["event"] == "running" for event in job)
    if waits and facts.state == "waiting":
        return facts._replace(waiting_s=max(now - float(job[0]["at"]), 0.0))
    return facts._replace(gpus=int(start.get("gpus") or 0))


def _list_folders() -> list[Path]:
    """The folders in the folder of all runs; none if that does not exist. OSError."""
    try:
        with os.scandir(runs_folder()) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir())
    except FileNotFoundError:
        return []


def _select_job_events(events: Sequence[JournalEvent]) -> list[JournalEvent]:
    """The events since the submit of the job that may still be there; none if no job is.

    A run that was given up has left its job to a sweep.
    """
    found: list[JournalEvent] = []
    for event in events:
        is_over = event["event"] == "end" and event.get("end") not in ("gave-up", "moved")
        if is_over or (event["event"] == "did" and event.get("name") == "teardown"):
            found = []
        elif found or (event["event"] == "step" and event.get("name") == "submit"):
            found.append(event)
    return found


def _find_state(folder: RunFolder, events: Sequence[JournalEvent], job: Sequence[JournalEvent]) -> str:
    """The state of a run that has no end."""
    if not folder.is_owned():
        return "lost"
    last = list(_since_start(events))
    if any(event["event"] == "ending" for event in last):
        return "ending"
    if not job:
        return "preparing"
    return "running" if any(event["event"] == "running" for event in job) else "waiting"


def _since_start(events: Sequence[JournalEvent]) -> Iterator[JournalEvent]:
    """The events of the last process."""
    starts = [at for at, event in enumerate(events) if event["event"] == "start"]
    yield from events[starts[-1] if starts else 0 :]


def _read_launcher(folder: RunFolder) -> str:
    """The launcher of a run whose journal does not name it: of an earlier version."""
    attempts = folder.attempts()
    intent = folder.intent(attempts[-1]) if attempts else None
    return intent.plan.launcher if intent else ""
