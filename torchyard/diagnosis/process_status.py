"""The status of a job of supervised processes, from what their supervisors report."""

from typing import Any

from torchyard.diagnosis.pod_facts import get_mapping
from torchyard.model.run import Failure, Observation, Status


def read_status(observed: Observation) -> Status:
    """The job's status: the first agent that fails ends the job; it is done when every agent has ended with 0."""
    blocks = {name: get_mapping(seen) for name, seen in observed.states.items()}
    agents = {name: seen for name, seen in blocks.items() if name != "etcd"}
    for name, seen in blocks.items():
        if isinstance(seen.get("abandoned"), float | int) and seen["abandoned"]:
            return _read_abandoned_status(name, seen)
    for name, seen in blocks.items():
        if trouble := _read_process_end(name, seen):
            return trouble
    ended = [name for name, seen in agents.items() if seen.get("phase") == "exited"]
    if agents and len(ended) == len(agents):
        return Status(state="succeeded", reason=f"{len(agents)} of {len(agents)} agents ended with 0")
    if agents and observed.joined >= agents.keys():
        return Status(state="running", reason=f"{len(agents)} of {len(agents)} nodes joined")
    waits = ", ".join(sorted(agents.keys() - observed.joined)) or "every node"
    return Status(state="pending", reason=f"waits for {waits} to join the rendezvous")


def _read_abandoned_status(name: str, seen: Any) -> Status:
    """The status of a job whose lease expired: what its other agents report is only an echo of that."""
    why = f"its lease was not renewed for {seen['abandoned']:g} s (deadlines.lease)"
    sentence = f"{name} was ended by its supervisor: {why}"
    return Status(state="failed", reason=sentence, failure=Failure(cause="lease-ended", sentence=sentence, node=name))


def _read_lost_supervisor(name: str, seen: Any) -> Status:
    """The status of a job whose host lost a supervisor, with or without its process: no fault of the program."""
    cause, sentence = "keeper-killed", f"the supervisor of {name} was killed"
    if seen.get("rebooted"):
        cause, sentence = "host-rebooted", f"the host of {name} was restarted, and no process of the job is left there"
    failure = Failure(cause=cause, sentence=sentence, node=name, retry=True)
    return Status(state="failed", reason=sentence, failure=failure)


def _read_process_end(name: str, seen: Any) -> Status | None:
    """The status of a job that one process's state ends; None if it does not."""
    phase, code = seen.get("phase"), seen.get("exit")
    if phase == "absent":
        return Status(state="gone", reason=f"the folder of {name} was removed by somebody else")
    if phase == "unkept":
        return _read_lost_supervisor(name, seen)
    if phase == "exited" and code != 0:
        how = f"was killed by signal {-code}" if isinstance(code, int) and code < 0 else f"ended with exit code {code}"
        return Status(state="failed", reason=f"{name} {how}")
    if phase == "exited" and name == "etcd":
        return Status(state="failed", reason="the rendezvous store ended before the job")
    return None
