#!/usr/bin/env python3
"""The processes of a job on this host, found by label alone. Standard library only, Python 3.8 or newer.

A label is `<run>/<attempt>/<process>`; one that ends with a slash stands for all labels that start with it. A host that
has none of our files gets the text of this one with the call, as `python3 -c TEXT end LABEL GRACE`: it sends SIGTERM to
the processes with the label, SIGKILL after the grace (seconds), and prints what is left.

Only /proc is read. A process that ends meanwhile, or belongs to another user, counts as one without the label.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from typing import Any, Iterable

Json = Any
JOB_VARIABLE = "TORCHYARD_JOB"  # the label, in the environment of every process of a job
FOLDER_VARIABLE = "TORCHYARD_SUPERVISED"  # the folder that its supervisor writes
_KILL_TIMEOUT_S = 5.0
_PROCESS_FOLDER = re.compile(r"/([^/]+)(?:/attempt-|-)(\d+)/([^/]+)$")


def parse_label(folder: str) -> str:
    """The label of a process, derived from its folder's path; empty if the path is not of that form."""
    match = _PROCESS_FOLDER.search(os.path.abspath(folder))
    return "/".join(match.groups()) if match else ""


def find_labelled(label: str) -> list[int]:
    """The ids of the living processes with the label."""
    end = "" if label.endswith("/") else "\0"
    variable = ("%s=%s%s" % (JOB_VARIABLE, label, end)).encode()
    return [pid for pid in _list_pids() if has_variable(str(pid), variable)]


def _list_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def has_variable(pid: str, variable: bytes) -> bool:
    """Whether a variable of the process's environment starts with `variable` (`NAME=value`)."""
    return b"\0" + variable in b"\0" + _read_proc_file(pid, "environ") + b"\0"


def _read_proc_file(pid: object, name: str) -> bytes:
    """A file in /proc/PID; empty if the process has ended (or is a zombie), or is another user's."""
    try:
        with open("/proc/%s/%s" % (pid, name), "rb") as file:
            return file.read()
    except OSError:
        return b""


def _read_parent_pid(pid: int) -> int:
    """The id of a process's parent; 0 if the process has ended."""
    fields = _read_proc_file(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def list_descendants(pid: int) -> list[int]:
    """The living descendants of a process, whatever their label: a program may overwrite its environment."""
    descendants: list[int] = []
    for child in _read_proc_file(pid, "task/%d/children" % pid).split():
        descendants.append(int(child))
        descendants += list_descendants(int(child))
    return descendants


def send_signal(pids: Iterable[int], signal_number: int) -> None:
    """Send a signal to each process that still exists. Raises PermissionError if one belongs to another user."""
    for pid in pids:
        try:
            os.kill(pid, signal_number)
        except ProcessLookupError:
            pass


# --- their supervisors


def _is_supervisor(pid: int) -> bool:
    """Whether the process was started as `supervisor.py submit`."""
    argv = _read_proc_file(pid, "cmdline").decode(errors="replace").rstrip("\0").split("\0")
    return len(argv) >= 2 and os.path.basename(argv[-2]) == "supervisor.py" and argv[-1] == "submit"


def _find_supervisors(pids: Iterable[int]) -> list[int]:
    """The supervisors of processes. A supervisor has no label, but its process is its child."""
    parents = {_read_parent_pid(pid) for pid in pids}
    return sorted(filter(_is_supervisor, parents))


def list_local_jobs() -> dict[str, Json]:
    """This user's labelled processes on this host, by label: the `folder`, the `pids` and the `supervisors`."""
    jobs: dict[str, Json] = {}
    own_uid = os.stat("/proc/self").st_uid
    for pid in _list_pids():
        environment = _read_environment(pid)
        label = environment.get(JOB_VARIABLE)
        if not label or _read_owner_uid(pid) != own_uid:
            continue
        job = jobs.setdefault(label, {"folder": "", "pids": []})
        job["folder"] = job["folder"] or environment.get(FOLDER_VARIABLE, "")
        job["pids"].append(pid)
    for job in jobs.values():
        job["supervisors"] = _find_supervisors(job["pids"])
    return jobs


def _read_environment(pid: int) -> dict[str, str]:
    """The environment that the process was started with; empty if it cannot be read."""
    environment: dict[str, str] = {}
    for variable in _read_proc_file(pid, "environ").decode(errors="replace").split("\0"):
        name, _, value = variable.partition("=")
        environment[name] = value
    return environment


def _read_owner_uid(pid: int) -> int:
    """The id of a process's user; -1 if the process has ended."""
    try:
        return os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return -1


# --- ending them


def end_processes(label: str, *, grace_s: float) -> list[str]:
    """End the processes with the label and their supervisors, by SIGTERM, and by SIGKILL after `grace_s` seconds.

    Returns what is left, as `process 123`. Signals go to the topmost processes: an agent stops its own workers.
    """
    pids = find_labelled(label)
    supervisors = _find_supervisors(pids)
    send_signal([pid for pid in pids if _read_parent_pid(pid) not in pids], signal.SIGTERM)
    if pids and not _wait_until_gone(label, supervisors, timeout_s=grace_s):
        send_signal(find_labelled(label), signal.SIGKILL)
        if not _wait_until_gone(label, supervisors, timeout_s=_KILL_TIMEOUT_S):
            send_signal(filter(_is_supervisor, supervisors), signal.SIGKILL)
            _wait_until_gone(label, supervisors, timeout_s=_KILL_TIMEOUT_S)
    remaining = find_labelled(label) + list(filter(_is_supervisor, supervisors))
    return ["process %d" % pid for pid in remaining]


def _wait_until_gone(label: str, supervisors: list[int], *, timeout_s: float) -> bool:
    """Wait until no process has the label and the supervisors have exited; False after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while find_labelled(label) or any(map(_is_supervisor, supervisors)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


if __name__ == "__main__":
    print(json.dumps({"left": end_processes(sys.argv[2], grace_s=float(sys.argv[3]))}))
