"""What pods tell about their job: the controllers' own words say less, and say some of it wrongly."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torchyard.diagnosis.pod_facts import (
    ENDED_POD_PHASES,
    ROLE_LABEL,
    PodReason,
    Pods,
    describe_exit,
    find_condition,
    find_unscheduled_reason,
    get_mapping,
    get_mappings,
    is_being_deleted,
    read_container_end,
    read_deletion_time,
    read_pod_exit_code,
    read_pod_exit_codes,
    read_pod_phase,
)
from torchyard.diagnosis.pod_reasons import (
    PodProblem,
    explain_first_problem,
    find_pod_failure,
    find_pod_problems,
    read_pod_reasons,
    read_reasons_by_pod,
)
from torchyard.model.run import Failure, Observation, State, Status


class Gang(NamedTuple):
    """How many pods a job has, and how many of them it needs: fewer where it is elastic."""

    pods: int
    least: int


# --- how the job is


def find_job_object(observed: Observation, kind: str) -> Mapping[str, Any] | None:
    """The job itself, as last seen; None where it is not there."""
    return next((thing for name, thing in observed.seen.items() if name.startswith(f"{kind}/")), None)


def select_job_pods(observed: Observation) -> Pods:
    """The pods of the job by node, such as worker-0; not the store's."""
    return {name.partition("/")[2]: pod for name, pod in observed.seen.items() if _is_worker_pod(name, pod)}


def _is_worker_pod(name: str, thing: Mapping[str, Any]) -> bool:
    return name.startswith("Pod/") and ROLE_LABEL not in get_mapping(thing, "metadata", "labels")


def deleted_status(kind: str) -> Status:
    """Of a deleted job the pods still say Failed, with 137: that is the deletion, and not a failure."""
    return Status(state="gone", reason=f"the {kind} was deleted by somebody else")


def succeeded_status(observed: Observation) -> Status:
    """What the controller calls done, once no pod is under way and unless one failed.

    An elastic job is called done as soon as one worker is, and a controller may then remove the others.
    """
    pods = select_job_pods(observed)
    bad = [name for name, code in read_pod_exit_codes(pods).items() if code and not is_being_deleted(pods[name])]
    if bad:
        return failed_status(observed, "the job is called complete")
    busy = [
        name
        for name, pod in pods.items()
        if read_pod_phase(pod) not in ENDED_POD_PHASES or (is_being_deleted(pod) and read_pod_exit_code(pod))
    ]
    if busy:
        return Status(state="running", reason=f"{len(pods) - len(busy)} of {len(pods)} pods are done")
    told = f"{len(pods)} of {len(pods)} pods succeeded{_describe_survived_kills(pods)}"
    return Status(state="succeeded", reason=told if pods else "so its controller says; its pods are gone")


def read_job_conditions(observed: Observation, kind: str, done: str, suspend: str) -> Status | None:
    """What the conditions of a job say of its end, or of a pause; None while it goes on.

    `done` is the condition of its success, `suspend` the key that holds it back.
    """
    job = find_job_object(observed, kind)
    if job is None or is_being_deleted(job):
        return deleted_status(kind)
    if end := find_condition(job, "Failed"):
        return failed_status(observed, f"the {kind} failed: {end.get('message', '')}")
    if find_condition(job, done):
        return succeeded_status(observed)
    if find_condition(job, "Suspended"):
        return Status(state="pending", reason=f"the {kind} is suspended ({suspend})")
    return None


def _describe_survived_kills(pods: Pods) -> str:
    """A killed child may leave its container with 0: told, because the training may have lost it."""
    killed = [name for name, pod in pods.items() if any(word.reason == "OOMKilled" for word in read_pod_reasons(pod))]
    return f"; but {', '.join(killed)} ran out of memory on the way" if killed else ""


