"""Why a pod does not run, or not any more: what only the controllers know, and no log can tell."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torchyard.diagnosis.pod_facts import (
    ENDED_POD,
    Pods,
    Word,
    exit_code,
    machine,
    number,
    part,
    phase,
    rows,
    seconds,
    text,
    word_of,
)
from torchyard.model.run import Failure

LOOP = 3  # restarts of a container that are taken for a loop
SHOWN = 300  # letters of a controller's message


class Reason(NamedTuple):
    """What a reason in a pod's status means; `patience`: seconds until it is believed."""

    slug: str
    sentence: str
    retry: bool = False
    patience: float = 0.0


# Kubernetes' own words: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/ and kubelet's sources.
NO_IMAGE = Reason("image", "its image cannot be had", patience=90)
NO_REGISTRY = Reason("registry", "its image cannot be had, because its registry does not answer", True, patience=300)
REFUSED = Reason("image", "its registry refuses it the image: see pod.pull_secrets and the image's name", patience=90)
ABSENT = Reason("image", "its registry has no such image: correct its name or tag", patience=90)
NO_CONFIG = Reason("pod-config", "its container cannot be made", patience=60)
NO_START = Reason("start-error", "its command cannot be started")
REASONS = {
    "ErrImagePull": NO_IMAGE,
    "ImagePullBackOff": NO_IMAGE,
    "RegistryUnavailable": NO_REGISTRY,
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
    "Evict": Reason("preempted", "Volcano took its place for another job", retry=True),
}
# What a message says of an image that could not be pulled, by containerd's and CRI-O's words.
PULLS = (
    (r"no such host|dial tcp|connection re(?:fused|set)|timed? ?out|EOF|50[0234] |429 |toomanyrequests", NO_REGISTRY),
    (r"denied|[Uu]nauthorized|no basic auth|authentication required|401 |403 ", REFUSED),
    (r"not found|manifest unknown|does not exist|404 ", ABSENT),
)


def meaning(word: Word) -> Reason:
    """What a word means."""
    known = REASONS[word.reason]
    return _pull_reason(word.message) if known is NO_IMAGE else known


@functools.lru_cache(maxsize=4096)
def _pull_reason(message: str) -> Reason:
    """Why an image could not be pulled; a thousand pods of one image mostly say the same."""
    return next((reason for says, reason in PULLS if re.search(says, message)), NO_IMAGE)


def words(pod: Mapping[str, Any]) -> list[Word]:
    """Every reason with a meaning in a pod's status, containers last. Most of a thousand pods give none: seen first."""
    status = part(pod, "status")
    conditions = rows(status, "conditions")
    found = [word_of(status, 0.0)] if status.get("reason") else []
    found += [word_of(each, seconds(each.get("lastTransitionTime"))) for each in filter(disrupts, conditions)]
    said = [each for each in _container_reasons(pod, status) if text(each.get("reason")) in REASONS]
    if said:
        placed = max((seconds(each.get("lastTransitionTime")) for each in conditions), default=0.0)
        found += [word_of(each, placed) for each in said]
    return [word for word in found if word.reason in REASONS]


def _container_reasons(pod: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What each container waits for, or ended with; an end that the kubelet restarts is none."""
    for container in (*rows(status, "initContainerStatuses"), *rows(status, "containerStatuses")):
        state = part(container, "state")
        waiting = part(state, "waiting")
        if waiting.get("reason") != "CrashLoopBackOff" or number(container.get("restartCount")) >= LOOP:
            yield waiting
        if over := part(state, "terminated"):
            again = part(pod, "spec").get("restartPolicy") in ("Always", "OnFailure") and phase(pod) not in ENDED_POD
            yield {} if again else over


def disrupts(condition: Mapping[str, Any]) -> bool:
    """Whether a condition says who ends the pod: Kubernetes, or Volcano in a way of its own."""
    kind = condition.get("type")
    if kind == "Ready":
        return bool(condition.get("reason") == "Evict")
    return bool(kind == "DisruptionTarget" and condition.get("status") == "True")


class Trouble(NamedTuple):
    """A pod's word that means a cause, and is old enough to be believed."""

    node: str
    word: Word
    reason: Reason


def words_by_pod(pods: Pods) -> dict[str, list[Word]]:
    """The reasons of each pod that gives any."""
    return {name: said for name, pod in pods.items() if (said := words(pod))}


def troubles(pods: Pods, said: Mapping[str, Sequence[Word]], at: float) -> list[Trouble]:
    """Every cause that only the controllers know, of what pods have said."""
    return [
        Trouble(name, word, reason)
        for name, found in said.items()
        for word in found
        if at - word.since >= (reason := meaning(word)).patience and not harmless(pods[name], word)
    ]


def blame(pods: Pods, at: float) -> Failure | None:
    """A cause that only the controllers know, of the pod that has it longest; None where the logs must tell."""
    found = troubles(pods, words_by_pod(pods), at)
    return blame_first(pods, found) if found else None


def blame_first(pods: Pods, found: Sequence[Trouble]) -> Failure:
    """The failure that the longest of some troubles is."""
    name, word, reason = min(found, key=lambda each: (each.word.since, each.node))
    said = re.sub(r"\s+", " ", word.message)[:SHOWN]
    where = f" on {machine(pods[name])}" * (reason.slug in ("node-lost", "evicted") and bool(machine(pods[name])))
    sentence = f"{name}{where}: {reason.sentence} ({word.reason}{f': {said}' if said else ''})"
    code = exit_code(pods[name])
    return Failure(cause=reason.slug, sentence=sentence, node=name, retry=reason.retry, exit_code=code)


def harmless(pod: Mapping[str, Any], word: Word) -> bool:
    """OOMKilled beside exit code 0: a child was killed, and the container went on."""
    return word.reason == "OOMKilled" and exit_code(pod) == 0
