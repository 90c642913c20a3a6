"""Which way leads to another host. Standard library only, Python 3.8 or newer."""

from __future__ import annotations

import fcntl
import socket
import struct

SIOCGIFADDR = 0x8915


def interface(toward: str) -> str | None:
    """The interface whose packets reach an address; None where there is no way, or it ends in this host.

    gloo and NCCL would take that of the host's own name, which Debian maps to 127.0.1.1.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.connect((toward, 9))  # nothing is sent
            own = end.getsockname()[0]
            found = [name for _, name in socket.if_nameindex() if address(end, name) == own]
    except OSError:
        return None
    return found[0] if found and found[0] != "lo" else None


def address(end: socket.socket, name: str) -> str:
    """The IPv4 address of an interface; empty where it has none."""
    try:
        answer = fcntl.ioctl(end.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return ""
    return socket.inet_ntoa(answer[20:24])


def choose(toward: str) -> dict[str, str]:
    """What tells gloo and NCCL; the `=` keeps NCCL from taking eth10 for eth1."""
    name = interface(toward)
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": "=" + name} if name else {}
