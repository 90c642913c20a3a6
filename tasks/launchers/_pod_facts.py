"""What one pod's status says. It may lack anything, also where it should not."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from tasks.model import Failure

Pods = Mapping[str, Mapping[str, Any]]
ROLE = "torchyard/role"
ENDED_POD = ("Succeeded", "Failed")
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


def part(thing: Any, *keys: str) -> Mapping[str, Any]:
    """A mapping inside an object; empty where there is none."""
    for key in keys:
        thing = thing.get(key) if isinstance(thing, Mapping) else None
    return thing if isinstance(thing, Mapping) else {}


def rows(thing: Any, *keys: str) -> list[Mapping[str, Any]]:
    """A list of mappings inside an object; empty where there is none."""
    found = part(thing, *keys[:-1]).get(keys[-1])
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def phase(pod: Mapping[str, Any]) -> str:
    return str(part(pod, "status").get("phase") or "Pending")


def leaving(pod: Mapping[str, Any]) -> bool:
    """Whether it was deleted: how it ends is no verdict then."""
    return bool(part(pod, "metadata").get("deletionTimestamp"))


def deleted_at(pod: Mapping[str, Any]) -> float:
    """When somebody asked for its deletion: the stamp is when its grace ends. 0 where nobody said."""
    grace = part(pod, "metadata").get("deletionGracePeriodSeconds") or 0
    return max(seconds(part(pod, "metadata").get("deletionTimestamp")) - grace, 0.0)


def container_state(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state of the first container: waiting, running or terminated; empty where there is none yet.

    A kubelet sorts the statuses by name, so that the first of them may be a sidecar's.
    """
    statuses = rows(pod, "status", "containerStatuses")
    name = next((each.get("name") for each in rows(pod, "spec", "containers")), None)
    return part(next((each for each in statuses if each.get("name") == name), statuses[0] if statuses else {}), "state")


def exits(pods: Pods) -> dict[str, int | None]:
    """Exit code by node; None while it runs."""
    return {name: exit_code(pod) for name, pod in pods.items()}


def exit_code(pod: Mapping[str, Any]) -> int | None:
    """Of the first container; a pod that failed without one (evicted), or in spite of a 0, counts as 1."""
    over = container_state(pod).get("terminated")
    bad = 1 if phase(pod) == "Failed" else None
    if not over:
        return bad
    code = over.get("exitCode")
    return (1 if code is None else int(code)) or bad or 0


def ended(pod: Mapping[str, Any]) -> float:
    """When the first container ended; infinity where it has not."""
    return seconds(part(container_state(pod), "terminated").get("finishedAt")) or float("inf")


def began(pod: Mapping[str, Any]) -> float:
    """When the first container began; 0 where it has not."""
    state = container_state(pod)
    return max((seconds(part(state, which).get("startedAt")) for which in ("running", "terminated")), default=0.0)


def seconds(stamp: str | None) -> float:
    """A time of the API server, in seconds since the epoch; 0 where there is none."""
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


def unscheduled(pod: Mapping[str, Any]) -> Word | None:
    """The scheduler's word about a pod that it has not placed; `Schedulable` waits for its gang only."""
    for each in rows(pod, "status", "conditions"):
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            return word_of(each, seconds(each.get("lastTransitionTime")))
    return None


def word_of(thing: Mapping[str, Any], since: float) -> Word:
    return Word(thing.get("reason") or "", thing.get("message") or "", since)


def words(pod: Mapping[str, Any]) -> list[Word]:
    """Every reason in a pod's status, containers last."""
    status = part(pod, "status")
    found = [word_of(status, 0.0)] if status.get("reason") else []
    conditions = rows(status, "conditions")
    placed = max((seconds(each.get("lastTransitionTime")) for each in conditions), default=0.0)
    found += [
        word_of(each, seconds(each.get("lastTransitionTime")))
        for each in conditions
        if each.get("type") == "DisruptionTarget" and each.get("status") == "True"
    ]
    again = part(pod, "spec").get("restartPolicy") in ("Always", "OnFailure") and phase(pod) not in ENDED_POD
    for container in (*rows(status, "initContainerStatuses"), *rows(status, "containerStatuses")):
        over = {} if again else part(container, "state", "terminated")
        patient = (container.get("restartCount") or 0) < LOOP
        found += [
            word_of(each, placed)
            for each in (part(container, "state", "waiting"), over)
            if each.get("reason") and not (each["reason"] == "CrashLoopBackOff" and patient)
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


def how(code: int | None) -> str:
    return f"was killed by signal {code - 128}" if code and code > 128 else f"ended with exit code {code}"
