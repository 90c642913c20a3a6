"""Read from /proc the state of a rank, in which kernel function it sleeps, and which connections retransmit."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import Any

from . import socket_bytes

_ESTABLISHED = "01"


def has_ended(pid: int) -> bool:
    """Whether there is no such process any more; one that its parent has not waited for still exists."""
    try:
        os.stat("/proc/%d" % pid)  # opens no file: also if the node has run out of descriptors
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False
    return False


def read_state(pid: int, thread: int = 0) -> str:
    """The state of a thread, by default of the main one: R, S, D, T, t or Z; empty if its process has ended.

    `?` if it cannot be read, or the thread alone has ended.
    """
    try:
        return _read_text("/proc/%d/task/%d/stat" % (pid, thread or pid)).rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "" if has_ended(pid) else "?"


def read_wchan(pid: int, thread: int) -> str:
    """The kernel function in which a thread sleeps; empty if it runs, or the kernel does not report it."""
    try:
        wchan = _read_text("/proc/%d/task/%d/wchan" % (pid, thread)).strip()
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


def _read_text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
