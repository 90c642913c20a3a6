"""The folder and the state of a supervised process. Standard library only, Python 3.8 or newer.

The supervisor holds the lock (flock on `lock`) while it lives, and only the holder of the lock writes `state`. Every
other process is an observer: it reads the state and tests the lock, because a killed supervisor leaves `starting` or
`running` in the state. An observer may be on another host that shares the folder: the state names the host of its
processes.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import time
from typing import Any, Callable

from torchyard.host.identity import (
    EARLIER_BOOT,
    HERE,
    OTHER_MACHINE,
    describe_location,
    is_on_local_filesystem,
    locate_host,
    measure_time_since,
    read_boot_clock,
    read_boot_id,
    read_uptime,
)
from torchyard.host.processes import ProcessId, is_label_alive, parse_label
from torchyard.host.staging import is_missing

STATE_BYTES = 4096  # of the state's file, always: one block, which is overwritten in place
_MAX_VIEW_AGE_S = 1.0  # seconds that a cached view is valid: only the lock shows that a supervisor was killed
_LOCKED_ERRNOS = (errno.EWOULDBLOCK, errno.EACCES)
_READ_ATTEMPTS = 20  # a read may overlap the one write of a writer
_LOCK_ATTEMPTS = 50  # 0.02 s apart
LIVE_PHASES = ("starting", "running")  # of a process whose supervisor lives
FOLDER_REMOVED = "its folder was removed; it keeps running"
Json = Any


def file_path(folder: str, name: str) -> str:
    """The path of a file in a process's folder."""
    return os.path.join(folder, name)


def add_recorder(env: dict[str, str], spec: Json) -> dict[str, str]:
    """The environment of a process with the black box, if the spec has its folder for PYTHONPATH (`recorder`)."""
    if "recorder" not in spec:
        return env
    path = os.pathsep.join(filter(None, (spec["recorder"], env.get("PYTHONPATH"))))
    return dict(env, PYTHONPATH=path, TORCHYARD_BLACK_BOX=file_path(os.path.abspath(spec["folder"]), "black-box"))


# --- state ---------------------------------------------------------------------------------------------------------


def write_state(folder: str, **changes: Json) -> Json:
    """Change some keys of the state and return all of it. Raises OSError if it cannot be written.

    The file is one block, padded and overwritten in place, so that a full disk cannot prevent the exit code from being
    recorded. The first state is synced to disk: an empty one after a power cut would not name the host's boot.
    """
    previous = read_state(folder)
    state = dict(previous or {}, **changes)
    text = json.dumps(state)[: STATE_BYTES - 1].ljust(STATE_BYTES - 1) + "\n"
    fd = os.open(file_path(folder, "state"), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.pwrite(fd, text.encode(), 0)
        if not previous:
            os.fsync(fd)
    finally:
        os.close(fd)
    return state


def read_state(folder: str) -> Json:
    """The state as the supervisor last wrote it; None if there is no state, or it stays unreadable for 0.2 s."""
    for _ in range(_READ_ATTEMPTS):
        try:
            with open(file_path(folder, "state"), encoding="utf-8") as file:
                return json.loads(file.read())
        except FileNotFoundError:
            return None
        except ValueError:
            time.sleep(0.01)
    return None


def get_process(state: Json, role: str) -> ProcessId:
    """The `supervisor` or the `agent` of a state that was written on this host; NO_PROCESS if the state has none."""
    return ProcessId(state.get(role, 0), state.get(role + "_start", 0))


def read_spec(folder: str) -> Json:
    """The spec that was submitted; None if it does not exist (any more) or is incomplete."""
    try:
        with open(file_path(folder, "spec.json"), encoding="utf-8") as file:
            return json.load(file)
    except (FileNotFoundError, ValueError):
        return None


def try_write_state(folder: str, **changes: Json) -> bool:
    """Update the state; False if that failed, as on a full disk, which must not stop a supervisor."""
    try:
        write_state(folder, **changes)
    except OSError:
        return False
    return True


def ask_to_end(folder: str, agent: ProcessId) -> float:
    """Send SIGTERM to a process, once for all who ask; return the seconds since the first of them asked.

    A process that saves its work on SIGTERM may be harmed by a second one: torchrun no longer waits for its ranks. The
    moment is kept in the file `stop` with the process that it is about. If it cannot be kept, the signal is sent again.
    """
    path = file_path(folder, "stop")
    try:
        with open(path, encoding="utf-8") as file:
            request = json.load(file)
        if request["agent"] == list(agent):
            return measure_time_since(request["asked_at"])
    except (OSError, ValueError, LookupError, TypeError):
        pass
    try:
        os.kill(agent.pid, signal.SIGTERM)
    except (ProcessLookupError, PermissionError):
        return 0.0  # it has ended, or another user must end it
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"agent": list(agent), "asked_at": read_boot_clock()}, file)
    except OSError:
        pass
    return 0.0


