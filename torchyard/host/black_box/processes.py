"""What the kernel says of a rank: whether anything goes on in it, where it sleeps, which connections retransmit."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from typing import Any, Container

from . import socket_bytes

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_BUSY_SHARE = 0.05  # of one processor, above which a process is active
_MAX_IDLE_WAKES = 20.0  # per second: a loop that polls wakes less often
_MIN_WRITE_BYTES_PER_S = 262144  # the recorder itself writes less
# Threads of libraries, which run whatever the program does. /proc cuts names after 15 characters.
_LIBRARY_THREADS = re.compile(r"gloo|pt_gloo|pt_nccl|nccl|cuda|pt_tcpstore|pt_elastic|rdma|jemalloc", re.IGNORECASE)
_MIN_SOCKET_BYTES_PER_S = 8192  # stores and heartbeats need less
_ESTABLISHED = "01"


class Sample:
    """What a process and its descendants have used so far.

    Of the rank itself, the wakes of Python's threads count: those of libraries poll.
    """

    def __init__(self, at: float, pid: int, record: dict[str, Any]) -> None:
        self.at = at
        self.cpu_s, self.wakes, self.io_bytes = 0.0, 0, _read_io(pid)
        self._add_threads(pid, record["tid"], frozenset(record["threads"]))
        children = _list_descendants(pid)
        for child in children:
            self.io_bytes += _read_io(child)
            self._add_threads(child)
        self.socket_bytes = socket_bytes.count_received([pid, *children])

    def _add_threads(self, pid: int, own_thread: int = 0, python: Container[int] | None = None) -> None:
        for thread in map(int, _list_folder("/proc/%d/task" % pid)):
            with contextlib.suppress(OSError, IndexError, ValueError):
                stat = _read("/proc/%d/task/%d/stat" % (pid, thread))
                name, _, rest = stat.partition("(")[2].rpartition(")")
                if thread == own_thread or _LIBRARY_THREADS.match(name):
                    continue
                fields = rest.split()
                self.cpu_s += (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
                if python is None or thread in python:
                    status = _read("/proc/%d/task/%d/status" % (pid, thread))
                    self.wakes += int(status.rpartition("\nvoluntary_ctxt_switches:")[2].split()[0])


def is_active(before: Sample, after: Sample) -> bool:
    """Whether the process computes, is woken often, receives data, or reads and writes files."""
    span = max(after.at - before.at, 0.001)
    if (after.cpu_s - before.cpu_s) / span > _BUSY_SHARE or (after.wakes - before.wakes) / span > _MAX_IDLE_WAKES:
        return True
    new = after.socket_bytes.keys() & before.socket_bytes.keys()
    received = sum(max(after.socket_bytes[each] - before.socket_bytes[each], 0) for each in new)
    return received / span > _MIN_SOCKET_BYTES_PER_S or writes(before, after)


def writes(before: Sample, after: Sample) -> bool:
    """Whether the process reads or writes files."""
    span = max(after.at - before.at, 0.001)
    return (after.io_bytes - before.io_bytes) / span > _MIN_WRITE_BYTES_PER_S


def read_state(pid: int) -> str:
    """The state of the main thread: R, S, D, T, t or Z; empty if the process is gone."""
    try:
        return _read("/proc/%d/stat" % pid).rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def read_wchan(pid: int) -> str:
    """The kernel function in which the main thread sleeps; empty if the kernel does not say."""
    try:
        found = _read("/proc/%d/wchan" % pid).strip()
    except OSError:
        return ""
    return "" if found == "0" else found


def catches_signal(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal: without one, it would end the process."""
    try:
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", _read("/proc/%d/status" % pid), re.MULTILINE)
    except OSError:
        return False
    return bool(caught and int(caught[1], 16) >> (number - 1) & 1)


def list_unacknowledged(pid: int) -> list[dict[str, Any]]:
    """The established TCP connections of a process whose last segments were sent again."""
    inodes, found = socket_bytes.list_sockets(pid), []
    for path in ("/proc/%d/net/tcp" % pid, "/proc/%d/net/tcp6" % pid):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in _read(path).splitlines()[1:]:
                fields = line.split()
                queued, again = int(fields[4].partition(":")[0], 16), int(fields[6], 16)
                if fields[3] == _ESTABLISHED and queued and again and fields[9] in inodes:
                    ends = {"local": _read_address(fields[1]), "peer": _read_address(fields[2])}
                    found.append({**ends, "retransmits": again, "queued": queued})
    return found[:16]


def _read_address(text: str) -> str:
    """`0100007F:1F90` as 127.0.0.1: words of 32 bits in the machine's byte order."""
    words = bytes.fromhex(text.partition(":")[0])
    packed = b"".join(struct.pack(">I", word) for (word,) in struct.iter_unpack("=I", words))
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def _list_descendants(pid: int) -> list[int]:
    found, todo = [], [pid]
    while todo:
        each = todo.pop()
        for thread in _list_folder("/proc/%d/task" % each):
            with contextlib.suppress(OSError, ValueError):
                children = [int(child) for child in _read("/proc/%d/task/%s/children" % (each, thread)).split()]
                found += children
                todo += children
    return found


def _read_io(pid: int) -> int:
    try:
        said = dict(line.split(": ") for line in _read("/proc/%d/io" % pid).splitlines())
        return int(said["rchar"]) + int(said["wchar"])
    except (OSError, ValueError, KeyError):
        return 0


def _list_folder(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
