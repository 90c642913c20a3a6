"""Which host a recorded state belongs to. Standard library only, Python 3.8 or newer.

A process id means something only on one host, and there only in one PID namespace: each container has its own. Several
hosts and containers may see one folder of runs, through a network filesystem or a volume, and may have one host name.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

Json = Any
# The other filesystems may be mounted by several machines at once.
_LOCAL_FILESYSTEMS = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})

NEVER = ("", 0.0)  # the moment of what has not happened yet

HERE = "here"  # this PID namespace of this boot
OTHER_NAMESPACE = "other-namespace"  # a container of this machine, which may have ended
EARLIER_BOOT = "earlier-boot"  # of this machine: nothing of it lives
OTHER_MACHINE = "other-machine"


def identify_host() -> dict[str, str]:
    """This host's fields of a state. `boot` and `pid_namespace` are empty if they cannot be read."""
    return {"boot": read_boot_id(), "pid_namespace": _read_pid_namespace(), "hostname": socket.gethostname()}


def read_boot_id() -> str:
    """The kernel's id of this boot; empty if it cannot be read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def read_boot_clock() -> tuple[str, float]:
    """The moment now, for `measure_time_since`: this boot, and the seconds since it."""
    return read_boot_id(), read_uptime()


def read_uptime() -> float:
    """Seconds since this boot, also those in which the machine was suspended, which a monotonic clock leaves out."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def measure_time_since(moment: Json) -> float:
    """Seconds since a moment of `read_boot_clock`, by the kernel's clock since boot, which is never set; 0 at least.

    A moment that was stored with rounded digits may lie a little ahead. A moment before the last boot has an unknown
    age: the seconds since this boot, which have passed at least.
    """
    boot_id, seconds = read_boot_clock()
    is_this_boot = bool(boot_id) and moment[0] == boot_id
    return max(seconds - float(moment[1]), 0.0) if is_this_boot else seconds


def _read_pid_namespace() -> str:
    """The PID namespace of this process, as `pid:[4026531836]`; empty if it cannot be read."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def locate_host(state: Json, folder: str) -> str:
    """Where the processes of a state are, as one of the constants above. `folder` is the one that has the state."""
    host = identify_host()
    if state.get("boot") == host["boot"]:
        return HERE if state.get("pid_namespace") == host["pid_namespace"] else OTHER_NAMESPACE
    has_boot_ids = bool(state.get("boot") and host["boot"])
    if has_boot_ids and (is_on_local_filesystem(folder) or state.get("hostname") == host["hostname"]):
        return EARLIER_BOOT
    return OTHER_MACHINE


def describe_location(state: Json, location: str) -> str:
    """Where the processes of a state are, as the part of a sentence."""
    name = state.get("hostname") or "a host without a name"
    if location == OTHER_NAMESPACE:
        return "in another PID namespace (a container) of this machine, whose host name is %s" % name
    return "on another machine, whose host name is %s" % name


def is_on_local_filesystem(path: str) -> bool:
    """Whether only this machine can have mounted the filesystem of a path; False if that is not known."""
    path = os.path.realpath(path)
    mount_point = ""
    filesystem = ""
    for line in _read_mounts():
        fields, _, source = line.partition(" - ")
        candidate = fields.split(" ")[4]
        is_above = path == candidate or path.startswith(candidate.rstrip("/") + "/")
        if is_above and len(candidate) >= len(mount_point):  # of two mounts at one place the later one is visible
            mount_point = candidate
            filesystem = source.split(" ")[0]
    return filesystem in _LOCAL_FILESYSTEMS


def _read_mounts() -> list[str]:
    """The lines of this process's mount table; empty if it cannot be read."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            return file.read().splitlines()
    except OSError:
        return []
