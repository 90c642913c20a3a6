"""What pods tell about their job: the controllers' own words say less, and say some of it wrongly."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from tasks.model import Failure, Observation, Status

Pods = Mapping[str, Mapping[str, Any]]
ROLE = "torchyard/role"
LOOP = 3  # restarts of a container that are taken for a loop


class Reason(NamedTuple):
    """What a reason in a pod's status means; `patience`: seconds until it is believed."""

    slug: str
    sentence: str
    retry: bool = False
    patience: float = 0.0


# Kubernetes' own words: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/ and kubelet's sources.
NO_IMAGE = Reason("image", "its image cannot be had", patience=90)
NO_CONFIG = Reason("pod-config", "its container cannot be made", patience=60)
NO_START = Reason("start-error", "its command cannot be started")
REASONS = {
    "ErrImagePull": NO_IMAGE,
    "ImagePullBackOff": NO_IMAGE,
    "RegistryUnavailable": NO_IMAGE,
    "InvalidImageName": NO_IMAGE._replace(patience=0),
    "ErrImageNeverPull": NO_IMAGE._replace(patience=0),
    "ImageInspectError": NO_IMAGE,
    "CreateContainerConfigError": NO_CONFIG,
    "CreateContainerError": NO_CONFIG,
    "RunContainerError": NO_START._replace(patience=30),
    "ContainerCannotRun": NO_START,
    "StartError": NO_START,
    "CrashLoopBackOff": Reason("crash-loop", "it crashes again and again, and would for ever"),
    "OOMKilled": Reason("oom-pod", "it used more memory than its limit"),
    "Evicted": Reason("evicted", "its node evicted it", retry=True),
    "NodeLost": Reason("node-lost", "its node was lost", retry=True),
    "NodeShutdown": Reason("node-lost", "its node was shut down", retry=True),
    "Terminated": Reason("node-lost", "its node was shut down", retry=True),
    "Preempting": Reason("preempted", "it was preempted", retry=True),
    "UnexpectedAdmissionError": Reason("device-lost", "its node had no working device for it", retry=True),
    "OutOfcpu": Reason("device-lost", "its node had no room for it any more", retry=True),
    "DeadlineExceeded": Reason("pod-deadline", "its own activeDeadlineSeconds ended it"),
    "PreemptionByScheduler": Reason("preempted", "it was preempted for a pod of higher priority", retry=True),
    "DeletionByTaintManager": Reason("node-lost", "its node does not answer any more", retry=True),
    "EvictionByEvictionAPI": Reason("evicted", "its node was drained", retry=True),
    "DeletionByPodGC": Reason("node-lost", "its node is gone", retry=True),
    "TerminationByKubelet": Reason("evicted", "its node evicted it", retry=True),
}


class Word(NamedTuple):
    """One reason that a pod's status gives, with what it says and since when."""

    reason: str
    message: str
    since: float


# --- how the job is


def main(observed: Observation, kind: str) -> Mapping[str, Any] | None:
    """The job itself, as last seen; None where it is not there."""
    return next((thing for name, thing in observed.seen.items() if name.startswith(f"{kind}/")), None)


def job_pods(observed: Observation) -> Pods:
    """The pods of the job by node, such as worker-0; not the store's."""
    return {name.partition("/")[2]: pod for name, pod in observed.seen.items() if is_worker(name, pod)}


def is_worker(name: str, thing: Mapping[str, Any]) -> bool:
    return name.startswith("Pod/") and ROLE not in thing["metadata"].get("labels", {})


def deleted(kind: str) -> Status:
    """Of a deleted job the pods still say Failed, with 137: that is the deletion, and not a failure."""
    return Status(state="gone", reason=f"the {kind} was deleted by somebody else")


def completed(pods: Pods) -> Status:
    """What the controller calls done, unless a pod says otherwise."""
    bad = [code for code in exits(pods).values() if code]
    if bad:
        return failed(pods, "the job is called complete")
    return Status(state="succeeded", reason=f"{len(pods)} of {len(pods)} pods succeeded{survived(pods)}")


def succeeded(pods: Pods) -> Status:
    """An elastic job is called done as soon as one worker is: the others are waited for."""
    busy = [name for name, pod in pods.items() if phase(pod) in ("Pending", "Running")]
    if busy:
        return Status(state="running", reason=f"{len(pods) - len(busy)} of {len(pods)} pods are done")
    return completed(pods)


def survived(pods: Pods) -> str:
    """A killed child may leave its container with 0: told, because the training may have lost it."""
    killed = [name for name, pod in pods.items() if any(word.reason == "OOMKilled" for word in words(pod))]
    return f"; but {', '.join(killed)} ran out of memory on the way" if killed else ""


def failed(pods: Pods, otherwise: str) -> Status:
    """The first pod that failed, by its end."""
    if known := blame(pods, float("inf")):
        return Status(state="failed", reason=known.sentence, failure=known)
    first = min((name for name, code in exits(pods).items() if code), key=lambda name: ended(pods[name]), default=None)
    if first is None:
        return Status(state="failed", reason=otherwise)
    return Status(state="failed", reason=f"{first} {how(exits(pods)[first])}")


def how(code: int | None) -> str:
    return f"was killed by signal {code - 128}" if code and code > 128 else f"ended with exit code {code}"


