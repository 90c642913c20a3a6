"""The end of a kept process, asked for: what is left of it. Standard library only, Python 3.8 or newer."""

from __future__ import annotations

import json
import os
import signal
import time

from torchyard.host.processes import end, label_of, labelled, send
from torchyard.host.state import Json, listening, path, read_state, view


def cancel(folder: str, grace: str) -> None:
    spec = read_spec(folder)
    if spec is None:
        print(json.dumps({"phase": "absent", "left": end(label_of(folder), float(grace))}))
        return
    state = read_state(folder) or {}
    if state.get("phase") == "running":
        send([state["agent"]] if state["agent"] in labelled(spec["label"]) else [], signal.SIGTERM)
        settle(folder, spec["label"], float(grace))
    send(labelled(spec["label"]), signal.SIGKILL)
    if settle(folder, spec["label"], 5.0):
        kill_keeper(folder)
    if os.path.exists(spec.get("meeting", "")):
        os.unlink(spec["meeting"])
    print(json.dumps(dict(view(folder), left=left(spec))))


def read_spec(folder: str) -> Json:
    """What was asked for; None where nobody knows any more."""
    try:
        with open(path(folder, "spec.json"), encoding="utf-8") as file:
            return json.load(file)
    except (FileNotFoundError, ValueError):
        return None


def kill_keeper(folder: str) -> None:
    """A keeper that does not end by itself; its lock proves that the process id is still its own."""
    state = view(folder)
    if state["phase"] == "running" and "keeper" in state:
        send([state["keeper"]], signal.SIGKILL)


def settle(folder: str, label: str, seconds: float) -> bool:
    """Wait until the keeper has told the end and no process is left; True where it did not come to that."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if view(folder)["phase"] != "running" and not labelled(label):
            return False
        time.sleep(0.02)
    return True


def left(spec: Json) -> list[str]:
    found = ["process %d" % pid for pid in labelled(spec["label"])]
    return found + ["port %d" % port for port in spec["ports"] if port in listening()]
