"""Why a pod does not run, or no longer runs: what only the controllers know and no log shows."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torchyard.diagnosis.pod_facts import (
    ENDED_POD_PHASES,
    PodReason,
    Pods,
    get_mapping,
    get_mappings,
    parse_timestamp,
    read_node_name,
    read_pod_exit_code,
    read_pod_phase,
    read_reason,
    to_number,
    to_text,
)
from torchyard.model.run import Failure

_CRASH_LOOP_RESTARTS = 3  # restarts of a container that count as a loop
MAX_MESSAGE_CHARS = 300  # characters of a controller's message


class PodCause(NamedTuple):
    """What a reason in a pod's status means; `patience`: seconds until it is believed."""

    slug: str
    sentence: str
    retry: bool = False
    patience: float = 0.0


# Kubernetes' own reasons: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/ and kubelet's sources.
_NO_IMAGE = PodCause("image", "its image cannot be pulled", patience=90)
_NO_REGISTRY = PodCause(
    "registry", "its image cannot be pulled, because its registry does not answer", True, patience=300
)
_IMAGE_REFUSED = PodCause(
    "image", "its registry refuses it the image: see pod.pull_secrets and the image's name", patience=90
)
_IMAGE_ABSENT = PodCause("image", "its registry has no such image: correct its name or tag", patience=90)
_NO_CONFIG = PodCause("pod-config", "its container cannot be created", patience=60)
_NO_START = PodCause("start-error", "its command cannot be started")
_NODE_DOWN = PodCause("node-lost", "its node was shut down", retry=True)
_NO_ROOM = "OutOf*"  # with the name of a resource: OutOfcpu, OutOfnvidia.com/gpu
REASONS = {
    "ErrImagePull": _NO_IMAGE,
    "ImagePullBackOff": _NO_IMAGE,
    "RegistryUnavailable": _NO_REGISTRY,
    "InvalidImageName": _NO_IMAGE._replace(patience=0),
    "ErrImageNeverPull": _NO_IMAGE._replace(patience=0),
    "ImageInspectError": _NO_IMAGE,
    "SignatureValidationFailed": PodCause("image", "its image's signature is not accepted"),
    "CreateContainerConfigError": _NO_CONFIG,
    "CreateContainerError": _NO_CONFIG,
    "RunContainerError": _NO_START._replace(patience=30),
    "ContainerCannotRun": _NO_START,
    "StartError": _NO_START,
    "PostStartHookError": PodCause("start-error", "its postStart hook failed"),
    "CrashLoopBackOff": PodCause("crash-loop", "it crashes again and again, and would for ever"),
    "OOMKilled": PodCause("oom-pod", "it used more memory than its limit"),
    "Evicted": PodCause("evicted", "its node evicted it", retry=True),
    "NodeLost": PodCause("node-lost", "its node was lost", retry=True),
    "NodeShutdown": _NODE_DOWN,
    "Shutdown": _NODE_DOWN,
    "Terminated": _NODE_DOWN,
    "ContainerStatusUnknown": PodCause("node-lost", "its node lost its container, as by a reboot", retry=True),
    "Preempting": PodCause("preempted", "it was preempted", retry=True),
    "UnexpectedAdmissionError": PodCause("device-lost", "its node had no working device for it", retry=True),
    _NO_ROOM: PodCause("device-lost", "its node had no room for it any more", retry=True),
    "NodeAffinity": PodCause("pod-refused", "its node's labels do not match it any more", retry=True),
    "TopologyAffinityError": PodCause(
        "numa-topology", "its node's topology manager found no NUMA node for it: ask for what one has", retry=True
    ),
    "DeadlineExceeded": PodCause("pod-deadline", "its own activeDeadlineSeconds ended it"),
    "PreemptionByScheduler": PodCause("preempted", "it was preempted for a pod of higher priority", retry=True),
    "DeletionByTaintManager": PodCause("node-lost", "its node does not answer any more", retry=True),
    "EvictionByEvictionAPI": PodCause("evicted", "its node was drained", retry=True),
    "DeletionByPodGC": PodCause("node-lost", "its node is gone", retry=True),
    "TerminationByKubelet": PodCause("evicted", "its node evicted it", retry=True),
    "Evict": PodCause("preempted", "Volcano took its place for another job", retry=True),
}
# What a message says about an image that could not be pulled, in the words of containerd and CRI-O.
_PULL_ERRORS = (
    (r"no such host|dial tcp|connection re(?:fused|set)|timed? ?out|EOF|50[0234] |429 |toomanyrequests", _NO_REGISTRY),
    (r"denied|[Uu]nauthorized|no basic auth|authentication required|401 |403 ", _IMAGE_REFUSED),
    (r"not found|manifest unknown|does not exist|404 ", _IMAGE_ABSENT),
)


