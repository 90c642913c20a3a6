#!/usr/bin/env python3
"""Check on a host what the job needs there. Standard library only, Python 3.8 or newer.

The launcher starts it as `PYTHON facts.py` on its own machine and sends its text to a host behind ssh, with
{"needs": [requirement, ...]} on stdin; for requirements on packages, PYTHON is the job's own interpreter. It prints
{"now": the host's time in seconds since the epoch, "findings": [...]} as JSON, with one finding per requirement in the
same order: its fields are those of torchyard/model/finding.py's Finding.

A probe does not raise an error for what it checks.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import socket
import sys
import time
from typing import Any

Json = Any

_MIN_FREE_BYTES = 100 * 2**20


def passed(subject: str, detail: str) -> Json:
    """A finding; see `Finding` for its parts."""
    return {"where": subject, "what": detail, "remedy": "", "verdict": "ok"}


def warning(subject: str, detail: str, remedy: str) -> Json:
    """A finding that does not prevent the run."""
    return {"where": subject, "what": detail, "remedy": remedy, "verdict": "warning"}


def failed(subject: str, detail: str, remedy: str) -> Json:
    """A finding that prevents the run."""
    return {"where": subject, "what": detail, "remedy": remedy, "verdict": "failed"}


def _describe_path(kind: str, requirement: Json) -> str:
    """A path with its kind, and with its host if that is not the launcher's machine."""
    suffix = "" if requirement["is_local"] else " on %s" % requirement["host"]
    return "%s %s%s" % (kind, requirement["path"], suffix)


def probe_folder(requirement: Json) -> Json:
    """Create the folder and write to it, as the run will; then remove the folders that did not exist before."""
    subject = _describe_path("run folder", requirement)
    remedy = "choose another folder with %s" % ("TORCHYARD_RUNS" if requirement["is_local"] else "options.folder")
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
        return failed(subject, "%s: %s" % (error.strerror, error.filename or path), remedy)
    finally:
        _remove_empty_folders(path, existing_folder)
    free_bytes = usage.f_bavail * usage.f_frsize
    free_text = "%.1f GiB free" % (free_bytes / 2**30)
    if free_bytes < _MIN_FREE_BYTES:
        return warning(subject, "only %s: a full disk costs log lines" % free_text, remedy)
    return passed(subject, free_text)


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
    subject = _describe_path("program", requirement)
    remedy = (
        "correct the profile's `program` (relative to the profile's folder or the project), or options.source of a "
        "module (relative to the profile's folder)"
    )
    if not requirement["is_local"]:
        remedy = "put it there, or remove options.program_there: then it is copied from this machine"
    if not os.path.exists(requirement["path"]):  # also for a name that cannot be a file's
        return failed(subject, "there is no such file", remedy)
    if not os.access(requirement["path"], os.R_OK):
        return failed(subject, "this user cannot read it", remedy)
    return passed(subject, "exists")


def probe_package(requirement: Json) -> Json:
    """Whether a package, or the interpreter itself (`python`), has at least the version that is needed."""
    name, needed_version = requirement["name"], requirement["minimum_version"]
    subject = "%s for %s on %s" % (name, requirement["python"], requirement["host"])
    remedy = "%s -m pip install '%s>=%s'" % (requirement["python"], name, needed_version)
    if name == "python":
        version = "%d.%d.%d" % sys.version_info[:3]
    else:
        installed_version = _find_version(name)
        if installed_version is None:
            return failed(subject, "is not installed (%s)" % requirement["reason"], remedy)
        version = installed_version
    if _parse_version(version) < _parse_version(needed_version):
        return failed(subject, "is %s, %s is needed" % (version, needed_version), remedy)
    recommended_version = requirement.get("recommended_version") or "0"
    if _parse_version(version) < _parse_version(recommended_version):
        newer = "%s -m pip install '%s>=%s'" % (requirement["python"], name, recommended_version)
        return warning(subject, "is %s: %s" % (version, requirement["limitation"]), newer)
    return passed(subject, version)


def _find_version(name: str) -> str | None:
    """The version of an installed package; None if it is not installed.

    The folder that a broken uninstallation or a full disk has left (`torch-2.1.0.dist-info` without METADATA) is not an
    installation; the package may be installed beside it.
    """
    for distribution in importlib.metadata.distributions(name=name):
        try:
            metadata = distribution.metadata
        except OSError:  # an interpreter newer than 3.14, for a folder without METADATA
            continue
        if "Version" in metadata:
            return metadata["Version"]
    return None


