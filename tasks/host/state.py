"""What is known of a kept process: its folder, its state, its processes. Standard library only, Python 3.8 or newer."""

from __future__ import annotations

import fcntl
import json
import os
import time
from typing import Any, Iterable

BLOCK = 4096
Json = Any


def path(folder: str, name: str) -> str:
    return os.path.join(folder, name)


# --- state ---------------------------------------------------------------------------------------------------------


def write_state(folder: str, **changes: Json) -> Json:
    state = dict(read_state(folder) or {}, **changes)
    text = json.dumps(state)[: BLOCK - 1].ljust(BLOCK - 1) + "\n"
    fd = os.open(path(folder, "state"), os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(fd, text.encode(), 0)
    finally:
        os.close(fd)
    return state


def read_state(folder: str) -> Json:
    for _ in range(20):  # a reader may meet a writer in the middle of its one write
        try:
            with open(path(folder, "state")) as file:
                return json.loads(file.read())
        except FileNotFoundError:
            return None
        except ValueError:
            time.sleep(0.01)
    return None


def hold(folder: str, mode: int = fcntl.LOCK_EX) -> int | None:
    """The lock's file descriptor, or None where a keeper holds it. An onlooker takes it shared, for a moment."""
    fd = os.open(path(folder, "lock"), os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def view(folder: str) -> Json:
    """The state, corrected by what only an onlooker sees: `absent`, or `unkept` when the keeper was killed."""
    if not os.path.isdir(folder):
        return {"phase": "absent"}
    state = read_state(folder)
    if state and state["phase"] == "running":
        fd = hold(folder, fcntl.LOCK_SH)
        if fd is not None:
            os.close(fd)
            state = read_state(folder)
            return dict(state, phase="unkept") if state["phase"] == "running" else state
    return state or {"phase": "starting"}


# --- the processes of a job ----------------------------------------------------------------------------------------


def labelled(label: str) -> list[int]:
    """The ids of the living processes that carry the label."""
    mark = b"TORCHYARD_JOB=" + label.encode() + b"\0"
    found: list[int] = []
    for name in os.listdir("/proc"):
        if name.isdigit() and carries(name, mark):
            found.append(int(name))
    return found


def carries(pid: str, mark: bytes) -> bool:
    try:
        with open("/proc/%s/environ" % pid, "rb") as file:
            return mark in file.read() + b"\0"  # a zombie's is empty
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """The living descendants of a process, the label aside: a program may overwrite its environment."""
    try:
        with open("/proc/%d/task/%d/children" % (pid, pid)) as file:
            direct = [int(word) for word in file.read().split()]
    except OSError:
        return []
    return [each for child in direct for each in [child] + children(child)]


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def listening() -> set[int]:
    """The TCP ports that somebody on this host listens on."""
    ports: set[int] = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(name) as file:
                rows = [line.split() for line in file.readlines()[1:]]
        except OSError:
            continue
        ports.update(int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A")
    return ports
