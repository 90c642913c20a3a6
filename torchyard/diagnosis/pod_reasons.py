"""Why a pod does not run, or no longer runs: what only the controllers know and no log shows."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torchyard.diagnosis.pod_facts import (
    ENDED_POD_PHASES,
    PodReason,
    Pods,
    build_reason,
    get_mapping,
    get_mappings,
    get_node_name,
    get_pod_exit_code,
    get_pod_phase,
    parse_timestamp,
    to_number,
    to_text,
)
from torchyard.model.run import Failure

_CRASH_LOOP_RESTARTS = 3  # restarts of a container that count as a loop
MAX_MESSAGE_CHARS = 300  # characters of a controller's message


class PodCause(NamedTuple):
    """What a reason in a pod's status means; `patience`: seconds until it is believed."""

    slug: str
    description: str
    retry: bool = False
    patience_s: float = 0.0


# Kubernetes' own reasons: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/ and kubelet's sources.
_IMAGE_PULL_FAILED = PodCause("image", "its image cannot be pulled", patience_s=90)
_REGISTRY_UNREACHABLE = PodCause(
    "registry", "its image cannot be pulled, because its registry does not answer", True, patience_s=300
)
_IMAGE_REFUSED = PodCause(
    "image", "its registry refuses it the image: see pod.pull_secrets and the image's name", patience_s=90
)
_IMAGE_NOT_FOUND = PodCause("image", "its registry has no such image: correct its name or tag", patience_s=90)
_CONTAINER_NOT_CREATED = PodCause("pod-config", "its container cannot be created", patience_s=60)
_COMMAND_NOT_STARTED = PodCause("start-error", "its command cannot be started")
_NODE_SHUT_DOWN = PodCause("node-lost", "its node was shut down", retry=True)
_OUT_OF_RESOURCE = "OutOf*"  # with the name of a resource: OutOfcpu, OutOfnvidia.com/gpu
REASONS = {
    "ErrImagePull": _IMAGE_PULL_FAILED,
    "ImagePullBackOff": _IMAGE_PULL_FAILED,
    "RegistryUnavailable": _REGISTRY_UNREACHABLE,
    "InvalidImageName": _IMAGE_PULL_FAILED._replace(patience_s=0),
    "ErrImageNeverPull": _IMAGE_PULL_FAILED._replace(patience_s=0),
    "ImageInspectError": _IMAGE_PULL_FAILED,
    "SignatureValidationFailed": PodCause("image", "its image's signature is not accepted"),
    "CreateContainerConfigError": _CONTAINER_NOT_CREATED,
    "CreateContainerError": _CONTAINER_NOT_CREATED,
    "RunContainerError": _COMMAND_NOT_STARTED._replace(patience_s=30),
    "ContainerCannotRun": _COMMAND_NOT_STARTED,
    "StartError": _COMMAND_NOT_STARTED,
    "PostStartHookError": PodCause("start-error", "its postStart hook failed"),
    "CrashLoopBackOff": PodCause("crash-loop", "it crashes again and again, and would for ever"),
    "OOMKilled": PodCause("oom-pod", "it used more memory than its limit"),
    "Evicted": PodCause("evicted", "its node evicted it", retry=True),
    "NodeLost": PodCause("node-lost", "its node was lost", retry=True),
    "NodeShutdown": _NODE_SHUT_DOWN,
    "Shutdown": _NODE_SHUT_DOWN,
    "Terminated": _NODE_SHUT_DOWN,
    "ContainerStatusUnknown": PodCause("node-lost", "its node lost its container, as by a reboot", retry=True),
    "Preempting": PodCause("preempted", "it was preempted", retry=True),
    "UnexpectedAdmissionError": PodCause("device-lost", "its node had no working device for it", retry=True),
    _OUT_OF_RESOURCE: PodCause("device-lost", "its node had no room for it any more", retry=True),
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
    (
        r"no such host|dial tcp|connection re(?:fused|set)|timed? ?out|EOF|50[0234] |429 |toomanyrequests",
        _REGISTRY_UNREACHABLE,
    ),
    (r"denied|[Uu]nauthorized|no basic auth|authentication required|401 |403 ", _IMAGE_REFUSED),
    (r"not found|manifest unknown|does not exist|404 ", _IMAGE_NOT_FOUND),
)


def _get_cause(reason: str) -> PodCause | None:
    return REASONS.get(_OUT_OF_RESOURCE if reason.startswith(_OUT_OF_RESOURCE[:-1]) else reason)


def _determine_cause(reason: PodReason) -> PodCause:
    """The cause that a reason which is known stands for."""
    cause = _get_cause(reason.reason)
    return _determine_pull_cause(reason.message) if cause is None or cause is _IMAGE_PULL_FAILED else cause


