#!/usr/bin/env python3
"""Probe what preflight checks on a host. Standard library only, Python 3.8 or newer.

The launcher starts it as `PYTHON facts.py` on its own machine and sends its text to a host behind ssh, with
{"needs": [requirement, ...]} on stdin. It prints one result per requirement, as a JSON list in the same order. For
requirements on packages, PYTHON is the job's own interpreter.

A probe does not raise an error for what it tests: its result has the reason (`error`).
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from typing import Any

Json = Any


def probe_folder(requirement: Json) -> Json:
    """Create the folder and write to it, as the run will; then remove the folders that did not exist before.

    The result has the free bytes for this user (`free`), or `error`.
    """
    path = os.path.abspath(requirement["path"])
    existing_folder = path
    while not os.path.lexists(existing_folder):
        existing_folder = os.path.dirname(existing_folder)
    probe_path = os.path.join(path, ".writable-%d" % os.getpid())
    try:
        os.makedirs(path, exist_ok=True)
        with open(probe_path, "w", encoding="utf-8") as file:
            file.write("x")
        os.unlink(probe_path)
        usage = os.statvfs(path)
    except OSError as error:
        return {"error": "%s: %s" % (error.strerror, error.filename or path)}
    finally:
        _remove_empty_folders(path, existing_folder)
    return {"free": usage.f_bavail * usage.f_frsize}


def _remove_empty_folders(path: str, stop_at: str) -> None:
    """Remove the empty folders from `path` upwards, up to but not including `stop_at`."""
    while path != stop_at:
        try:
            os.rmdir(path)
        except OSError:
            pass
        path = os.path.dirname(path)


def probe_file(requirement: Json) -> Json:
    """Whether a file exists, and whether this user can read it."""
    return {"exists": os.path.isfile(requirement["path"]), "readable": os.access(requirement["path"], os.R_OK)}


def probe_package(requirement: Json) -> Json:
    """The version of a package, or of the interpreter itself (`python`); None if it is not installed."""
    if requirement["name"] == "python":
        return {"version": "%d.%d.%d" % sys.version_info[:3]}
    try:
        return {"version": importlib.metadata.version(requirement["name"])}
    except importlib.metadata.PackageNotFoundError:
        return {"version": None}


def probe_port(requirement: Json) -> Json:
    """Listen on a port for a moment: the only proof that it is free. If it is not, the result names the holder."""
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            listener.bind(("", requirement["port"]))
            listener.listen()
        except OSError as error:
            holder = _find_port_holder(requirement["port"], requirement["label"])
            return dict(holder, free=False, error=error.strerror)
    return {"free": True}


def _find_port_holder(port: int, label: str) -> Json:
    """The process that listens on a port: `holder`, as `pid 123 (python3 server.py)`, and `ours` if it has the label.

    `holder` is empty if the process belongs to another user.
    """
    sockets = _list_listening_sockets(port)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            links = [os.readlink("/proc/%s/fd/%s" % (pid, fd)) for fd in os.listdir("/proc/%s/fd" % pid)]
            if not sockets.intersection(links):
                continue
            with open("/proc/%s/cmdline" % pid, "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()[:80]
            with open("/proc/%s/environ" % pid, "rb") as file:
                environment = b"\0" + file.read()
        except OSError:
            continue
        is_ours = bool(label) and b"\0TORCHYARD_JOB=" + label.encode() in environment
        return {"holder": "pid %s (%s)" % (pid, command), "ours": is_ours}
    return {"holder": "", "ours": False}


def _list_listening_sockets(port: int) -> set[str]:
    """The listening sockets of a port, as /proc/PID/fd names them."""
    sockets: set[str] = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(path, encoding="utf-8") as table:
                rows = [line.split() for line in table.readlines()[1:]]
        except OSError:
            continue
        for row in rows:
            is_listening = row[3] == "0A"
            if is_listening and int(row[1].split(":")[1], 16) == port:
                sockets.add("socket:[%s]" % row[9])
    return sockets


def probe_processors(requirement: Json) -> Json:
    """The number of processors that this process may use."""
    return {"count": len(os.sched_getaffinity(0))}


def probe_gpus(requirement: Json) -> Json:
    """The number of GPUs that the drivers of NVIDIA and AMD report (`count`); None if neither driver is visible."""
    return {"count": count_gpus("/")}


def count_gpus(root: str) -> int | None:
    """See `probe_gpus`; `root` is the folder that has proc and sys."""
    counts: list[int] = []
    try:
        counts.append(len(os.listdir(os.path.join(root, "proc/driver/nvidia/gpus"))))
    except OSError:
        pass
    nodes_path = os.path.join(root, "sys/class/kfd/kfd/topology/nodes")
    try:
        counts.append(sum(_is_amd_gpu(os.path.join(nodes_path, node)) for node in os.listdir(nodes_path)))
    except OSError:
        pass
    return sum(counts) if counts else None


def _is_amd_gpu(node_path: str) -> bool:
    """Whether a node of AMD's topology is a GPU: a processor has no SIMD units."""
    with open(os.path.join(node_path, "properties"), encoding="utf-8") as file:
        properties = dict(line.split(None, 1) for line in file if " " in line)
    return int(properties.get("simd_count", 0)) > 0


def probe_route(requirement: Json) -> Json:
    """The local (`through`) and the remote address (`to`) of a route; `error` if there is none. No packet is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((requirement["address"], 9))
            return {"through": sock.getsockname()[0], "to": sock.getpeername()[0]}
    except OSError as error:
        return {"error": error.strerror or str(error)}


def probe_clock(requirement: Json) -> Json:
    """The host's time in seconds since the epoch."""
    return {"now": time.time()}


def probe_store(requirement: Json) -> Json:
    """The HTTP status (`code`) of a rendezvous store's response, requested directly and not through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(requirement["url"], timeout=5):
            return {"code": 200}
    except urllib.error.HTTPError as error:
        return {"code": error.code}
    except OSError as error:
        return {"error": str(error)}


def probe_runai(requirement: Json) -> Json:
    """The state of Run:ai's CLI; only on the launcher's machine, which has the file runai_cli.py."""
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from torchyard.host.runai_cli import check_cli

    return check_cli(requirement)


PROBES = {
    "folder": probe_folder,
    "file": probe_file,
    "package": probe_package,
    "port": probe_port,
    "processors": probe_processors,
    "gpus": probe_gpus,
    "reachable": probe_route,
    "clock": probe_clock,
    "store": probe_store,
    "runai": probe_runai,
}

if __name__ == "__main__":
    requirements = json.load(sys.stdin)["needs"]
    print(json.dumps([PROBES[requirement["kind"]](requirement) for requirement in requirements]))
