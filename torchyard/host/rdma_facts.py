"""Prints what a pod has for RDMA, as one JSON line, before the job starts.

The pod's shell passes this text to the image's Python (agents/command.py), so it needs only Python 3.6 and the standard
library. With the argument `required` it exits with `UNUSABLE_EXIT_CODE` and a sentence on stderr if NCCL's own
transport cannot work in the pod. Options that NCCL reads (NCCL_IB_HCA, NCCL_IB_GID_INDEX) are read from the
environment, as the job's processes do.
"""

import ctypes
import json
import os
import resource
import socket
import sys
from typing import Any, Dict, List, Sequence

_MAX_GIDS = 16  # of a port; a table has up to 256 slots, most of them empty
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_CUDA_VERSIONS = (13, 12, 11)
UNUSABLE_EXIT_CODE = 64  # Python itself ends with other codes: an error of this program must not end the pod


def read_text(path: str) -> str:
    """A file of sysfs; empty if it cannot be read, as the slots of other network namespaces cannot."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def list_names(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder), key=lambda name: (len(name), name))
    except OSError:
        return []


def is_selected(device: str, port: str, rule: str) -> bool:
    """Whether a value of NCCL_IB_HCA selects a port: by prefix, by exact name after `=`, or all others after `^`."""
    names = rule.lstrip("^=")
    if not names:
        return True
    is_exact = "=" in rule[:2]
    is_listed = False
    for entry in names.split(","):
        name, _, number = entry.partition(":")
        is_same_device = device == name if is_exact else device.startswith(name)
        if name and is_same_device and number in ("", port):
            is_listed = True
    return is_listed != rule.startswith("^")


def list_gids(port_path: str) -> List[List[Any]]:
    """The port's GIDs that are not empty: index, address, type, interface."""
    gids: List[List[Any]] = []
    for index in list_names(port_path + "/gids"):
        address = read_text(port_path + "/gids/" + index)
        if address and address != _NO_GID:
            gid_type = read_text("%s/gid_attrs/types/%s" % (port_path, index))
            interface = read_text("%s/gid_attrs/ndevs/%s" % (port_path, index))
            gids.append([int(index), address, gid_type, interface])
    return gids[:_MAX_GIDS]


def list_ports(root: str) -> List[Dict[str, Any]]:
    """The ports that NCCL may use, with their attributes in sysfs."""
    ports: List[Dict[str, Any]] = []
    rule = os.environ.get("NCCL_IB_HCA", "")
    for device in list_names(root + "/class/infiniband"):
        folder = "%s/class/infiniband/%s/ports" % (root, device)
        for number in list_names(folder):
            if is_selected(device, number, rule):
                path = "%s/%s" % (folder, number)
                port: Dict[str, Any] = {"port": "%s/%s" % (device, number), "gids": list_gids(path)}
                for attribute in ("state", "link_layer", "rate"):
                    port[attribute] = read_text("%s/%s" % (path, attribute))
                ports.append(port)
    return ports


def find_nccl() -> str:
    """The version of the installed NCCL package; empty if the image has NCCL from another source."""
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


def list_problems(ports: List[Dict[str, Any]], devices: List[str], *, libibverbs: bool) -> List[str]:
    """Why NCCL's own transport cannot work in this pod; empty if nothing prevents it."""
    problems: List[str] = []
    if not devices:
        problems.append("the pod has no /dev/infiniband/uverbs*: ask for the RDMA resource, or mount the devices")
    if not ports:
        rule = os.environ.get("NCCL_IB_HCA", "")
        suffix = " fits NCCL_IB_HCA=" + rule if rule else ""
        problems.append("no RDMA device%s: see /sys/class/infiniband" % suffix)
    elif not any("ACTIVE" in port["state"] for port in ports):
        problems.append("no port is ACTIVE: %s is %s" % (ports[0]["port"], ports[0]["state"] or "unknown"))
    if not libibverbs:
        problems.append("the image has no libibverbs.so.1: install libibverbs1 and ibverbs-providers")
    return problems


def main(argv: Sequence[str], root: str = "/") -> int:
    """Print what the pod has as JSON; return the exit code. `root` is another root folder in tests."""
    ports = list_ports(root + "sys")
    libibverbs = has_libibverbs()
    devices = [name for name in list_names(root + "dev/infiniband") if name.startswith("uverbs")]
    problems = list_problems(ports, devices, libibverbs=libibverbs)
    report: Dict[str, Any] = {
        "lacks": problems,
        "node": socket.gethostname(),
        "devices": len(devices),
        "libibverbs": libibverbs,
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],  # bytes; -1 is unlimited
        "nccl": find_nccl(),
        "gid_index": os.environ.get("NCCL_IB_GID_INDEX", ""),
        "ports": ports,
    }
    print(json.dumps({"torchyard_rdma": report}), flush=True)
    if problems and "required" in argv:
        print("torchyard: error: this pod cannot use RDMA: " + "; ".join(problems), file=sys.stderr, flush=True)
        return UNUSABLE_EXIT_CODE
    return 0


if __name__ == "__main__":
    try:
        exit_code = main(sys.argv[1:])
    except Exception as error:
        print("torchyard: cannot read what this pod has for RDMA: %r" % error, file=sys.stderr, flush=True)
        exit_code = 0
    sys.exit(exit_code)
