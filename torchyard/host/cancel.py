"""Cancel a supervised process and report what is left of it. Standard library only, Python 3.8 or newer."""

from __future__ import annotations

import os
import signal
import time

from torchyard.host.log import recover_unsupervised
from torchyard.host.processes import end_processes, find_labelled, parse_label, send_signal
from torchyard.host.state import Json, list_listening_ports, read_spec, read_state, view_state

_KILL_TIMEOUT_S = 5.0  # after SIGKILL, for the supervisor to record the end


def cancel_process(folder: str, grace_s: float) -> Json:
    """End a process and its supervisor; the last state and what is left (`left`).

    The process gets SIGTERM, and SIGKILL after `grace_s` seconds. Without the process's folder, its processes are found
    by the label that the folder's path stands for.
    """
    spec = read_spec(folder)
    if spec is None:
        return {"phase": "absent", "left": end_processes(parse_label(folder), grace_s=grace_s)}
    state = read_state(folder) or {}
    if state.get("phase") == "running":
        # The process may have ended and its id may be another's by now: only its label proves that it is this one.
        if state["agent"] in find_labelled(spec["label"]):
            send_signal([state["agent"]], signal.SIGTERM)
        _wait_for_end(folder, spec["label"], timeout_s=grace_s)
    send_signal(find_labelled(spec["label"]), signal.SIGKILL)
    if not _wait_for_end(folder, spec["label"], timeout_s=_KILL_TIMEOUT_S):
        _kill_supervisor(folder)
    if view_state(folder)["phase"] == "unsupervised":
        recover_unsupervised(folder)
    if os.path.exists(spec.get("meeting", "")):
        os.unlink(spec["meeting"])
    return dict(view_state(folder), left=_list_leftovers(spec))


def _kill_supervisor(folder: str) -> None:
    """Kill a supervisor that does not exit by itself. Its lock proves that the process id is still its own."""
    state = view_state(folder)
    if state["phase"] == "running" and "supervisor" in state:
        send_signal([state["supervisor"]], signal.SIGKILL)


def _wait_for_end(folder: str, label: str, *, timeout_s: float) -> bool:
    """Wait until the supervisor has recorded the end and no process has the label; False after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if view_state(folder)["phase"] != "running" and not find_labelled(label):
            return True
        time.sleep(0.02)
    return False


def _list_leftovers(spec: Json) -> list[str]:
    """The processes with the spec's label and the ports of the spec that are still in use, as text for the report."""
    leftovers = ["process %d" % pid for pid in find_labelled(spec["label"])]
    return leftovers + ["port %d" % port for port in spec["ports"] if port in list_listening_ports()]
