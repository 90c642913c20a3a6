"""Why a pod does not run, or not any more: what only the controllers know, and no log can tell."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from tasks.launchers._pod_facts import (
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
    word_of,
)
from tasks.model import Failure

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


def meaning(word: Word) -> Reason | None:
    """What a word means; None of one that means nothing, or is not known."""
    known = REASONS.get(word.reason)
    if known is NO_IMAGE:
        return next((reason for says, reason in PULLS if re.search(says, word.message)), NO_IMAGE)
    return known


def words(pod: Mapping[str, Any]) -> list[Word]:
    """Every reason in a pod's status, containers last."""
    status = part(pod, "status")
    found = [word_of(status, 0.0)]
    conditions = rows(status, "conditions")
    placed = max((seconds(each.get("lastTransitionTime")) for each in conditions), default=0.0)
    found += [word_of(each, seconds(each.get("lastTransitionTime"))) for each in conditions if disrupts(each)]
    again = part(pod, "spec").get("restartPolicy") in ("Always", "OnFailure") and phase(pod) not in ENDED_POD
    for container in (*rows(status, "initContainerStatuses"), *rows(status, "containerStatuses")):
        over = {} if again else part(container, "state", "terminated")
        said = (word_of(each, placed) for each in (part(container, "state", "waiting"), over))
        patient = number(container.get("restartCount")) < LOOP
        found += [word for word in said if not (word.reason == "CrashLoopBackOff" and patient)]
    return [word for word in found if word.reason]


def disrupts(condition: Mapping[str, Any]) -> bool:
    """Whether a condition says who ends the pod: Kubernetes, or Volcano in a way of its own."""
    kind, status = condition.get("type"), condition.get("status")
    return (kind, status) == ("DisruptionTarget", "True") or (kind, condition.get("reason")) == ("Ready", "Evict")


def blame(pods: Pods, at: float) -> Failure | None:
    """A cause that only the controllers know, of the pod that has it longest; None where the logs must tell."""
    found = [
        (word.since, name, word, reason)
        for name, pod in pods.items()
        for word in words(pod)
        if (reason := meaning(word)) and at - word.since >= reason.patience and not harmless(pod, word)
    ]
    if not found:
        return None
    _, name, word, reason = min(found, key=lambda each: (each[0], each[1]))
    said = re.sub(r"\s+", " ", word.message)[:SHOWN]
    where = f" on {machine(pods[name])}" * (reason.slug in ("node-lost", "evicted") and bool(machine(pods[name])))
    sentence = f"{name}{where}: {reason.sentence} ({word.reason}{f': {said}' if said else ''})"
    code = exit_code(pods[name])
    return Failure(cause=reason.slug, sentence=sentence, node=name, retry=reason.retry, exit_code=code)


def harmless(pod: Mapping[str, Any], word: Word) -> bool:
    """OOMKilled beside exit code 0: a child was killed, and the container went on."""
    return word.reason == "OOMKilled" and exit_code(pod) == 0
