#!/usr/bin/env python3
"""The processes of a job on this host, found by label alone. Standard library only, Python 3.8 or newer.

A label is `<run>/<attempt>/<process>`; one that ends with a slash stands for all labels that start with it. A host that
has none of our files gets the text of this one with the call, as `python3 -c TEXT end LABEL GRACE`: it sends SIGTERM to
the processes with the label, SIGKILL after the grace (seconds), and prints what is left.
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
FOLDER_VARIABLE = "TORCHYARD_KEPT"  # the folder that its supervisor writes
_KILL_TIMEOUT_S = 5.0
_PROCESS_FOLDER = re.compile(r"/([^/]+)(?:/attempt-|-)(\d+)/([^/]+)$")


def parse_label(folder: str) -> str:
    """The label of a process, derived from its folder's path; empty if the path is not of that form."""
    match = _PROCESS_FOLDER.search(os.path.abspath(folder))
    return "/".join(match.groups()) if match else ""


def find_labelled(label: str) -> list[int]:
    """The ids of the living processes with the label."""
    variable = ("%s=%s%s" % (JOB_VARIABLE, label, "" if label.endswith("/") else "\0")).encode()
    return [pid for pid in _list_pids() if _has_variable(str(pid), variable)]


def _list_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _has_variable(pid: str, variable: bytes) -> bool:
    return b"\0" + variable in b"\0" + _read_proc_file(pid, "environ") + b"\0"


def _read_proc_file(pid: object, name: str) -> bytes:
    """A file in /proc/PID; empty if the process has ended (or is a zombie), or is another user's."""
    try:
        with open("/proc/%s/%s" % (pid, name), "rb") as file:
            return file.read()
    except OSError:
        return b""


def _read_parent_pid(pid: int) -> int:
    fields = _read_proc_file(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def list_descendants(pid: int) -> list[int]:
    """The living descendants of a process, whatever their label: a program may overwrite its environment."""
    children = [int(field) for field in _read_proc_file(pid, "task/%d/children" % pid).split()]
    return [descendant for child in children for descendant in [child] + list_descendants(child)]


def send_signal(pids: Iterable[int], signal_number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal_number)
        except ProcessLookupError:
            pass


# --- their supervisors


def _read_supervised_folder(pid: int) -> str:
    """The folder that a supervisor was started for; empty if the process is not a supervisor."""
    argv = _read_proc_file(pid, "cmdline").decode(errors="replace").rstrip("\0").split("\0")
    if len(argv) < 3 or os.path.basename(argv[-3]) not in ("supervisor.py", "keep.py") or argv[-2] != "submit":
        return ""
    try:
        return os.path.abspath(os.path.join(os.readlink("/proc/%d/cwd" % pid), argv[-1]))
    except OSError:
        return ""


def _find_supervisors(pids: Iterable[int]) -> list[int]:
    """The supervisors of processes. A supervisor has no label, but its process is its child."""
    return sorted({parent_pid for parent_pid in map(_read_parent_pid, pids) if _read_supervised_folder(parent_pid)})


def list_local_jobs() -> dict[str, Json]:
    """This user's labelled processes on this host: for each label the folder, the supervisors and the process ids.

    Processes of an earlier version have no folder in their environment; their supervisor's command line names it.
    """
    jobs: dict[str, Json] = {}
    for pid in _list_pids():
        environment = dict(
            variable.partition("=")[::2]
            for variable in _read_proc_file(pid, "environ").decode(errors="replace").split("\0")
        )
        if environment.get(JOB_VARIABLE) and os.stat("/proc/self").st_uid == _read_owner_uid(pid):
            job = jobs.setdefault(environment[JOB_VARIABLE], {"folder": "", "pids": []})
            job["folder"] = job["folder"] or environment.get(FOLDER_VARIABLE, "")
            job["pids"].append(pid)
    for job in jobs.values():
        job["keepers"] = _find_supervisors(job["pids"])
        job["folder"] = job["folder"] or next(map(_read_supervised_folder, job["keepers"]), "")
    return jobs


def _read_owner_uid(pid: int) -> int:
    try:
        return os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return -1


# --- ending them


def end_processes(label: str, grace_s: float) -> list[str]:
    """End the processes with the label and their supervisors, by SIGTERM and SIGKILL. Returns what is left."""
    pids = find_labelled(label)
    supervisors = _find_supervisors(pids)
    send_signal([pid for pid in pids if _read_parent_pid(pid) not in pids], signal.SIGTERM)
    if pids and not _wait_until_gone(label, supervisors, grace_s):
        send_signal(find_labelled(label), signal.SIGKILL)
        if not _wait_until_gone(label, supervisors, _KILL_TIMEOUT_S):
            send_signal(filter(_read_supervised_folder, supervisors), signal.SIGKILL)
            _wait_until_gone(label, supervisors, _KILL_TIMEOUT_S)
    return ["process %d" % pid for pid in find_labelled(label) + list(filter(_read_supervised_folder, supervisors))]


def _wait_until_gone(label: str, supervisors: list[int], timeout_s: float) -> bool:
    """Wait until no process has the label and the supervisors have ended; False if that took too long."""
    deadline = time.monotonic() + timeout_s
    while find_labelled(label) or any(map(_read_supervised_folder, supervisors)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


if __name__ == "__main__":
    print(json.dumps({"left": end_processes(sys.argv[2], float(sys.argv[3]))}))
