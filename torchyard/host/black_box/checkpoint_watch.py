"""Watch a folder for checkpoints: report each one that becomes complete, or that was complete and is not any more."""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from .checkpoint_formats import (
    COMPLETE,
    TORN,
    CheckpointState,
    has_checkpoint_name,
    is_checkpoint_file,
    is_checkpoint_folder,
    list_folder,
    parse_step,
    read_checkpoint,
)

Json = Any
GONE = "gone"
POLL_INTERVAL_S = 2.0
_MAX_TIME_SHARE = 0.05  # of polls: a slow file system gets fewer requests
_MAX_DEPTH = 4
_MAX_ENTRIES = 4_000  # of all folders that are walked
_MAX_CHECKED_FILES = 100  # of settled checkpoints, in one poll: they are checked in turn
_REPORTED_AFTER_S = 10.0  # without a change, unless it is complete: the program may write the next file
_SETTLED_AFTER_S = 60.0  # without a change, whatever the verdict
_KNOWN_AGE_S = 60.0  # before the start: written by an earlier attempt, even if the file system has another clock
_MAX_PATH_BYTES = 2_500  # of a path and of a problem in a record
_MAX_PROBLEM_BYTES = 900


class _Fingerprint(NamedTuple):
    """What shows that a checkpoint has changed.

    identity: the device and the inode of its file or folder.
    content: a hash of the names, sizes and times of its files.
    modified_at: the newest time of a file.
    """

    identity: Tuple[int, int]
    content: int
    modified_at: float
    file_count: int


class _Candidate:
    """A checkpoint that the watch follows.

    changed_at: of the poll that saw it change last, in monotonic seconds.
    read_at: when its content is due to be read.
    save_started_at: the oldest time of the current save, by the file system's clock; inf if it is not known.
    was_present: at the first poll.
    is_settled: its verdict does not change unless its files do.
    reported: the verdict and the newest time in its last record; empty if it has none.
    """

    def __init__(self, path: str, *, is_folder: bool, was_present: bool) -> None:
        self.path = path
        self.is_folder = is_folder
        self.was_present = was_present
        self.fingerprint: Optional[_Fingerprint] = None
        self.changed_at = 0.0
        self.read_at = 0.0
        self.save_started_at = math.inf
        self.is_settled = False
        self.is_missing = False
        self.reported: Tuple[str, float] = ("", 0.0)


class _Folder(NamedTuple):
    """A folder that is not a checkpoint itself, as it was listed last.

    modified_ns: its time before the listing.
    is_steady: the listing before had the same time, so that no change is hidden by the resolution of times.
    """

    modified_ns: int
    is_steady: bool
    file_names: List[str]
    folder_names: List[str]


