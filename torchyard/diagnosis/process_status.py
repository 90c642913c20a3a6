"""The status of a job of supervised processes, from what their supervisors report."""

from collections.abc import Mapping
from typing import Any

from torchyard.diagnosis.pod_facts import get_mapping
from torchyard.model.causes.launcher import LauncherCause
from torchyard.model.run import Failure, Observation, Status

_STORE_NAME = "etcd"  # a process of this name is the rendezvous store, not an agent


def read_status(observed: Observation) -> Status:
    """The job's status: the first agent that fails ends the job; it has succeeded when every agent exited with 0."""
    states = {name: get_mapping(state) for name, state in observed.states.items()}
    agents = {name: state for name, state in states.items() if name != _STORE_NAME}
    # An expired lease comes first: the failures that the other agents report then follow from it.
    for name, state in states.items():
        if isinstance(state.get("abandoned"), float | int) and state["abandoned"]:
            return _build_expired_lease_status(name, state)
    for name, state in states.items():
        status = _find_final_status(name, state)
        if status:
            return status

    exited = [name for name, state in agents.items() if state.get("phase") == "exited"]
    if agents and len(exited) == len(agents):
        return Status(state="succeeded", reason=f"{len(agents)} of {len(agents)} agents ended with 0")
    if agents and observed.joined >= agents.keys():
        return Status(state="running", reason=f"{len(agents)} of {len(agents)} nodes joined")
    missing = ", ".join(sorted(agents.keys() - observed.joined)) or "every node"
    return Status(state="pending", reason=f"waits for {missing} to join the rendezvous")


def _build_expired_lease_status(name: str, state: Mapping[str, Any]) -> Status:
    """The status of a job that a supervisor ended because its lease was not renewed."""
    reason = f"its lease was not renewed for {state['abandoned']:g} s (deadlines.lease)"
    message = f"{name} was ended by its supervisor: {reason}"
    return Status(
        state="failed", reason=message, failure=Failure(cause=LauncherCause.LEASE_ENDED, sentence=message, node=name)
    )


def _build_lost_supervisor_status(name: str, state: Mapping[str, Any]) -> Status:
    """The status of a job whose host lost a supervisor, with or without its process: the program is not at fault."""
    if state.get("rebooted"):
        cause = LauncherCause.HOST_REBOOTED
        message = f"the host of {name} was restarted, and no process of the job is left there"
    else:
        cause = LauncherCause.SUPERVISOR_KILLED
        message = f"the supervisor of {name} was killed"
    failure = Failure(cause=cause, sentence=message, node=name)
    return Status(state="failed", reason=message, failure=failure)


def _find_final_status(name: str, state: Mapping[str, Any]) -> Status | None:
    """The final status of the job if this process's state ends it; None if it does not."""
    phase = state.get("phase")
    exit_code = state.get("exit")
    if phase == "absent":
        return Status(state="gone", reason=f"the folder of {name} was removed by another process")
    if phase == "unsupervised":
        return _build_lost_supervisor_status(name, state)
    if phase != "exited":
        return None
    if exit_code != 0:
        if isinstance(exit_code, int) and exit_code < 0:
            reason = f"was killed by signal {-exit_code}"
        else:
            reason = f"ended with exit code {exit_code}"
        return Status(state="failed", reason=f"{name} {reason}")
    if name == _STORE_NAME:
        return Status(state="failed", reason="the rendezvous store ended before the job")
    return None