def try_lock(folder: str) -> int | None:
    """The lock's file descriptor, or None if another process holds it."""
    fd = os.open(file_path(folder, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    is_granted = False
    try:
        is_granted = _is_granted(fd, fcntl.LOCK_EX)
    finally:
        if not is_granted:
            os.close(fd)
    return fd if is_granted else None


def _is_granted(fd: int, mode: int) -> bool:
    """Whether the lock is granted now; False if another process holds it. OSError if that cannot be found out."""
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _LOCKED_ERRNOS:
            raise
        return False
    return True


def take_lock(folder: str, should_wait: Callable[[], bool] | None = None) -> int | None:
    """The lock's file descriptor, after up to a second for an observer to release it; None if a supervisor holds it.

    `should_wait` is called after each failed attempt; False gives up at once.
    """
    for _ in range(_LOCK_ATTEMPTS):
        lock = try_lock(folder)
        if lock is not None:
            return lock
        if should_wait is not None and not should_wait():
            return None
        time.sleep(0.02)
    return try_lock(folder)


def view_state(folder: str) -> Json:
    """The state, with what only an observer sees.

    Phases: `absent`; `starting` until the program was executed, then `running`, while the supervisor holds the lock;
    `unsupervised` if the supervisor was killed, with `rebooted`: because the host restarted; `exited`.
    `elsewhere`: where the processes are, if signals from here cannot reach them. `detail`: why the state may be an old
    one. A lock that is not held shows the death of a supervisor of this kernel only: machines that share a disk do not
    always share its locks.
    """
    state = read_state(folder)
    if state and state["phase"] not in LIVE_PHASES:
        return state
    is_unlocked = _is_unlocked(folder)
    if is_unlocked:
        state = read_state(folder)  # the supervisor may have recorded the end just before it released the lock
    if not state:
        return _infer_state(folder, is_unlocked=is_unlocked)
    if state["phase"] not in LIVE_PHASES:
        return state
    location = locate_host(state, folder)
    view = dict(state)
    if location not in (HERE, EARLIER_BOOT):
        view["elsewhere"] = describe_location(state, location)
    if is_unlocked and location == OTHER_MACHINE:
        view["detail"] = "its processes are %s" % view["elsewhere"]
    elif is_unlocked:
        view["phase"] = "unsupervised"
        view["rebooted"] = location == EARLIER_BOOT
    return view


def measure_age(state: Json) -> float | None:
    """Seconds since the process of a state was started; None if it has not been, or not on this kernel.

    Measured by the kernel's clock since boot: setting the host's clock does not change it.
    """
    if not state.get("agent_start") or state.get("boot") != read_boot_id():
        return None
    started_at = float(state["agent_start"]) / os.sysconf("SC_CLK_TCK")
    return read_uptime() - started_at


class StateCache:
    """A view of the state for polling many times a second.

    `view` reads the state again if its file was written since the last read, or if that read is more than a second old:
    a killed supervisor changes no file, only the lock shows it. Without a state file each call reads again, because a
    state may appear at any moment, except for a process whose folder was removed (`detail`): to find that one, all
    processes of the host are searched, which is done once a second only.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._state: Json = {}
        self._mtime_ns = 0  # of the state file at the last read; 0 if there was none
        self._read_at = 0.0  # monotonic seconds

    def view(self) -> Json:
        """The state as `view_state` returns it, at most a second old."""
        try:
            mtime_ns = os.stat(file_path(self.folder, "state")).st_mtime_ns
        except OSError:
            mtime_ns = 0
        may_cache = mtime_ns or "detail" in self._state
        is_changed = mtime_ns != self._mtime_ns
        if not may_cache or is_changed or time.monotonic() - self._read_at > _MAX_VIEW_AGE_S:
            self._mtime_ns = mtime_ns
            self._read_at = time.monotonic()
            self._state = view_state(self.folder)
        return self._state


def _is_unlocked(folder: str) -> bool:
    """Whether no supervisor holds the lock, which is taken shared for a moment, also on a read-only file system."""
    try:
        fd = os.open(file_path(folder, "lock"), os.O_RDONLY)
    except FileNotFoundError:  # the folder is being removed
        return False
    try:
        return _is_granted(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def _infer_state(folder: str, *, is_unlocked: bool) -> Json:
    """The state of a process without a readable state: removing the folder does not end its process.

    A spec is written under the lock, which the supervisor inherits: if the lock is free then, no supervisor lives.
    OSError if it cannot be found out whether the folder exists.
    """
    has_spec = not is_missing(file_path(folder, "spec.json"))
    if not has_spec and is_label_alive(parse_label(folder)):
        return {"phase": "running", "detail": FOLDER_REMOVED}
    if is_missing(folder):
        return {"phase": "absent"}
    if has_spec and is_unlocked and is_on_local_filesystem(folder):
        return {"phase": "unsupervised", "rebooted": False}
    return {"phase": "starting"}


def list_listening_ports() -> set[int]:
    """The TCP ports that processes on this host listen on. OSError if they cannot be read."""
    ports: set[int] = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path, encoding="utf-8") as table:
                rows = [line.split() for line in table.readlines()[1:]]
        except FileNotFoundError:  # a kernel without IPv6
            continue
        ports.update(int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A")
    return ports
