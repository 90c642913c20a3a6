"""Cancel a supervised process and report what is left of it. Standard library only, Python 3.8 or newer.

A signal goes only to a process that is the job's beyond doubt: to one that has its label, or whose number and start
time are in a state that was written in this PID namespace of this boot, and to their descendants. A process that runs
elsewhere, on another host or in another container that shares the folder, is not touched and is reported as left over.

Nothing is done for a launcher that does not own the run while its owner is alive: the ownership is checked again before
each signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from torchyard.host.identity import EARLIER_BOOT, HERE, locate_host
from torchyard.host.log import recover_unsupervised
from torchyard.host.processes import NO_PROCESS, JobProcesses, ProcessId, end_processes, parse_label, send_signal
from torchyard.host.staging import Ownership
from torchyard.host.state import (
    LIVE_PHASES,
    Json,
    ask_to_end,
    get_process,
    list_listening_ports,
    read_spec,
    read_state,
    view_state,
)

_KILL_TIMEOUT_S = 5.0  # after SIGKILL, for the supervisor to record the end
_POLL_INTERVAL_S = 0.05  # each poll reads all of /proc


def cancel_process(folder: str, owner: str, *, grace_s: float) -> Json:
    """End a process and its supervisor; the last state and what is left (`left`).

    `owner`: the launcher that asks. OtherOwnerError if another living one owns the run.

    The process gets SIGTERM, and SIGKILL `grace_s` seconds after the first request to end it. Without the process's
    folder, its processes are found by the label that the folder's path stands for. Nothing is done to a process that
    runs elsewhere.
    """
    ownership = Ownership(os.path.dirname(os.path.abspath(folder)), owner)
    ownership.acquire()
    spec = read_spec(folder)
    if spec is None:
        leftovers = end_processes(parse_label(folder), grace_s=grace_s, check=ownership.check)
        return {"phase": "absent", "left": leftovers}
    if "elsewhere" in view_state(folder):
        return _report_end(folder, spec, [])
    state = read_state(folder) or {}
    is_here = locate_host(state, folder) == HERE
    supervisor = get_process(state, "supervisor") if is_here else NO_PROCESS
    agent = get_process(state, "agent") if is_here else NO_PROCESS
    unended = [ProcessId(*fields) for fields in state.get("unended", [])] if is_here else []
    job = JobProcesses(spec["label"], [supervisor], [agent, *unended])
    if state.get("phase") == "starting":
        _kill_starting_supervisor(supervisor, job, ownership)
    if state.get("phase") == "running":
        ownership.check()
        waited_s = ask_to_end(folder, agent) if agent.is_alive else 0.0
        _wait_for_end(folder, job, ownership, timeout_s=max(grace_s - waited_s, 0.0))
    ownership.check()
    job.send_signal(signal.SIGKILL)
    if not _wait_for_end(folder, job, ownership, timeout_s=_KILL_TIMEOUT_S) and supervisor.is_alive and not job.find():
        ownership.check()
        send_signal([supervisor.pid], signal.SIGKILL)  # it does not exit, and nothing is left for it to do
        _wait_for_end(folder, job, ownership, timeout_s=_KILL_TIMEOUT_S)
    if view_state(folder)["phase"] == "unsupervised":
        recover_unsupervised(folder)
    if "meeting" in spec:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(spec["meeting"])
    return _report_end(folder, spec, job.find())


def _kill_starting_supervisor(supervisor: ProcessId, job: JobProcesses, ownership: Ownership) -> None:
    """Kill a supervisor that may execute its program at any moment; it has nothing to record yet."""
    job.find()  # before their parent is killed: a process that has not executed the program has no label
    ownership.check()
    if supervisor.is_alive:
        send_signal([supervisor.pid], signal.SIGKILL)


def _wait_for_end(folder: str, job: JobProcesses, ownership: Ownership, *, timeout_s: float) -> bool:
    """Wait until the supervisor has recorded the end and no process of the job lives; False after `timeout_s`.

    OtherOwnerError if another launcher takes the run over meanwhile.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        if view_state(folder)["phase"] not in LIVE_PHASES and not job.find():
            return True
        if time.monotonic() > deadline:
            return False
        ownership.renew()
        time.sleep(_POLL_INTERVAL_S)


def _report_end(folder: str, spec: Json, living: list[ProcessId]) -> Json:
    """The state, and what is left: the living processes, those that cannot be looked at, and the ports in use."""
    state = view_state(folder)
    leftovers = [str(process) for process in living]
    if "elsewhere" in state:
        leftovers.append("the process of %s runs %s: end it there" % (spec["name"], state["elsewhere"]))
    elif state.get("unended") and locate_host(state, folder) not in (HERE, EARLIER_BOOT):
        leftovers.append("%d processes of %s on %s" % (len(state["unended"]), spec["name"], state.get("hostname")))
    elif state["phase"] in LIVE_PHASES and "supervisor" in state:
        leftovers.append("process %d, the supervisor of %s" % (state["supervisor"], spec["name"]))
    elif state["phase"] in LIVE_PHASES:
        leftovers.append("the supervisor of %s, which is starting" % spec["name"])
    listening_ports = list_listening_ports()
    leftovers += ["port %d" % port for port in spec["ports"] if port in listening_ports]
    return dict(state, left=leftovers)
