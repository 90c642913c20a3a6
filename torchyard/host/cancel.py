"""Cancel a supervised process and report what is left of it. Standard library only, Python 3.8 or newer."""

from __future__ import annotations

import json
import os
import signal
import time

from torchyard.host.log import recover_unsupervised
from torchyard.host.processes import end_processes, find_labelled, parse_label, send_signal
from torchyard.host.state import Json, list_listening_ports, read_spec, read_state, view_state


def cancel_process(folder: str, grace_s: str) -> None:
    spec = read_spec(folder)
    if spec is None:
        print(json.dumps({"phase": "absent", "left": end_processes(parse_label(folder), float(grace_s))}))
        return
    state = read_state(folder) or {}
    if state.get("phase") == "running":
        send_signal([state["agent"]] if state["agent"] in find_labelled(spec["label"]) else [], signal.SIGTERM)
        _wait_timed_out(folder, spec["label"], float(grace_s))
    send_signal(find_labelled(spec["label"]), signal.SIGKILL)
    if _wait_timed_out(folder, spec["label"], 5.0):
        _kill_supervisor(folder)
    if view_state(folder)["phase"] == "unkept":
        recover_unsupervised(folder)
    if os.path.exists(spec.get("meeting", "")):
        os.unlink(spec["meeting"])
    print(json.dumps(dict(view_state(folder), left=_list_leftovers(spec))))


def _kill_supervisor(folder: str) -> None:
    """Kill a supervisor that does not end by itself; its lock proves that the process id is still its own."""
    state = view_state(folder)
    if state["phase"] == "running" and "keeper" in state:
        send_signal([state["keeper"]], signal.SIGKILL)


def _wait_timed_out(folder: str, label: str, timeout_s: float) -> bool:
    """Wait until the supervisor has recorded the end and no process is left; True if that took too long."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if view_state(folder)["phase"] != "running" and not find_labelled(label):
            return False
        time.sleep(0.02)
    return True


def _list_leftovers(spec: Json) -> list[str]:
    leftovers = ["process %d" % pid for pid in find_labelled(spec["label"])]
    return leftovers + ["port %d" % port for port in spec["ports"] if port in list_listening_ports()]
