#!/usr/bin/env python3
"""The processes of a job on this host, found by their label alone. Standard library only, Python 3.8 or newer.

A label is `<run>/<attempt>/<block>`; one that ends with a slash stands for all that begin so. Where nothing of ours is
on a host, the text of this file goes with the call, as `python3 -c TEXT end LABEL GRACE`: SIGTERM to what carries the
label, SIGKILL after the grace (seconds), and prints what is left.
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
JOB = "TORCHYARD_JOB"  # the label, in the environment of every process of a job
KEPT = "TORCHYARD_KEPT"  # the folder of its block
KILLED_WITHIN_S = 5.0
BLOCK_FOLDER = re.compile(r"/([^/]+)(?:/attempt-|-)(\d+)/([^/]+)$")


def label_of(folder: str) -> str:
    """The label of a block, by where its folder is; empty where that says nothing."""
    found = BLOCK_FOLDER.search(os.path.abspath(folder))
    return "/".join(found.groups()) if found else ""


def labelled(label: str) -> list[int]:
    """The ids of the living processes that carry the label."""
    mark = ("%s=%s%s" % (JOB, label, "" if label.endswith("/") else "\0")).encode()
    return [pid for pid in pids() if carries(str(pid), mark)]


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def carries(pid: str, mark: bytes) -> bool:
    return b"\0" + mark in b"\0" + read(pid, "environ") + b"\0"


def read(pid: object, name: str) -> bytes:
    """A file of a process; empty where it has ended (also a zombie's), or is another user's."""
    try:
        with open("/proc/%s/%s" % (pid, name), "rb") as file:
            return file.read()
    except OSError:
        return b""


def parent(pid: int) -> int:
    fields = read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def children(pid: int) -> list[int]:
    """The living descendants of a process, the label aside: a program may overwrite its environment."""
    direct = [int(word) for word in read(pid, "task/%d/children" % pid).split()]
    return [each for child in direct for each in [child] + children(child)]


def send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


# --- whose they are


def kept(pid: int) -> str:
    """The folder that a keeper was started for; empty where the process is none."""
    words = read(pid, "cmdline").decode(errors="replace").rstrip("\0").split("\0")
    if len(words) < 3 or os.path.basename(words[-3]) not in ("supervisor.py", "keep.py") or words[-2] != "submit":
        return ""
    try:
        return os.path.abspath(os.path.join(os.readlink("/proc/%d/cwd" % pid), words[-1]))
    except OSError:
        return ""


def keepers(found: Iterable[int]) -> list[int]:
    """The keepers of processes: a keeper has no label, but its process is its child."""
    return sorted({above for above in map(parent, found) if kept(above)})


def jobs() -> dict[str, Json]:
    """What this user's labelled processes here belong to: by label the block's folder, the keepers, and the ids.

    A process of a version before has no folder in its environment; its keeper knows it.
    """
    found: dict[str, Json] = {}
    for pid in pids():
        names = dict(word.partition("=")[::2] for word in read(pid, "environ").decode(errors="replace").split("\0"))
        if names.get(JOB) and os.stat("/proc/self").st_uid == owner(pid):
            job = found.setdefault(names[JOB], {"folder": "", "pids": []})
            job["folder"] = job["folder"] or names.get(KEPT, "")
            job["pids"].append(pid)
    for job in found.values():
        job["keepers"] = keepers(job["pids"])
        job["folder"] = job["folder"] or next(map(kept, job["keepers"]), "")
    return found


def owner(pid: int) -> int:
    try:
        return os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return -1


# --- their end


def end(label: str, grace: float) -> list[str]:
    """End what carries the label, and its keepers with it: SIGTERM, SIGKILL after the grace; what is left."""
    found = labelled(label)
    watched = keepers(found)
    send([pid for pid in found if parent(pid) not in found], signal.SIGTERM)
    if found and not gone(label, watched, grace):
        send(labelled(label), signal.SIGKILL)
        if not gone(label, watched, KILLED_WITHIN_S):
            send(filter(kept, watched), signal.SIGKILL)
            gone(label, watched, KILLED_WITHIN_S)
    return ["process %d" % pid for pid in labelled(label) + list(filter(kept, watched))]


def gone(label: str, watched: list[int], seconds: float) -> bool:
    """Wait until no process carries the label, and its keepers have ended; False where it did not come to that."""
    deadline = time.monotonic() + seconds
    while labelled(label) or any(map(kept, watched)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


if __name__ == "__main__":
    print(json.dumps({"left": end(sys.argv[2], float(sys.argv[3]))}))
