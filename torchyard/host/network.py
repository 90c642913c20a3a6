"""The network interface and addresses that lead to other hosts. Standard library only, Python 3.8 or newer."""

from __future__ import annotations

import fcntl
import socket
import struct
from typing import Any

LISTEN_URLS_PLACEHOLDER = "{listen-urls}"  # an argument, or part of one, that the supervisor fills in
_SIOCGIFADDR = 0x8915  # ioctl: the IPv4 address of an interface
_UNUSED_PORT = 9  # connecting a UDP socket only chooses a route: nothing is sent
Json = Any


def choose_interface_env(destination: str) -> dict[str, str]:
    """The variables that name the interface toward `destination` for gloo and NCCL; empty if it is unknown.

    The `=` keeps NCCL from taking eth10 for eth1.
    """
    name = _find_interface(destination)
    if name is None:
        return {}
    return {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": "=" + name}


def find_listen_urls(store: Json) -> str:
    """The URLs on which the job's store listens, in etcd's format: the addresses of this host that its agents use.

    `store` has the store's `name`, its `port`, and the other hosts (`toward`). The addresses are those that the name
    resolves to here, which the agent on this host uses, and the source addresses of the routes to the other hosts,
    where the name may resolve to another one (it is 127.0.1.1 here, or translated). If other hosts can reach none of
    them, the store listens on all addresses: a run without a store is no safer.
    """
    addresses = resolve_name(store["name"])
    has_route = False
    for host in store["toward"]:
        source_address = find_source_address(host)
        if source_address is not None:
            has_route = True
            addresses.append(source_address)
    own_addresses = [address for address in dict.fromkeys(addresses) if is_own_address(address)]
    if not has_route and all(address.startswith("127.") for address in own_addresses):
        own_addresses = ["0.0.0.0"]
    return ",".join("http://%s:%d" % (address, store["port"]) for address in own_addresses)


def _find_interface(destination: str) -> str | None:
    """The interface that leads to an address; None if there is no route, or the address is local.

    By themselves, gloo and NCCL take the interface of the host's own name, which Debian maps to 127.0.1.1.
    """
    source_address = find_source_address(destination)
    if source_address is None:
        return None
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for _, name in socket.if_nameindex():
                if _read_interface_address(sock, name) == source_address:
                    return name if name != "lo" else None
    except OSError:
        pass
    return None


def resolve_name(name: str) -> list[str]:
    """The IPv4 addresses that a name (or an address) resolves to on this host; empty if it resolves to none."""
    try:
        return socket.gethostbyname_ex(name)[2]
    except (OSError, UnicodeError):
        return []


def find_source_address(host: str) -> str | None:
    """The source address of packets from this host to another one; None if there is no route."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((host, _UNUSED_PORT))
            return str(sock.getsockname()[0])
    except (OSError, UnicodeError):
        return None


def is_own_address(address: str) -> bool:
    """Whether this host has the address: only then can the store listen on it."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((address, 0))
            return address not in ("", "0.0.0.0")
    except OSError:
        return False


def _read_interface_address(sock: socket.socket, name: str) -> str | None:
    """The IPv4 address of an interface; None if it has none."""
    try:
        ifreq = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
    except OSError:
        return None
    return socket.inet_ntoa(ifreq[20:24])
