"""What pods tell about their job: the controllers' own words say less, and say some of it wrongly."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torchyard.diagnosis.pod_facts import (
    ENDED_POD,
    ROLE,
    Pods,
    Word,
    deleted_at,
    ended,
    exit_code,
    exits,
    how,
    leaving,
    part,
    phase,
    rows,
    true,
    unscheduled,
)
from torchyard.diagnosis.pod_reasons import Trouble, blame, blame_first, troubles, words, words_by_pod
from torchyard.model.run import Failure, Observation, State, Status


class Gang(NamedTuple):
    """How many pods a job has, and how many of them it needs: fewer where it is elastic."""

    pods: int
    least: int


# --- how the job is


def main(observed: Observation, kind: str) -> Mapping[str, Any] | None:
    """The job itself, as last seen; None where it is not there."""
    return next((thing for name, thing in observed.seen.items() if name.startswith(f"{kind}/")), None)


def job_pods(observed: Observation) -> Pods:
    """The pods of the job by node, such as worker-0; not the store's."""
    return {name.partition("/")[2]: pod for name, pod in observed.seen.items() if is_worker(name, pod)}


def is_worker(name: str, thing: Mapping[str, Any]) -> bool:
    return name.startswith("Pod/") and ROLE not in part(thing, "metadata", "labels")


def deleted(kind: str) -> Status:
    """Of a deleted job the pods still say Failed, with 137: that is the deletion, and not a failure."""
    return Status(state="gone", reason=f"the {kind} was deleted by somebody else")


def succeeded(observed: Observation) -> Status:
    """What the controller calls done, once no pod is under way and unless one failed.

    An elastic job is called done as soon as one worker is, and a controller may then remove the others.
    """
    pods = job_pods(observed)
    bad = [name for name, code in exits(pods).items() if code and not leaving(pods[name])]
    if bad:
        return failed(observed, "the job is called complete")
    busy = [name for name, pod in pods.items() if phase(pod) not in ENDED_POD or (leaving(pod) and exit_code(pod))]
    if busy:
        return Status(state="running", reason=f"{len(pods) - len(busy)} of {len(pods)} pods are done")
    told = f"{len(pods)} of {len(pods)} pods succeeded{survived(pods)}"
    return Status(state="succeeded", reason=told if pods else "so its controller says; its pods are gone")


def told(observed: Observation, kind: str, done: str, suspend: str) -> Status | None:
    """What the conditions of a job say of its end, or of a pause; None while it goes on.

    `done` is the condition of its success, `suspend` the key that holds it back.
    """
    job = main(observed, kind)
    if job is None or leaving(job):
        return deleted(kind)
    if end := true(job, "Failed"):
        return failed(observed, f"the {kind} failed: {end.get('message', '')}")
    if true(job, done):
        return succeeded(observed)
    if true(job, "Suspended"):
        return Status(state="pending", reason=f"the {kind} is suspended ({suspend})")
    return None


def survived(pods: Pods) -> str:
    """A killed child may leave its container with 0: told, because the training may have lost it."""
    killed = [name for name, pod in pods.items() if any(word.reason == "OOMKilled" for word in words(pod))]
    return f"; but {', '.join(killed)} ran out of memory on the way" if killed else ""


def failed(observed: Observation, otherwise: str) -> Status:
    """The first pod that failed, by its end; one that was deleted is killed, and says nothing."""
    pods = job_pods(observed)
    bad = [name for name, code in exits(pods).items() if code and not leaving(pods[name])]
    first = min(bad, key=lambda name: ended(pods[name]), default=None)
    known = blame(pods, float("inf")) or taken(observed, ended(pods[first]) if first else float("inf"))
    if known:
        return Status(state="failed", reason=known.sentence, failure=known)
    if first:
        return Status(state="failed", reason=f"{first} {how(exits(pods)[first])}")
    removed = ", ".join(name for name, pod in pods.items() if leaving(pod))
    return Status(state="failed", reason=otherwise + (f"; being removed: {removed}" if removed else ""))


def taken(observed: Observation, before: float) -> Failure | None:
    """The pod that was deleted before any other had failed: its peers lost it, and blame the network.

    Who preempts, drains or gives a node up writes it down in the pod.
    """
    name, pod = next(((name, pod) for name, pod in observed.seen.items() if name.startswith("Removed/")), ("", {}))
    if not name or deleted_at(pod) > before:
        return None
    node = name.partition("/")[2]
    if known := blame({node: pod}, float("inf")):
        return known
    return Failure(cause="pod-deleted", sentence=f"{node}: its pod was deleted by somebody else", node=node, retry=True)


def under_way(observed: Observation, pods: Pods, gang: Gang, started: bool = False) -> Status:
    """Not ended: running once enough pods are, or `started` says that they were; failed where they never will be."""
    said = words_by_pod(pods)
    if known := hopeless(pods, troubles(pods, said, observed.at), gang):
        return Status(state="failed", reason=known.sentence, failure=known)
    begun = sum(phase(pod) != "Pending" for pod in pods.values())
    if gang.pods and begun >= gang.pods:
        return Status(state="running", reason=f"{begun} of {gang.pods} pods run")
    enough = gang.pods and begun >= gang.least
    state: State = "running" if enough or started or len(observed.joined) >= (gang.least or 1) else "pending"
    return Status(state=state, reason=f"{begun} of {gang.pods} pods run{waits(observed, pods, said)}")


def hopeless(pods: Pods, found: Sequence[Trouble], gang: Gang) -> Failure | None:
    """The cause that ends the job; an elastic one goes on without some of its pods."""
    spared = len({each.node for each in found}) <= gang.pods - gang.least
    return None if spared or not found else blame_first(pods, found)


def waits(observed: Observation, pods: Pods, said: Mapping[str, Sequence[Word]]) -> str:
    """What is waited for: the image, the scheduler's words, or the queue."""
    for name, found in said.items():
        return f"; {name}: {found[-1].reason}: {found[-1].message}"
    unfit = [(name, word) for name, pod in pods.items() if (word := unscheduled(pod))]
    if unfit:
        name, word = min(unfit, key=lambda pair: pair[1].reason == "Schedulable")
        return f"; {name} is not scheduled: {word.message}"
    group = next((thing for name, thing in observed.seen.items() if name.startswith("PodGroup/")), None)
    return f"; {read_group(group)}" if group and not pods else ""


def read_group(group: Mapping[str, Any]) -> str:
    """Before the gang is admitted to its queue there are no pods to ask."""
    phase = part(group, "status").get("phase") or "new"
    true = [each for each in rows(group, "status", "conditions") if each.get("status") == "True"]
    newest: Mapping[str, Any] = max(true, key=lambda each: str(each.get("lastTransitionTime")), default={})
    queue = f"queue {part(group, 'spec').get('queue')} is full or closed, or the cluster too small for it"
    return f"its PodGroup is {phase}: {newest.get('message') or (queue if phase == 'Pending' else '')}".removesuffix(
        ": "
    )
