"""The network interface and addresses that lead to other hosts. Standard library only, Python 3.8 or newer."""

from __future__ import annotations

import fcntl
import socket
import struct
from typing import Any

_SIOCGIFADDR = 0x8915
LISTEN_URLS_PLACEHOLDER = "{listen-urls}"  # an argument, or part of one, that the supervisor fills in
Json = Any


def _find_interface(toward: str) -> str | None:
    """The interface that leads to an address; None if there is no route, or the address is local.

    By themselves, gloo and NCCL take the interface of the host's own name, which Debian maps to 127.0.1.1.
    """
    own = _find_source_address(toward)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            found = [name for _, name in socket.if_nameindex() if own and _read_interface_address(end, name) == own]
    except OSError:
        return None
    return found[0] if found and found[0] != "lo" else None


def find_listen_urls(serves: Json) -> str:
    """The URLs on which the job's store listens, in etcd's format: the addresses of this host that its agents use.

    These are the addresses that the store's name resolves to here, which the agent on this host uses, and the source
    addresses of the routes to the other hosts, where the name may resolve to another one (it is 127.0.1.1 here, or
    translated). If other hosts can reach none of them, the store listens on all: a run without it is no safer.
    """
    ways = [_find_source_address(host) for host in serves["toward"]]
    own = [each for each in dict.fromkeys(_resolve_name(serves["name"]) + ways) if _is_own_address(each)]
    reached = any(ways) or any(not each.startswith("127.") for each in own)
    return ",".join("http://%s:%d" % (each, serves["port"]) for each in (own if reached else ["0.0.0.0"]))


def _resolve_name(name: str) -> list[str]:
    """The IPv4 addresses that a name (or an address) resolves to on this host."""
    try:
        return socket.gethostbyname_ex(name)[2]
    except (OSError, UnicodeError):
        return []


def _find_source_address(host: str) -> str:
    """The source address of packets from this host to another one; empty if there is no route."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.connect((host, 9))  # nothing is sent
            return str(end.getsockname()[0])
    except (OSError, UnicodeError):
        return ""


def _is_own_address(address: str) -> bool:
    """Whether this host has the address: only then can it listen there."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.bind((address, 0))
            return address not in ("", "0.0.0.0")
    except OSError:
        return False


def _read_interface_address(end: socket.socket, name: str) -> str:
    """The IPv4 address of an interface; empty if it has none."""
    try:
        answer = fcntl.ioctl(end.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return ""
    return socket.inet_ntoa(answer[20:24])


def choose_interface_env(toward: str) -> dict[str, str]:
    """The variables that name the interface for gloo and NCCL; the `=` keeps NCCL from taking eth10 for eth1."""
    name = _find_interface(toward)
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": "=" + name} if name else {}
