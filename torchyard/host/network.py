"""The network interface and addresses that lead to other hosts. Standard library only, Python 3.8 or newer."""

from __future__ import annotations

import fcntl
import socket
import struct
from typing import Any

_SIOCGIFADDR = 0x8915
LISTEN_URLS_PLACEHOLDER = "{listen-urls}"  # an argument, or part of one, that the supervisor fills in
Json = Any


def _find_interface(destination: str) -> str | None:
    """The interface that leads to an address; None if there is no route, or the address is local.

    By themselves, gloo and NCCL take the interface of the host's own name, which Debian maps to 127.0.1.1.
    """
    source_address = _find_source_address(destination)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            interfaces = [
                name
                for _, name in socket.if_nameindex()
                if source_address and _read_interface_address(sock, name) == source_address
            ]
    except OSError:
        return None
    return interfaces[0] if interfaces and interfaces[0] != "lo" else None


def find_listen_urls(store: Json) -> str:
    """The URLs on which the job's store listens, in etcd's format: the addresses of this host that its agents use.

    These are the addresses that the store's name resolves to here, which the agent on this host uses, and the source
    addresses of the routes to the other hosts, where the name may resolve to another one (it is 127.0.1.1 here, or
    translated). If other hosts can reach none of them, the store listens on all: a run without it is no safer.
    """
    source_addresses = [_find_source_address(host) for host in store["toward"]]
    own_addresses = [
        address
        for address in dict.fromkeys(_resolve_name(store["name"]) + source_addresses)
        if _is_own_address(address)
    ]
    is_reachable = any(source_addresses) or any(not address.startswith("127.") for address in own_addresses)
    return ",".join(
        "http://%s:%d" % (address, store["port"]) for address in (own_addresses if is_reachable else ["0.0.0.0"])
    )


def _resolve_name(name: str) -> list[str]:
    """The IPv4 addresses that a name (or an address) resolves to on this host."""
    try:
        return socket.gethostbyname_ex(name)[2]
    except (OSError, UnicodeError):
        return []


def _find_source_address(host: str) -> str:
    """The source address of packets from this host to another one; empty if there is no route."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((host, 9))  # nothing is sent
            return str(sock.getsockname()[0])
    except (OSError, UnicodeError):
        return ""


def _is_own_address(address: str) -> bool:
    """Whether this host has the address: only then can it listen there."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((address, 0))
            return address not in ("", "0.0.0.0")
    except OSError:
        return False


def _read_interface_address(sock: socket.socket, name: str) -> str:
    """The IPv4 address of an interface; empty if it has none."""
    try:
        ifreq = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return ""
    return socket.inet_ntoa(ifreq[20:24])


def choose_interface_env(destination: str) -> dict[str, str]:
    """The variables that name the interface for gloo and NCCL; the `=` keeps NCCL from taking eth10 for eth1."""
    name = _find_interface(destination)
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": "=" + name} if name else {}
