"""Which way leads to another host. Standard library only, Python 3.8 or newer."""

from __future__ import annotations

import fcntl
import socket
import struct
from typing import Any

_SIOCGIFADDR = 0x8915
LISTEN_URLS_PLACEHOLDER = "{listen-urls}"  # a word of a command, or in one, that a keeper fills in
Json = Any


def _find_interface(toward: str) -> str | None:
    """The interface whose packets reach an address; None where there is no way, or it ends in this host.

    gloo and NCCL would take that of the host's own name, which Debian maps to 127.0.1.1.
    """
    own = _find_source_address(toward)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            found = [name for _, name in socket.if_nameindex() if own and _read_interface_address(end, name) == own]
    except OSError:
        return None
    return found[0] if found and found[0] != "lo" else None


def find_listen_urls(serves: Json) -> str:
    """Where a store of the job listens: at the addresses of this host by which its agents reach it, as etcd wants them.

    That is what its name means here, which the agent beside it uses, and the way to the other hosts, for theirs may
    mean another one (a name that is 127.0.1.1 here, an address that is translated). Where neither says anything that
    others reach, everywhere: a run that cannot meet is no safer.
    """
    ways = [_find_source_address(host) for host in serves["toward"]]
    own = [each for each in dict.fromkeys(_resolve_name(serves["name"]) + ways) if _is_own_address(each)]
    reached = any(ways) or any(not each.startswith("127.") for each in own)
    return ",".join("http://%s:%d" % (each, serves["port"]) for each in (own if reached else ["0.0.0.0"]))


def _resolve_name(name: str) -> list[str]:
    """The IPv4 addresses that a name, or an address, means on this host."""
    try:
        return socket.gethostbyname_ex(name)[2]
    except (OSError, UnicodeError):
        return []


def _find_source_address(host: str) -> str:
    """The address of this host that its packets to another one bear; empty where there is no way."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.connect((host, 9))  # nothing is sent
            return str(end.getsockname()[0])
    except (OSError, UnicodeError):
        return ""


def _is_own_address(address: str) -> bool:
    """Whether it is an address of this host: others cannot be listened on."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
            end.bind((address, 0))
            return address not in ("", "0.0.0.0")
    except OSError:
        return False


def _read_interface_address(end: socket.socket, name: str) -> str:
    """The IPv4 address of an interface; empty where it has none."""
    try:
        answer = fcntl.ioctl(end.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return ""
    return socket.inet_ntoa(answer[20:24])


def choose_interface_env(toward: str) -> dict[str, str]:
    """What tells gloo and NCCL; the `=` keeps NCCL from taking eth10 for eth1."""
    name = _find_interface(toward)
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": "=" + name} if name else {}