def under_way(observed: Observation, pods: Pods, expected: int) -> Status:
    """Not ended: running once every pod does, failed where one never will."""
    if known := blame(pods, observed.at):
        return Status(state="failed", reason=known.sentence, failure=known)
    begun = [name for name, pod in pods.items() if phase(pod) in ("Running", "Succeeded", "Failed")]
    if expected and len(begun) >= expected:
        return Status(state="running", reason=f"{len(begun)} of {expected} pods run")
    return Status(state="pending", reason=waits(observed, pods, expected))


def waits(observed: Observation, pods: Pods, expected: int) -> str:
    """Why the job has not started: the image, the scheduler's words, or the queue."""
    begun = sum(phase(pod) in ("Running", "Succeeded", "Failed") for pod in pods.values())
    head = f"{begun} of {expected} pods run"
    for name, pod in pods.items():
        said = [word for word in words(pod) if word.reason in REASONS]
        if said:
            return f"{head}; {name}: {said[-1].reason}: {said[-1].message}"
    unfit = [(name, word) for name, pod in pods.items() if (word := unscheduled(pod))]
    if unfit:
        name, word = min(unfit, key=lambda pair: pair[1].reason == "Schedulable")
        return f"{head}; {name} is not scheduled: {word.message}"
    group = next((thing for name, thing in observed.seen.items() if name.startswith("PodGroup/")), None)
    return f"{head}; {read_group(group)}" if group and not pods else head


def read_group(group: Mapping[str, Any]) -> str:
    """Before the gang is admitted to its queue there are no pods to ask."""
    status = group.get("status", {})
    true = [each for each in status.get("conditions") or () if each.get("status") == "True"]
    newest: Mapping[str, Any] = max(true, key=lambda each: str(each.get("lastTransitionTime")), default={})
    return f"its PodGroup is {status.get('phase', 'new')} {newest.get('message', '')}".strip()


# --- one pod


def phase(pod: Mapping[str, Any]) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def container_state(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state of the first container: waiting, running or terminated; empty where there is none yet."""
    statuses = pod.get("status", {}).get("containerStatuses")
    state: Mapping[str, Any] = statuses[0].get("state", {}) if statuses else {}
    return state


def exits(pods: Pods) -> dict[str, int | None]:
    """Exit code by node; None while it runs."""
    return {name: exit_code(pod) for name, pod in pods.items()}


def exit_code(pod: Mapping[str, Any]) -> int | None:
    """Of the first container; a pod that failed without one (evicted) counts as 1."""
    over = container_state(pod).get("terminated")
    if over:
        return int(over.get("exitCode", 1))
    return 1 if phase(pod) == "Failed" else None


def ended(pod: Mapping[str, Any]) -> float:
    """When the first container ended; infinity where it has not."""
    return seconds(container_state(pod).get("terminated", {}).get("finishedAt")) or float("inf")


def began(pod: Mapping[str, Any]) -> float:
    """When the first container began; 0 where it has not."""
    state = container_state(pod)
    return max((seconds(state.get(which, {}).get("startedAt")) for which in ("running", "terminated")), default=0.0)


def seconds(stamp: str | None) -> float:
    """A time of the API server, in seconds since the epoch; 0 where there is none."""
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


def unscheduled(pod: Mapping[str, Any]) -> Word | None:
    """The scheduler's word about a pod that it has not placed; `Schedulable` waits for its gang only."""
    for each in pod.get("status", {}).get("conditions") or ():
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return Word(each.get("reason", ""), each.get("message", ""), seconds(each.get("lastTransitionTime")))
    return None


def words(pod: Mapping[str, Any]) -> list[Word]:
    """Every reason in a pod's status, containers last."""
    status = pod.get("status", {})
    found = [Word(status["reason"], status.get("message", ""), 0.0)] if status.get("reason") else []
    conditions = status.get("conditions") or ()
    placed = max((seconds(each.get("lastTransitionTime")) for each in conditions), default=0.0)
    found += [
        Word(each.get("reason", ""), each.get("message", ""), seconds(each.get("lastTransitionTime")))
        for each in conditions
        if each["type"] == "DisruptionTarget" and each["status"] == "True"
    ]
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        state = container.get("state", {})
        waiting, over = state.get("waiting", {}), state.get("terminated", {})
        parts = [part for part in (waiting, over) if "reason" in part]
        patient = container.get("restartCount", 0) < LOOP
        found += [
            Word(part["reason"], part.get("message", ""), placed)
            for part in parts
            if not (part["reason"] == "CrashLoopBackOff" and patient)
        ]
    return found


def blame(pods: Pods, at: float) -> Failure | None:
    """A cause that only the controllers know, of the pod that has it longest; None where the logs must tell."""
    found = [
        (word.since, name, word)
        for name, pod in pods.items()
        for word in words(pod)
        if word.reason in REASONS and at - word.since >= REASONS[word.reason].patience and not harmless(pod, word)
    ]
    if not found:
        return None
    _, name, word = min(found, key=lambda each: (each[0], each[1]))
    meaning = REASONS[word.reason]
    said = re.sub(r"\s+", " ", word.message)[:300]
    sentence = f"{name}: {meaning.sentence} ({word.reason}{f': {said}' if said else ''})"
    return Failure(
        cause=meaning.slug, sentence=sentence, node=name, retry=meaning.retry, exit_code=exit_code(pods[name])
    )


def harmless(pod: Mapping[str, Any], word: Word) -> bool:
    """OOMKilled beside exit code 0: a child was killed, and the container went on."""
    return word.reason == "OOMKilled" and exit_code(pod) == 0