def failed_status(observed: Observation, otherwise: str) -> Status:
    """The first pod that failed, by its end; one that was deleted is killed, and says nothing."""
    pods = select_job_pods(observed)
    bad = [name for name, code in read_pod_exit_codes(pods).items() if code and not is_being_deleted(pods[name])]
    first = min(bad, key=lambda name: read_container_end(pods[name]), default=None)
    known = find_pod_failure(pods, float("inf")) or _explain_deleted_pod(
        observed, read_container_end(pods[first]) if first else float("inf")
    )
    if known:
        return Status(state="failed", reason=known.sentence, failure=known)
    if first:
        return Status(state="failed", reason=f"{first} {describe_exit(read_pod_exit_codes(pods)[first])}")
    removed = ", ".join(name for name, pod in pods.items() if is_being_deleted(pod))
    return Status(state="failed", reason=otherwise + (f"; being removed: {removed}" if removed else ""))


def _explain_deleted_pod(observed: Observation, before: float) -> Failure | None:
    """The pod that was deleted in a second before any other failed: its peers lost it, and blame the network.

    Who preempts, drains or gives a node up writes it down in the pod.
    """
    name, pod = next(((name, pod) for name, pod in observed.seen.items() if name.startswith("Removed/")), ("", {}))
    if not name or read_deletion_time(pod) >= before:
        return None
    node = name.partition("/")[2]
    if known := find_pod_failure({node: pod}, float("inf")):
        return known
    return Failure(cause="pod-deleted", sentence=f"{node}: its pod was deleted by somebody else", node=node, retry=True)


def unfinished_status(observed: Observation, pods: Pods, gang: Gang, started: bool = False) -> Status:
    """Not ended: running once enough pods are, or `started` says that they were; failed where they never will be."""
    said = read_reasons_by_pod(pods)
    if known := _explain_hopeless(pods, find_pod_problems(pods, said, observed.at), gang):
        return Status(state="failed", reason=known.sentence, failure=known)
    begun = sum(read_pod_phase(pod) != "Pending" for pod in pods.values())
    if gang.pods and begun >= gang.pods:
        return Status(state="running", reason=f"{begun} of {gang.pods} pods run")
    enough = gang.pods and begun >= gang.least
    state: State = "running" if enough or started or len(observed.joined) >= (gang.least or 1) else "pending"
    return Status(state=state, reason=f"{begun} of {gang.pods} pods run{_describe_waiting(observed, pods, said)}")


def _explain_hopeless(pods: Pods, found: Sequence[PodProblem], gang: Gang) -> Failure | None:
    """The cause that ends the job; an elastic one goes on without some of its pods."""
    spared = len({each.node for each in found}) <= gang.pods - gang.least
    return None if spared or not found else explain_first_problem(pods, found)


def _describe_waiting(observed: Observation, pods: Pods, said: Mapping[str, Sequence[PodReason]]) -> str:
    """What is waited for: the image, the scheduler's words, or the queue."""
    for name, found in said.items():
        return f"; {name}: {found[-1].reason}: {found[-1].message}"
    unfit = [(name, word) for name, pod in pods.items() if (word := find_unscheduled_reason(pod))]
    if unfit:
        name, word = min(unfit, key=lambda pair: pair[1].reason == "Schedulable")
        return f"; {name} is not scheduled: {word.message}"
    group = next((thing for name, thing in observed.seen.items() if name.startswith("PodGroup/")), None)
    return f"; {_describe_pod_group(group)}" if group and not pods else ""


def _describe_pod_group(group: Mapping[str, Any]) -> str:
    """Before the gang is admitted to its queue there are no pods to ask."""
    phase = get_mapping(group, "status").get("phase") or "new"
    true = [each for each in get_mappings(group, "status", "conditions") if each.get("status") == "True"]
    newest: Mapping[str, Any] = max(true, key=lambda each: str(each.get("lastTransitionTime")), default={})
    queue = f"queue {get_mapping(group, 'spec').get('queue')} is full or closed, or the cluster too small for it"
    return f"its PodGroup is {phase}: {newest.get('message') or (queue if phase == 'Pending' else '')}".removesuffix(
        ": "
    )