@functools.lru_cache(maxsize=4096)
def _determine_pull_cause(message: str) -> PodCause:
    """Why an image could not be pulled. Cached: a thousand pods of one image mostly report the same."""
    return next((cause for pattern, cause in _PULL_ERRORS if re.search(pattern, message)), _IMAGE_PULL_FAILED)


def get_pod_reasons(pod: Mapping[str, Any]) -> list[PodReason]:
    """Every reason in a pod's status that REASONS knows, containers last; quick for the many pods that have none."""
    status = get_mapping(pod, "status")
    conditions = get_mappings(status, "conditions")
    reasons = [build_reason(status, 0.0)] if status.get("reason") else []
    reasons += [
        build_reason(condition, parse_timestamp(condition.get("lastTransitionTime")))
        for condition in filter(_is_disruption, conditions)
    ]
    container_states = [
        container_state
        for container_state in _iter_container_reasons(pod, status)
        if _get_cause(to_text(container_state.get("reason")))
    ]
    if container_states:
        scheduled_at = max(
            (parse_timestamp(condition.get("lastTransitionTime")) for condition in conditions), default=0.0
        )
        reasons += [build_reason(container_state, scheduled_at) for container_state in container_states]
    return [reason for reason in reasons if _get_cause(reason.reason)]


def _iter_container_reasons(pod: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What each container waits for or ended with, except an end after which the kubelet restarts it."""
    for container in (*get_mappings(status, "initContainerStatuses"), *get_mappings(status, "containerStatuses")):
        state = get_mapping(container, "state")
        waiting = get_mapping(state, "waiting")
        if (
            waiting.get("reason") != "CrashLoopBackOff"
            or to_number(container.get("restartCount")) >= _CRASH_LOOP_RESTARTS
        ):
            yield waiting
        if terminated := get_mapping(state, "terminated"):
            is_restarted = (
                get_mapping(pod, "spec").get("restartPolicy") in ("Always", "OnFailure")
                and get_pod_phase(pod) not in ENDED_POD_PHASES
            )
            yield {} if is_restarted else terminated


def _is_disruption(condition: Mapping[str, Any]) -> bool:
    """Whether a condition says why the pod is being ended, in Kubernetes' form or in Volcano's own."""
    condition_type = condition.get("type")
    if condition_type == "Ready":
        return bool(condition.get("reason") == "Evict")
    return bool(condition_type == "DisruptionTarget" and condition.get("status") == "True")


class PodProblem(NamedTuple):
    """A reason in a pod's status that stands for a cause, and is old enough to be believed."""

    node: str
    reason: PodReason
    cause: PodCause


def get_reasons_by_pod(pods: Pods) -> dict[str, list[PodReason]]:
    """The reasons of each pod that gives any."""
    return {name: reasons for name, pod in pods.items() if (reasons := get_pod_reasons(pod))}


def find_pod_problems(pods: Pods, reasons_by_pod: Mapping[str, Sequence[PodReason]], now: float) -> list[PodProblem]:
    """Every cause that only the controllers know, from the reasons of the pods."""
    return [
        PodProblem(name, reason, cause)
        for name, reasons in reasons_by_pod.items()
        for reason in reasons
        if now - reason.started_at >= (cause := _determine_cause(reason)).patience_s
        and not _is_harmless(pods[name], reason)
    ]


def find_pod_failure(pods: Pods, now: float) -> Failure | None:
    """The oldest cause that only the controllers know; None if only the logs can show it."""
    problems = find_pod_problems(pods, get_reasons_by_pod(pods), now)
    return build_failure(pods, problems) if problems else None


def build_failure(pods: Pods, problems: Sequence[PodProblem]) -> Failure:
    """The failure that describes the oldest of some problems."""
    name, reason, cause = min(problems, key=lambda problem: (problem.reason.started_at, problem.node))
    message = re.sub(r"\s+", " ", reason.message)[:MAX_MESSAGE_CHARS]
    location = f" on {get_node_name(pods[name])}" * (
        cause.slug in ("node-lost", "evicted") and bool(get_node_name(pods[name]))
    )
    sentence = f"{name}{location}: {cause.description} ({reason.reason}{f': {message}' if message else ''})"
    exit_code = get_pod_exit_code(pods[name])
    return Failure(cause=cause.slug, sentence=sentence, node=name, retry=cause.retry, exit_code=exit_code)


def _is_harmless(pod: Mapping[str, Any], reason: PodReason) -> bool:
    """Whether the reason is OOMKilled beside exit code 0: a child was killed, and the container went on."""
    return reason.reason == "OOMKilled" and get_pod_exit_code(pod) == 0
