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


def label_of(folder: str) -> str:
    """The label of a process, derived from its folder's path; empty if the path is not of that form."""
    found = _PROCESS_FOLDER.search(os.path.abspath(folder))
    return "/".join(found.groups()) if found else ""


def find_labelled(label: str) -> list[int]:
    """The ids of the living processes with the label."""
    mark = ("%s=%s%s" % (JOB_VARIABLE, label, "" if label.endswith("/") else "\0")).encode()
    return [pid for pid in _list_pids() if _has_variable(str(pid), mark)]


def _list_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _has_variable(pid: str, mark: bytes) -> bool:
    return b"\0" + mark in b"\0" + _read_proc_file(pid, "environ") + b"\0"


def _read_proc_file(pid: object, name: str) -> bytes:
    """A file in /proc/PID; empty if the process has ended (or is a zombie), or is another user's."""
    try:
        with open("/proc/%s/%s" % (pid, name), "rb") as file:
            return file.read()
    except OSError:
        return b""


def _read_parent(pid: int) -> int:
    fields = _read_proc_file(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def list_descendants(pid: int) -> list[int]:
    """The living descendants of a process, whatever their label: a program may overwrite its environment."""
    direct = [int(word) for word in _read_proc_file(pid, "task/%d/children" % pid).split()]
    return [each for child in direct for each in [child] + list_descendants(child)]


def send_signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


# --- their supervisors


def _supervised_folder(pid: int) -> str:
    """The folder that a supervisor was started for; empty if the process is not a supervisor."""
    words = _read_proc_file(pid, "cmdline").decode(errors="replace").rstrip("\0").split("\0")
    if len(words) < 3 or os.path.basename(words[-3]) not in ("supervisor.py", "keep.py") or words[-2] != "submit":
        return ""
    try:
        return os.path.abspath(os.path.join(os.readlink("/proc/%d/cwd" % pid), words[-1]))
    except OSError:
        return ""


def _find_supervisors(found: Iterable[int]) -> list[int]:
    """The supervisors of processes. A supervisor has no label, but its process is its child."""
    return sorted({above for above in map(_read_parent, found) if _supervised_folder(above)})


def list_local_jobs() -> dict[str, Json]:
    """This user's labelled processes on this host: for each label the folder, the supervisors and the process ids.

    Processes of an earlier version have no folder in their environment; their supervisor's command line names it.
    """
    found: dict[str, Json] = {}
    for pid in _list_pids():
        names = dict(
            word.partition("=")[::2] for word in _read_proc_file(pid, "environ").decode(errors="replace").split("\0")
        )
        if names.get(JOB_VARIABLE) and os.stat("/proc/self").st_uid == _read_owner(pid):
            job = found.setdefault(names[JOB_VARIABLE], {"folder": "", "pids": []})
            job["folder"] = job["folder"] or names.get(FOLDER_VARIABLE, "")
            job["pids"].append(pid)
    for job in found.values():
        job["keepers"] = _find_supervisors(job["pids"])
        job["folder"] = job["folder"] or next(map(_supervised_folder, job["keepers"]), "")
    return found


def _read_owner(pid: int) -> int:
    try:
        return os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return -1


# --- ending them


def end_processes(label: str, grace: float) -> list[str]:
    """End the processes with the label and their supervisors, by SIGTERM and SIGKILL. Returns what is left."""
    found = find_labelled(label)
    watched = _find_supervisors(found)
    send_signal([pid for pid in found if _read_parent(pid) not in found], signal.SIGTERM)
    if found and not _await_gone(label, watched, grace):
        send_signal(find_labelled(label), signal.SIGKILL)
        if not _await_gone(label, watched, _KILL_TIMEOUT_S):
            send_signal(filter(_supervised_folder, watched), signal.SIGKILL)
            _await_gone(label, watched, _KILL_TIMEOUT_S)
    return ["process %d" % pid for pid in find_labelled(label) + list(filter(_supervised_folder, watched))]


def _await_gone(label: str, watched: list[int], seconds: float) -> bool:
    """Wait until no process has the label and the supervisors have ended; False if that took too long."""
    deadline = time.monotonic() + seconds
    while find_labelled(label) or any(map(_supervised_folder, watched)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


if __name__ == "__main__":
    print(json.dumps({"left": end_processes(sys.argv[2], float(sys.argv[3]))}))