def _parse_version(version: str) -> list[int]:
    """`2.13.0+cu128` as `[2, 13, 0]`: enough to compare releases."""
    return [int(digits) for digits in re.findall(r"\d+", version.partition("+")[0])]


def probe_port(requirement: Json) -> Json:
    """Listen on a port for a moment: the only proof that it is free. A port that this run itself holds passes too."""
    port = requirement["port"]
    subject = "port %d on %s" % (port, requirement["host"])
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            listener.bind(("", port))
            listener.listen()
        except OSError:
            holder, is_ours = _find_port_holder(port, requirement["label"])
            if is_ours:
                return passed(subject, "is held by this run")
            remedy = "stop it, or choose another port with %s" % requirement["option"]
            finding = failed(subject, "is held by %s" % holder, remedy)
            return dict(finding, takes_other_port=requirement["is_derived"])
    return passed(subject, "is free")


def _find_port_holder(port: int, label: str) -> tuple[str, bool]:
    """The process that listens on a port, as `pid 123 (python3 server.py)`, and whether it has the label of the run."""
    sockets = _list_listening_sockets(port)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if not sockets.intersection(_list_open_files(pid)):
                continue
            with open("/proc/%s/cmdline" % pid, "rb") as file:
                command = file.read().replace(b"\0", b" ").decode(errors="replace").strip()[:80]
            with open("/proc/%s/environ" % pid, "rb") as file:
                environment = b"\0" + file.read()
        except OSError:
            continue
        is_ours = bool(label) and b"\0TORCHYARD_JOB=" + label.encode() in environment
        return "pid %s (%s)" % (pid, command), is_ours
    return "a process of another user", False


def _list_open_files(pid: str) -> list[str]:
    """The targets of a process's descriptors. Raises OSError for a process of another user, or one that has ended."""
    targets: list[str] = []
    for fd in os.listdir("/proc/%s/fd" % pid):
        try:
            targets.append(os.readlink("/proc/%s/fd/%s" % (pid, fd)))
        except FileNotFoundError:  # closed since
            pass
    return targets


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
    """Whether this process may use as many processors as the host has processes; fewer is a warning."""
    subject = "processors of %s" % requirement["host"]
    count = len(os.sched_getaffinity(0))
    detail = "%d for %d processes" % (count, requirement["count"])
    if count >= requirement["count"]:
        return passed(subject, detail)
    return warning(subject, detail + ": they will wait for each other", "fewer nodes or processes run faster here")


def probe_gpus(requirement: Json, root: str = "/") -> Json:
    """Whether the host has as many GPUs as its processes use; a warning if that cannot be known."""
    subject = "GPUs of %s" % requirement["host"]
    count = count_gpus(root)
    if count is None:  # in some containers the driver is not visible
        detail = "%d are needed, and neither the driver of NVIDIA nor that of AMD is visible" % requirement["count"]
        return warning(subject, detail, "check with nvidia-smi or rocm-smi on that host")
    detail = "%d for %d that the job uses there" % (count, requirement["count"])
    if count >= requirement["count"]:
        return passed(subject, detail)
    return failed(subject, detail, "lower resources.gpus, or choose other hosts")


def count_gpus(root: str) -> int | None:
    """The number of GPUs that the drivers of NVIDIA and AMD report; None if neither driver is visible.

    `root` is the folder that has proc and sys.
    """
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
    """Whether the host has a route to an address; no packet is sent."""
    subject = "route from %s to %s" % (requirement["host"], requirement["address"])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((requirement["address"], 9))
            source, destination = sock.getsockname()[0], sock.getpeername()[0]
    except OSError as error:
        remedy = "name an address that every host reaches: options.hosts: [{host: NAME, address: ADDRESS}, ...]"
        return failed(subject, error.strerror or str(error), remedy)
    return passed(subject, "%s is %s, from %s" % (requirement["address"], destination, source))


PROBES = {
    "folder": probe_folder,
    "file": probe_file,
    "package": probe_package,
    "port": probe_port,
    "processors": probe_processors,
    "gpus": probe_gpus,
    "reachable": probe_route,
}

if __name__ == "__main__":
    requirements = json.load(sys.stdin)["needs"]
    findings = [PROBES[requirement["kind"]](requirement) for requirement in requirements]
    print(json.dumps({"now": time.time(), "findings": findings}))