def _look_up(reason: str) -> PodCause | None:
    return REASONS.get(_NO_ROOM if reason.startswith(_NO_ROOM[:-1]) else reason)


def _find_cause(word: PodReason) -> PodCause:
    """The cause that a reason which is known stands for."""
    known = _look_up(word.reason)
    return _find_pull_cause(word.message) if known is None or known is _NO_IMAGE else known


@functools.lru_cache(maxsize=4096)
def _find_pull_cause(message: str) -> PodCause:
    """Why an image could not be pulled. Cached: a thousand pods of one image mostly report the same."""
    return next((reason for says, reason in _PULL_ERRORS if re.search(says, message)), _NO_IMAGE)


def read_pod_reasons(pod: Mapping[str, Any]) -> list[PodReason]:
    """Every reason in a pod's status that REASONS knows, containers last; quick for the many pods that have none."""
    status = get_mapping(pod, "status")
    conditions = get_mappings(status, "conditions")
    found = [read_reason(status, 0.0)] if status.get("reason") else []
    found += [
        read_reason(each, parse_timestamp(each.get("lastTransitionTime")))
        for each in filter(_is_disruption, conditions)
    ]
    said = [each for each in _read_container_reasons(pod, status) if _look_up(to_text(each.get("reason")))]
    if said:
        placed = max((parse_timestamp(each.get("lastTransitionTime")) for each in conditions), default=0.0)
        found += [read_reason(each, placed) for each in said]
    return [word for word in found if _look_up(word.reason)]


def _read_container_reasons(pod: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What each container waits for or ended with, except an end after which the kubelet restarts it."""
    for container in (*get_mappings(status, "initContainerStatuses"), *get_mappings(status, "containerStatuses")):
        state = get_mapping(container, "state")
        waiting = get_mapping(state, "waiting")
        if (
            waiting.get("reason") != "CrashLoopBackOff"
            or to_number(container.get("restartCount")) >= _CRASH_LOOP_RESTARTS
        ):
            yield waiting
        if over := get_mapping(state, "terminated"):
            again = (
                get_mapping(pod, "spec").get("restartPolicy") in ("Always", "OnFailure")
                and read_pod_phase(pod) not in ENDED_POD_PHASES
            )
            yield {} if again else over


def _is_disruption(condition: Mapping[str, Any]) -> bool:
    """Whether a condition says why the pod is being ended, in Kubernetes' form or in Volcano's own."""
    kind = condition.get("type")
    if kind == "Ready":
        return bool(condition.get("reason") == "Evict")
    return bool(kind == "DisruptionTarget" and condition.get("status") == "True")


class PodProblem(NamedTuple):
    """A reason in a pod's status that stands for a cause, and is old enough to be believed."""

    node: str
    word: PodReason
    reason: PodCause


def read_reasons_by_pod(pods: Pods) -> dict[str, list[PodReason]]:
    """The reasons of each pod that gives any."""
    return {name: said for name, pod in pods.items() if (said := read_pod_reasons(pod))}


def find_pod_problems(pods: Pods, said: Mapping[str, Sequence[PodReason]], at: float) -> list[PodProblem]:
    """Every cause that only the controllers know, from the reasons of the pods."""
    return [
        PodProblem(name, word, reason)
        for name, found in said.items()
        for word in found
        if at - word.since >= (reason := _find_cause(word)).patience and not _is_harmless(pods[name], word)
    ]


def find_pod_failure(pods: Pods, at: float) -> Failure | None:
    """The oldest cause that only the controllers know; None if only the logs can show it."""
    found = find_pod_problems(pods, read_reasons_by_pod(pods), at)
    return explain_first_problem(pods, found) if found else None


def explain_first_problem(pods: Pods, found: Sequence[PodProblem]) -> Failure:
    """The failure that describes the oldest of some problems."""
    name, word, reason = min(found, key=lambda each: (each.word.since, each.node))
    said = re.sub(r"\s+", " ", word.message)[:MAX_MESSAGE_CHARS]
    where = f" on {read_node_name(pods[name])}" * (
        reason.slug in ("node-lost", "evicted") and bool(read_node_name(pods[name]))
    )
    sentence = f"{name}{where}: {reason.sentence} ({word.reason}{f': {said}' if said else ''})"
    code = read_pod_exit_code(pods[name])
    return Failure(cause=reason.slug, sentence=sentence, node=name, retry=reason.retry, exit_code=code)


def _is_harmless(pod: Mapping[str, Any], word: PodReason) -> bool:
    """Whether the reason is OOMKilled beside exit code 0: a child was killed, and the container went on."""
    return word.reason == "OOMKilled" and read_pod_exit_code(pod) == 0
