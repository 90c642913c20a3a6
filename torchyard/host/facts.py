#!/usr/bin/env python3
"""Report the facts that preflight needs about a host. Standard library only, Python 3.8 or newer.

The launcher starts it as `PYTHON facts.py` on its own machine and sends its text to a host behind ssh, with
{"needs": [requirement, ...]} on stdin. It prints one fact per requirement, as a JSON list in the same order. For
questions about packages, PYTHON is the job's own interpreter.
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
    """Create the folder and write to it, as the run will; then remove what did not exist before."""
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
    """Remove the empty folders from `path` upwards, up to but not including `kept`."""
    while path != stop_at:
        try:
            os.rmdir(path)
        except OSError:
            pass
        path = os.path.dirname(path)


def probe_file(requirement: Json) -> Json:
    return {"exists": os.path.isfile(requirement["path"]), "readable": os.access(requirement["path"], os.R_OK)}


def probe_package(requirement: Json) -> Json:
    if requirement["name"] == "python":
        return {"version": "%d.%d.%d" % sys.version_info[:3]}
    try:
        return {"version": importlib.metadata.version(requirement["name"])}
    except importlib.metadata.PackageNotFoundError:
        return {"version": None}


def probe_port(requirement: Json) -> Json:
    """Listen for a moment: the only proof that a port is free."""
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if listener.family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            listener.bind(("", requirement["port"]))
            listener.listen()
        except OSError as error:
            return dict(_find_port_holder(requirement["port"], requirement["label"]), free=False, error=error.strerror)
    return {"free": True}


def _find_port_holder(port: int, label: str) -> Json:
    """The process that listens on a port, as `pid 123 (python3 server.py)`; `ours` if it has the label."""
    inodes = _list_listening_sockets(port)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            links = [os.readlink("/proc/%s/fd/%s" % (pid, fd)) for fd in os.listdir("/proc/%s/fd" % pid)]
            if inodes.intersection(links):
                with open("/proc/%s/cmdline" % pid, "rb") as cmdline, open("/proc/%s/environ" % pid, "rb") as environ:
                    command = cmdline.read().replace(b"\0", b" ").decode(errors="replace").strip()[:80]
                    is_ours = bool(label) and b"\0TORCHYARD_JOB=" + label.encode() in b"\0" + environ.read()
                    return {"holder": "pid %s (%s)" % (pid, command), "ours": is_ours}
        except OSError:
            continue
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
        sockets.update(
            "socket:[%s]" % row[9] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port
        )
    return sockets


def probe_processors(requirement: Json) -> Json:
    return {"count": len(os.sched_getaffinity(0))}


def probe_route(requirement: Json) -> Json:
    """The local and the remote address of a route, if the name resolves and a route exists. No packet is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((requirement["address"], 9))
            return {"through": sock.getsockname()[0], "to": sock.getpeername()[0]}
    except OSError as error:
        return {"error": error.strerror or str(error)}


def probe_clock(requirement: Json) -> Json:
    return {"now": time.time()}


def probe_store(requirement: Json) -> Json:
    """The HTTP status that a rendezvous store answers, asked directly and not through a proxy."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(requirement["url"], timeout=5):
            return {"code": 200}
    except urllib.error.HTTPError as error:
        return {"code": error.code}
    except OSError as error:
        return {"error": str(error)}


def probe_runai(requirement: Json) -> Json:
    """The facts about Run:ai's CLI; only on the launcher's machine, which has the file runai_cli.py."""
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from torchyard.host.runai_cli import check_cli

    return check_cli(requirement)


PROBES = {
    "folder": probe_folder,
    "file": probe_file,
    "package": probe_package,
    "port": probe_port,
    "processors": probe_processors,
    "reachable": probe_route,
    "clock": probe_clock,
    "store": probe_store,
    "runai": probe_runai,
}

if __name__ == "__main__":
    print(json.dumps([PROBES[requirement["kind"]](requirement) for requirement in json.load(sys.stdin)["needs"]]))
