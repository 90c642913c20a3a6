"""What is known of a kept process: its folder and its state. Standard library only, Python 3.8 or newer."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from typing import Any

from torchyard.host.processes import find_labelled, label_of

_STATE_BYTES = 4096
_MAX_VIEW_AGE_S = 1.0  # of what an onlooker knows: a killed keeper changes nothing, and is seen by its lock
_LOCKED_ERRNOS = (errno.EWOULDBLOCK, errno.EACCES)
_FOLDER_REMOVED = "its folder was removed, and it runs on"
Json = Any


def file_path(folder: str, name: str) -> str:
    return os.path.join(folder, name)


# --- state ---------------------------------------------------------------------------------------------------------


def write_state(folder: str, **changes: Json) -> Json:
    state = dict(read_state(folder) or {}, **changes)
    text = json.dumps(state)[: _STATE_BYTES - 1].ljust(_STATE_BYTES - 1) + "\n"
    fd = os.open(file_path(folder, "state"), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(fd, text.encode(), 0)
    finally:
        os.close(fd)
    return state


def read_state(folder: str) -> Json:
    for _ in range(20):  # a reader may meet a writer in the middle of its one write
        try:
            with open(file_path(folder, "state"), encoding="utf-8") as file:
                return json.loads(file.read())
        except FileNotFoundError:
            return None
        except ValueError:
            time.sleep(0.01)
    return None


def note_state(folder: str, **changes: Json) -> bool:
    """The same for a keeper, which goes on where nothing can be written: whether it was."""
    try:
        write_state(folder, **changes)
    except OSError:
        return False
    return True


def try_lock(folder: str, mode: int = fcntl.LOCK_EX) -> int | None:
    """The lock's file descriptor, or None where a keeper holds it. An onlooker takes it shared, for a moment."""
    fd = os.open(file_path(folder, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        if error.errno not in _LOCKED_ERRNOS:
            raise
        return None
    return fd


def view_state(folder: str) -> Json:
    """The state, corrected by what only an onlooker sees: `absent`, or `unkept` when the keeper was killed."""
    state = read_state(folder)
    if state and state["phase"] == "running" and _is_unlocked(folder):
        state = read_state(folder)
        return _unsupervised_state(state) if state and state["phase"] == "running" else state or _infer_state(folder)
    return state or _infer_state(folder)


def _unsupervised_state(state: Json) -> Json:
    """The state of a process whose keeper is gone: alone, or with everything else that ran before the host's start."""
    return dict(state, phase="unkept", rebooted=state.get("boot", "") not in ("", read_boot_id()))


def read_boot_id() -> str:
    """Which start of this host this is; empty where it does not tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


class StateCache:
    """A view that is taken again and again: anew where the state was written, and else once a second."""

    def __init__(self, folder: str) -> None:
        self.folder, self._mark, self._at = folder, 0, 0.0
        self._last: Json = {}

    def view(self) -> Json:
        try:
            mark = os.stat(file_path(self.folder, "state")).st_mtime_ns
        except OSError:
            mark = 0
        settled = mark or "detail" in self._last
        if not settled or mark != self._mark or time.monotonic() - self._at > _MAX_VIEW_AGE_S:
            self._mark, self._at, self._last = mark, time.monotonic(), view_state(self.folder)
        return self._last


def _is_unlocked(folder: str) -> bool:
    """Whether no keeper holds the lock."""
    try:
        fd = try_lock(folder, fcntl.LOCK_SH)
    except FileNotFoundError:  # the folder is going away
        return False
    if fd is not None:
        os.close(fd)
    return fd is not None


def _infer_state(folder: str) -> Json:
    """What is known without a state: a folder that somebody has removed does not end its process."""
    if not os.path.exists(file_path(folder, "spec.json")) and find_labelled(label_of(folder)):
        return {"phase": "running", "detail": _FOLDER_REMOVED}
    return {"phase": "starting" if os.path.isdir(folder) else "absent"}


def list_listening_ports() -> set[int]:
    """The TCP ports that somebody on this host listens on."""
    ports: set[int] = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(name, encoding="utf-8") as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except OSError:
            continue
        ports.update(int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A")
    return ports