class CheckpointWatch:
    """Follow the checkpoints in a folder; `poll` returns the records that are due.

    A checkpoint is reported once it is complete and two polls saw the same files; its record is

        {"kind": "checkpoint", "timestamp", "path", "step", "format", "bytes", "state", "problem", "seconds",
        "saved_at"}

    `state` is `complete`; `unverified` for one that has not changed for at least `_REPORTED_AFTER_S` and cannot be
    judged; or `torn`, after the same time, or `gone` for one that was complete. The last poll also reports those that
    were begun and are torn. `seconds` is how long the save took, as far as the files and the polls show it, None if
    they do not; `saved_at` is the time of the newest write, by the file system's clock. What an earlier attempt has
    written is not reported.

    Cost. A folder is listed again if its time has changed, a file is read again if its size or time has. Checkpoints
    that are settled are compared in turn, some in each poll, because a file that is overwritten in place changes no
    folder. After a poll that took long the next one is later.

    Errors. What cannot be read is neither complete nor gone: it is tried again at the next poll. Nothing is raised.
    """

    def __init__(self, folder: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` measures how long a poll takes, in seconds."""
        self._root = os.path.abspath(folder)
        self._clock = clock
        self._started_at = time.time()
        self._next_poll_at = -math.inf
        self._is_first_poll = True
        self._root_identity: Optional[Tuple[int, int]] = None
        self._folders: Dict[str, _Folder] = {}
        self._previous_folders: Dict[str, _Folder] = {}  # of the poll before
        self._candidates: Dict[str, _Candidate] = {}
        self._turn = 0  # the position among the settled checkpoints at which the next poll continues

    def poll(self, now: float, *, is_last: bool = False) -> List[Json]:
        """The records that are due at `now`, in monotonic seconds; empty if the last poll was less than 2 s ago."""
        if now < self._next_poll_at and not is_last:
            return []
        started_at = self._clock()
        records = list(self._poll(now, is_last=is_last))
        self._is_first_poll = False
        cost_s = self._clock() - started_at
        self._next_poll_at = now + max(POLL_INTERVAL_S, cost_s / _MAX_TIME_SHARE)
        return records

    def _poll(self, now: float, *, is_last: bool) -> Iterator[Json]:
        try:
            status = os.stat(self._root)
        except OSError:
            return
        identity = (status.st_dev, status.st_ino)
        if identity != self._root_identity:  # another file system is mounted, or the program made a new folder
            self._root_identity = identity
            self._folders.clear()
            self._candidates.clear()
        self._previous_folders = self._folders
        self._folders = {}
        paths = dict(self._walk(self._root, depth=0))
        for path, is_folder in paths.items():
            if path not in self._candidates:
                self._candidates[path] = _Candidate(path, is_folder=is_folder, was_present=self._is_first_poll)
        for candidate in self._choose_checks(is_last=is_last):
            if candidate.path in paths:
                yield from self._check(candidate, now, is_last=is_last)
        for candidate in list(self._candidates.values()):
            candidate.is_missing = candidate.is_missing and candidate.path not in paths
            if candidate.path not in paths:
                yield from self._check_missing(candidate, is_last=is_last)

    def _walk(self, path: str, depth: int) -> Iterator[Tuple[str, bool]]:
        """Yield the path of each checkpoint below a folder, or of the folder itself, and whether it is a folder.

        The search ends at `_MAX_DEPTH` folders below the root, and after `_MAX_ENTRIES` files.
        """
        folder = self._list(path)
        if folder is None or sum(len(listed.file_names) for listed in self._folders.values()) > _MAX_ENTRIES:
            return
        has_checkpoints = any(has_checkpoint_name(name) for name in folder.folder_names)
        if not has_checkpoints and is_checkpoint_folder(folder.file_names):
            yield path, True
            return
        for name in folder.file_names:
            if is_checkpoint_file(name):
                yield os.path.join(path, name), False
        for name in folder.folder_names:
            subfolder = os.path.join(path, name)
            if has_checkpoint_name(name):
                yield subfolder, True
            elif depth + 1 < _MAX_DEPTH:
                yield from self._walk(subfolder, depth + 1)

    def _list(self, path: str) -> Optional[_Folder]:
        """List a folder if its time has changed; what was listed last if it cannot be read, None if nothing was."""
        known = self._previous_folders.get(path)
        try:
            modified_ns = os.stat(path).st_mtime_ns
            if known and known.modified_ns == modified_ns and known.is_steady:
                self._folders[path] = known
                return known
            file_names: List[str] = []
            folder_names: List[str] = []
            with os.scandir(path) as entries:
                for entry in entries:
                    if len(file_names) + len(folder_names) >= _MAX_ENTRIES:
                        break
                    if entry.is_symlink() or not _is_printable(os.path.join(path, entry.name)):
                        continue
                    names = folder_names if entry.is_dir() else file_names
                    names.append(entry.name)
        except FileNotFoundError:
            return None
        except OSError:
            if known:
                self._folders[path] = known
            return known
        is_steady = known is not None and known.modified_ns == modified_ns
        self._folders[path] = _Folder(modified_ns, is_steady, file_names, folder_names)
        return self._folders[path]

    def _choose_checks(self, *, is_last: bool) -> List[_Candidate]:
        """The candidates whose files are compared in this poll: those that change, and some of the settled ones."""
        candidates = list(self._candidates.values())
        if is_last:
            return candidates
        checks = [candidate for candidate in candidates if not candidate.is_settled]
        settled = [candidate for candidate in candidates if candidate.is_settled]
        file_count = 0
        for index in range(len(settled)):
            if file_count >= _MAX_CHECKED_FILES:
                self._turn += index
                break
            candidate = settled[(self._turn + index) % len(settled)]
            file_count += candidate.fingerprint.file_count if candidate.fingerprint else 1
            checks.append(candidate)
        return checks

    def _check(self, candidate: _Candidate, now: float, *, is_last: bool) -> Iterator[Json]:
        """Compare a candidate's files, and read it if its verdict is due."""
        fingerprint = _read_fingerprint(candidate)
        if fingerprint is None:
            return
        if fingerprint != candidate.fingerprint:
            self._note_change(candidate, fingerprint, now)
        is_due = not candidate.is_settled and now >= candidate.read_at
        if is_last:  # also a save that was begun long ago, and has not been reported
            is_due = not candidate.is_settled or not candidate.reported[0]
        if not is_due:
            return
        try:
            state = read_checkpoint(candidate.path)
        except OSError:
            return  # it has vanished
        if state.modified_at != fingerprint.modified_at and not is_last:
            return  # it has changed meanwhile, which the next poll sees
        unchanged_s = now - candidate.changed_at
        candidate.read_at = now + max(POLL_INTERVAL_S, unchanged_s)
        candidate.is_settled = state.verdict == COMPLETE or unchanged_s >= _SETTLED_AFTER_S
        is_final = is_last or unchanged_s >= _REPORTED_AFTER_S
        if _is_due(candidate, state.verdict, is_final=is_final, is_last=is_last):
            report = (state.verdict, state.modified_at)
            if report != candidate.reported:
                candidate.reported = report
                yield _build_record(candidate, state)

    def _note_change(self, candidate: _Candidate, fingerprint: _Fingerprint, now: float) -> None:
        is_new = candidate.fingerprint is None
        candidate.fingerprint = fingerprint
        if candidate.was_present and is_new and fingerprint.modified_at < self._started_at - _KNOWN_AGE_S:
            candidate.is_settled = True
            candidate.reported = (COMPLETE, fingerprint.modified_at)
            return
        if is_new or candidate.is_settled:
            candidate.save_started_at = self._find_save_start(candidate, fingerprint, is_new=is_new)
        candidate.is_settled = False
        candidate.changed_at = now
        candidate.read_at = now + POLL_INTERVAL_S

    def _find_save_start(self, candidate: _Candidate, fingerprint: _Fingerprint, *, is_new: bool) -> float:
        """The oldest time of a save that has just been seen, by the file system's clock.

        The entry of a new file or folder is as old as the last change of the folder that contains it, unless the file
        was renamed: then it was seen under its other name.
        """
        started_at = fingerprint.modified_at
        for other in self._candidates.values():
            if other is candidate or other.is_settled or other.fingerprint is None:
                continue
            if other.fingerprint.identity == fingerprint.identity:
                started_at = min(started_at, other.save_started_at)
        parent = self._folders.get(os.path.dirname(candidate.path))
        if is_new and not candidate.was_present and parent:
            started_at = min(started_at, parent.modified_ns / 1e9)
        return started_at

    def _check_missing(self, candidate: _Candidate, *, is_last: bool) -> Iterator[Json]:
        """A candidate that is not listed is gone if the file system reports that, at two polls."""
        try:
            os.lstat(candidate.path)
        except FileNotFoundError:
            if not candidate.is_missing and not is_last:
                candidate.is_missing = True
                return
            if candidate.reported[0] == COMPLETE:
                yield _build_gone_record(candidate)
        except OSError:
            return
        del self._candidates[candidate.path]


def _is_due(candidate: _Candidate, verdict: str, *, is_final: bool, is_last: bool) -> bool:
    """Whether a verdict is reported, if it is not in the last record."""
    if verdict == TORN:
        return is_last or (is_final and candidate.reported[0] == COMPLETE)
    return verdict == COMPLETE or is_final


def _read_fingerprint(candidate: _Candidate) -> Optional[_Fingerprint]:
    """What changes whenever a checkpoint does: its identity, and the sizes and times of its files.

    None if it does not exist or cannot be read; `_check_missing` tells which. Its hash is only valid in this process.
    """
    try:
        status = os.stat(candidate.path)
        identity = (status.st_dev, status.st_ino)
        if not candidate.is_folder:
            content = hash((identity, status.st_size, status.st_mtime_ns))
            return _Fingerprint(identity, content, status.st_mtime, 1)
        listing = list_folder(candidate.path)
    except OSError:
        return None
    modified_at = max([file.st_mtime for file in listing.files.values()] or [status.st_mtime])
    facts = [(path, file.st_size, file.st_mtime_ns, file.st_ino) for path, file in sorted(listing.files.items())]
    return _Fingerprint(identity, hash(tuple(facts)), modified_at, len(facts) + 1)


def _is_printable(path: str) -> bool:
    """Whether a record can contain a path: its readers reject control characters, and their escapes."""
    return path.isprintable() and "\\" not in path and len(json.dumps(path)) <= _MAX_PATH_BYTES


def _build_record(candidate: _Candidate, state: CheckpointState) -> Json:
    started_at = candidate.save_started_at
    if not candidate.was_present:  # else the folder may have older files, which this save has not written
        started_at = min(started_at, state.first_written_at)
    seconds = state.modified_at - started_at
    return {
        "kind": "checkpoint",
        "timestamp": round(time.time(), 3),
        "path": candidate.path,
        "step": state.step,
        "format": state.format,
        "bytes": state.size_bytes,
        "state": state.verdict,
        "problem": _clean_problem(state.problem),
        "seconds": round(seconds, 2) if 0.0 < seconds < math.inf else None,
        "saved_at": round(state.modified_at, 3),
    }


def _build_gone_record(candidate: _Candidate) -> Json:
    state = CheckpointState(
        path=candidate.path,
        format="",
        verdict=GONE,
        problem="it has been removed",
        step=parse_step(os.path.basename(candidate.path)),
        size_bytes=0,
        modified_at=candidate.reported[1],
        first_written_at=candidate.reported[1],
    )
    return dict(_build_record(candidate, state), seconds=None)


def _clean_problem(problem: Optional[str]) -> Optional[str]:
    """The problem as a text that a record can contain; None if there is none."""
    if problem is None:
        return None
    text = "".join(character if character.isprintable() and character != "\\" else "?" for character in problem)
    while len(json.dumps(text)) > _MAX_PROBLEM_BYTES:
        text = text[: len(text) * 3 // 4]
    return text
