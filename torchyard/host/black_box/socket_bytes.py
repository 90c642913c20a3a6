"""Count the bytes that processes have exchanged on TCP connections, by the kernel's sock_diag: a slow upload is work.

The response is a list of messages: a header of 16 bytes, `struct inet_diag_msg`, and attributes, one of them
`struct tcp_info`. Offsets are those of linux/inet_diag.h and linux/tcp.h, which only ever grow at their ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import Iterable, Iterator, NamedTuple, Tuple

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST = 0x1
_DUMP = 0x300
_TCP_INFO = 2
_ESTABLISHED = 1
_HEADER = struct.Struct("=IHHII")  # of a message: length, kind, flags, number, port
_ATTRIBUTE = struct.Struct("=HH")  # length, kind
_MESSAGE_BYTES = 72  # of struct inet_diag_msg
_INODE_OFFSET = 68
_PORTS = struct.Struct("!HH")  # of this end and of the other one
_PORTS_OFFSET = 4
_BYTES = struct.Struct("=QQ")
_BYTES_OFFSET = 120  # tcpi_bytes_acked and tcpi_bytes_received in struct tcp_info
_DONE = 3
_ERROR = 2
_RESPONSE_TIMEOUT_S = 1.0


class Connection(NamedTuple):
    """A TCP connection: the inode of its socket, the ports of both ends, and the bytes sent and received."""

    inode: int
    ports: Tuple[int, ...]
    bytes: int


def count_bytes(pids: Iterable[int], ignored_port: int = 0) -> dict[int, int]:
    """The bytes that these processes have sent and received so far on each TCP connection, by its socket's inode.

    ignored_port: connections with this port at either end are left out.

    Sent bytes count once the other end has acknowledged them. What the kernel does not report is missing: all
    connections, or those of IPv6.
    """
    inodes: set[int] = set()
    for pid in pids:
        inodes.update(map(int, list_socket_inodes(pid)))
    byte_counts: dict[int, int] = {}
    with contextlib.suppress(OSError, struct.error, AttributeError):
        for family in (socket.AF_INET, socket.AF_INET6) if inodes else ():
            for connection in _query_connections(family):
                if connection.inode in inodes and ignored_port not in connection.ports:
                    byte_counts[connection.inode] = connection.bytes
    return byte_counts


def list_socket_inodes(pid: int) -> set[str]:
    """The inodes of a process's sockets; empty if the process is gone or belongs to another user."""
    inodes = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/%d/fd" % pid):
            with contextlib.suppress(OSError):
                target = os.readlink("/proc/%d/fd/%s" % (pid, name))
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    return inodes


def _query_connections(family: int) -> Iterator[Connection]:
    """All established connections in this network namespace."""
    request = struct.pack("=BBBxI48x", family, socket.IPPROTO_TCP, 1 << (_TCP_INFO - 1), 1 << _ESTABLISHED)
    header = _HEADER.pack(_HEADER.size + len(request), _SOCK_DIAG_BY_FAMILY, _REQUEST | _DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as sock:
        sock.settimeout(_RESPONSE_TIMEOUT_S)
        sock.send(header + request)
        while True:
            data = sock.recv(1 << 17)
            while len(data) >= _HEADER.size:
                length, kind, _, _, _ = _HEADER.unpack_from(data)
                if kind in (_DONE, _ERROR) or length < _HEADER.size:
                    return
                yield from _parse_message(data[_HEADER.size : length])
                data = data[(length + 3) & ~3 :]


def _parse_message(message: bytes) -> Iterator[Connection]:
    (inode,) = struct.unpack_from("=I", message, _INODE_OFFSET)
    ports = _PORTS.unpack_from(message, _PORTS_OFFSET)
    attributes = message[_MESSAGE_BYTES:]
    while len(attributes) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(attributes)
        if length < _ATTRIBUTE.size:
            return
        if kind == _TCP_INFO and length >= _ATTRIBUTE.size + _BYTES_OFFSET + _BYTES.size:
            yield Connection(inode, ports, sum(_BYTES.unpack_from(attributes, _ATTRIBUTE.size + _BYTES_OFFSET)))
        attributes = attributes[(length + 3) & ~3 :]
