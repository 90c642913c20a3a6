"""Read from /proc whether a rank is active, in which kernel function it sleeps, and which connections retransmit."""

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
    """What a process and its descendants have used so far, read from /proc when the sample is made.

    Of the rank's own threads only Python's wakes are counted, because those of libraries poll. What cannot be read
    counts as 0: the process may have ended, or belong to another user.
    """

    def __init__(self, taken_at: float, pid: int, record: dict[str, Any]) -> None:
        self.taken_at = taken_at
        self.cpu_s = 0.0
        self.wakes = 0
        self.io_bytes = _read_io(pid)
        self._add_threads(pid, record["tid"], frozenset(record["threads"]))
        children = _list_descendants(pid)
        for child in children:
            self.io_bytes += _read_io(child)
            self._add_threads(child)
        self.socket_bytes = socket_bytes.count_received_bytes([pid, *children])

    def _add_threads(self, pid: int, recorder_thread: int = 0, python_threads: Container[int] | None = None) -> None:
        for thread in map(int, _list_folder("/proc/%d/task" % pid)):
            with contextlib.suppress(OSError, IndexError, ValueError):
                stat = _read_text("/proc/%d/task/%d/stat" % (pid, thread))
                name, _, tail = stat.partition("(")[2].rpartition(")")
                if thread == recorder_thread or _LIBRARY_THREADS.match(name):
                    continue
                fields = tail.split()
                self.cpu_s += (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
                if python_threads is None or thread in python_threads:
                    status = _read_text("/proc/%d/task/%d/status" % (pid, thread))
                    self.wakes += int(status.rpartition("\nvoluntary_ctxt_switches:")[2].split()[0])


def is_active(before: Sample, after: Sample) -> bool:
    """Whether the process computes, is woken often, receives data, or reads and writes files."""
    elapsed_s = max(after.taken_at - before.taken_at, 0.001)
    busy_share = (after.cpu_s - before.cpu_s) / elapsed_s
    wakes_per_s = (after.wakes - before.wakes) / elapsed_s
    if busy_share > _BUSY_SHARE or wakes_per_s > _MAX_IDLE_WAKES:
        return True
    inodes = after.socket_bytes.keys() & before.socket_bytes.keys()
    received = sum(max(after.socket_bytes[inode] - before.socket_bytes[inode], 0) for inode in inodes)
    return received / elapsed_s > _MIN_SOCKET_BYTES_PER_S or is_writing(before, after)


def is_writing(before: Sample, after: Sample) -> bool:
    """Whether the process reads or writes files."""
    elapsed_s = max(after.taken_at - before.taken_at, 0.001)
    return (after.io_bytes - before.io_bytes) / elapsed_s > _MIN_WRITE_BYTES_PER_S


def read_state(pid: int) -> str:
    """The state of the main thread: R, S, D, T, t or Z; empty if the process has ended."""
    try:
        return _read_text("/proc/%d/stat" % pid).rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def read_wchan(pid: int) -> str:
    """The kernel function in which the main thread sleeps; empty if it runs, or the kernel does not report it."""
    try:
        wchan = _read_text("/proc/%d/wchan" % pid).strip()
    except OSError:
        return ""
    return "" if wchan == "0" else wchan


def list_retransmitting_links(pid: int) -> list[dict[str, Any]]:
    """The established TCP connections of a process that retransmit, 16 at most, as JSON."""
    inodes = socket_bytes.list_socket_inodes(pid)
    links = []
    for path in ("/proc/%d/net/tcp" % pid, "/proc/%d/net/tcp6" % pid):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in _read_text(path).splitlines()[1:]:
                fields = line.split()
                queued = int(fields[4].partition(":")[0], 16)
                retransmits = int(fields[6], 16)
                if fields[3] == _ESTABLISHED and queued and retransmits and fields[9] in inodes:
                    links.append(
                        {
                            "local": _parse_address(fields[1]),
                            "peer": _parse_address(fields[2]),
                            "retransmits": retransmits,
                            "queued": queued,
                        }
                    )
    return links[:16]


def _parse_address(text: str) -> str:
    """`0100007F:1F90` as 127.0.0.1: integers of 32 bits in the machine's byte order."""
    raw = bytes.fromhex(text.partition(":")[0])
    packed = b"".join(struct.pack(">I", integer) for (integer,) in struct.iter_unpack("=I", raw))
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def _list_descendants(pid: int) -> list[int]:
    descendants: list[int] = []
    pending = [pid]
    while pending:
        parent = pending.pop()
        for thread in _list_folder("/proc/%d/task" % parent):
            with contextlib.suppress(OSError, ValueError):
                children = [int(child) for child in _read_text("/proc/%d/task/%s/children" % (parent, thread)).split()]
                descendants += children
                pending += children
    return descendants


def _read_io(pid: int) -> int:
    try:
        counters = dict(line.split(": ") for line in _read_text("/proc/%d/io" % pid).splitlines())
        return int(counters["rchar"]) + int(counters["wchar"])
    except (OSError, ValueError, KeyError):
        return 0


def _list_folder(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _read_text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
