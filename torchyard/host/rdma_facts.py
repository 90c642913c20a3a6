"""Prints what a pod has for RDMA, as one JSON line, before the job starts.

The pod's shell gives this text to the image's Python (agents/command.py), so it needs only Python 3.7 and the standard
library. With the word `required` it exits with 1 and a sentence if NCCL's own transport cannot work there. Options that
NCCL reads (NCCL_IB_HCA, NCCL_IB_GID_INDEX) are read from the environment, as the job's processes will see them.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import socket
import sys
from typing import Any, Sequence

_MAX_GIDS = 16  # of a port; a table has up to 256 slots, most of them empty
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_CUDA_VERSIONS = (13, 12, 11)


def read_text(path: str) -> str:
    """A file of sysfs; empty if it cannot be read, as the slots of other network namespaces cannot."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def list_names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder), key=lambda name: (len(name), name))
    except OSError:
        return []


def is_chosen(device: str, port: str, rule: str) -> bool:
    """Whether NCCL_IB_HCA chooses a port: prefixes, exact names after `=`, those to leave out after `^`."""
    names = rule.lstrip("^=")
    is_exact, is_excluding = "=" in rule[:2], rule.startswith("^")
    found = not names
    for each in names.split(","):
        name, _, number = each.partition(":")
        same = device == name if is_exact else device.startswith(name)
        found = found or bool(name and same and number in ("", port))
    return found != (is_excluding and bool(names))


def list_gids(port: str) -> list[list[Any]]:
    """The port's GIDs that are not empty: index, address, type, interface."""
    found: list[list[Any]] = []
    for index in list_names(port + "/gids"):
        gid = read_text(port + "/gids/" + index)
        if gid and gid != _NO_GID:
            about = (read_text("%s/gid_attrs/%s/%s" % (port, part, index)) for part in ("types", "ndevs"))
            found.append([int(index), gid] + list(about))
    return found[:_MAX_GIDS]


def list_ports(root: str) -> list[dict[str, Any]]:
    """The ports that NCCL may use, and what the kernel says of them."""
    found: list[dict[str, Any]] = []
    rule = os.environ.get("NCCL_IB_HCA", "")
    for device in list_names(root + "/class/infiniband"):
        ports = "%s/class/infiniband/%s/ports" % (root, device)
        for number in list_names(ports):
            if is_chosen(device, number, rule):
                port = "%s/%s" % (ports, number)
                facts = {key: read_text("%s/%s" % (port, key)) for key in ("state", "link_layer", "rate")}
                found.append(dict(port="%s/%s" % (device, number), gids=list_gids(port), **facts))
    return found


def find_nccl() -> str:
    """The version of the NCCL package beside torch; empty if the image has it from elsewhere."""
    try:
        from importlib.metadata import version
    except ImportError:  # before Python 3.8
        return ""
    for cuda in _CUDA_VERSIONS:
        try:
            return version("nvidia-nccl-cu%d" % cuda)
        except Exception:
            continue
    return ""


def has_libibverbs() -> bool:
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        return False
    return True


def list_lacks(ports: list[dict[str, Any]], devices: list[str], libibverbs: bool) -> list[str]:
    """Why NCCL's own transport cannot work here; empty if nothing is known that prevents it."""
    lacks: list[str] = []
    if not devices:
        lacks.append("the pod has no /dev/infiniband/uverbs*: ask for the RDMA resource, or mount the devices")
    if not ports:
        rule = os.environ.get("NCCL_IB_HCA", "")
        lacks.append("no RDMA device%s: see /sys/class/infiniband" % (" fits NCCL_IB_HCA=" + rule if rule else ""))
    elif not any("ACTIVE" in each["state"] for each in ports):
        lacks.append("no port is ACTIVE: %s is %s" % (ports[0]["port"], ports[0]["state"] or "unknown"))
    if not libibverbs:
        lacks.append("the image has no libibverbs.so.1: install libibverbs1 and ibverbs-providers")
    return lacks


def main(words: Sequence[str], root: str = "/") -> int:
    """Print the facts; returns the exit code."""
    ports, libibverbs = list_ports(root + "sys"), has_libibverbs()
    devices = [name for name in list_names(root + "dev/infiniband") if name.startswith("uverbs")]
    lacks = list_lacks(ports, devices, libibverbs)
    facts: dict[str, Any] = {
        "lacks": lacks,
        "node": socket.gethostname(),
        "devices": len(devices),
        "libibverbs": libibverbs,
    }
    facts["memlock"] = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]  # bytes; -1 is unlimited
    facts["nccl"], facts["gid_index"] = find_nccl(), os.environ.get("NCCL_IB_GID_INDEX", "")
    facts["ports"] = ports
    print(json.dumps({"torchyard_rdma": facts}), flush=True)
    if lacks and "required" in words:
        print("torchyard: error: this pod cannot use RDMA: " + "; ".join(lacks), file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
