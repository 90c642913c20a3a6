"""Why a pod does not run, or no longer runs: causes that only the controllers report and no log shows."""

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

_CRASH_LOOP_RESTARTS = 3  # restarts of a container, from which on they count as a loop
MAX_MESSAGE_CHARS = 300  # of a controller's message


class PodCause(NamedTuple):
    """What a reason in a pod's status means.

    description: the clause after the pod's name.
    retry: another attempt may succeed.
    patience_s: seconds that the reason must persist before it ends the job; infinity if it never does.
    """

    slug: str
    description: str
    retry: bool = False
    patience_s: float = 0.0


# Kubernetes' own reasons: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/ and kubelet's sources.
_IMAGE_PULL_FAILED = PodCause("image", "its image cannot be pulled", patience_s=90)
_REGISTRY_UNREACHABLE = PodCause(
    "registry", "its image cannot be pulled, because its registry does not respond", True, patience_s=300
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
    "CrashLoopBackOff": PodCause("crash-loop", "it crashes repeatedly"),
    "OOMKilled": PodCause("oom-pod", "it used more memory than its limit"),
    "Evicted": PodCause("evicted", "its node evicted it", retry=True),
    "NodeLost": PodCause("node-lost", "its node was lost", retry=True),
    "NodeShutdown": _NODE_SHUT_DOWN,
    "Shutdown": _NODE_SHUT_DOWN,
    "Terminated": _NODE_SHUT_DOWN,
    "ContainerStatusUnknown": PodCause("node-lost", "its node lost its container, for example in a reboot", retry=True),
    "Preempting": PodCause("preempted", "it was preempted", retry=True),
    "UnexpectedAdmissionError": PodCause("device-lost", "its node had no working device for it", retry=True),
    _OUT_OF_RESOURCE: PodCause("device-lost", "its node had no room left for it", retry=True),
    "NodeAffinity": PodCause("pod-refused", "its node's labels changed and do not match it", retry=True),
    "TopologyAffinityError": PodCause(
        "numa-topology",
        "its node's topology manager found no NUMA node for it: request the resources of one",
        retry=True,
    ),
    "DeadlineExceeded": PodCause("pod-deadline", "its own activeDeadlineSeconds ended it"),
    "PreemptionByScheduler": PodCause("preempted", "it was preempted for a pod of higher priority", retry=True),
    "DeletionByTaintManager": PodCause("node-lost", "its node does not respond", retry=True),
    "EvictionByEvictionAPI": PodCause("evicted", "its node was drained", retry=True),
    "DeletionByPodGC": PodCause("node-lost", "its node is gone", retry=True),
    "TerminationByKubelet": PodCause("evicted", "its node evicted it", retry=True),
    "Evict": PodCause("preempted", "Volcano evicted it for another job", retry=True),
}
# Messages of containerd and CRI-O about an image that could not be pulled.
_PULL_ERRORS = (
    (
        r"no such host|dial tcp|connection re(?:fused|set)|timed? ?out|EOF|50[0234] |429 |toomanyrequests",
        _REGISTRY_UNREACHABLE,
    ),
    (r"denied|[Uu]nauthorized|no basic auth|authentication required|401 |403 ", _IMAGE_REFUSED),
    (r"not found|manifest unknown|does not exist|404 ", _IMAGE_NOT_FOUND),
)


def _get_cause(reason: str) -> PodCause | None:
    """The cause of a reason in `REASONS`; None for any other."""
    return REASONS.get(_OUT_OF_RESOURCE if reason.startswith(_OUT_OF_RESOURCE[:-1]) else reason)


def _determine_cause(reason: PodReason) -> PodCause:
    """The cause that a reason in `REASONS` stands for; that of an image which cannot be pulled is in the message."""
    cause = _get_cause(reason.reason)
    if cause is None or cause is _IMAGE_PULL_FAILED:
        return _determine_pull_cause(reason.message)
    return cause


@functools.lru_cache(maxsize=4096)
def _determine_pull_cause(message: str) -> PodCause:
    """Why an image could not be pulled. Cached: a thousand pods of one image mostly report the same."""
    for pattern, cause in _PULL_ERRORS:
        if re.search(pattern, message):
            return cause
    return _IMAGE_PULL_FAILED


def get_pod_reasons(pod: Mapping[str, Any]) -> list[PodReason]:
    """Every reason in a pod's status that is in `REASONS`, containers last; quick for the many pods that have none."""
    status = get_mapping(pod, "status")
    conditions = get_mappings(status, "conditions")
    reasons: list[PodReason] = []
    if status.get("reason"):
        reasons.append(build_reason(status, 0.0))
    for condition in conditions:
        if _is_disruption(condition):
            reasons.append(build_reason(condition, _get_transition_time(condition)))
    container_states = [
        state for state in _iter_container_reasons(pod, status) if _get_cause(to_text(state.get("reason")))
    ]
    if container_states:
        # A container's state has no time of its own, so its reason counts from the pod's last change.
        last_change_at = max((_get_transition_time(condition) for condition in conditions), default=0.0)
        reasons += [build_reason(state, last_change_at) for state in container_states]
    return [reason for reason in reasons if _get_cause(reason.reason)]


def _get_transition_time(condition: Mapping[str, Any]) -> float:
    return parse_timestamp(condition.get("lastTransitionTime"))


def _iter_container_reasons(pod: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """What each container waits for or ended with, except an end after which the kubelet restarts it."""
    for container in (*get_mappings(status, "initContainerStatuses"), *get_mappings(status, "containerStatuses")):
        state = get_mapping(container, "state")
        waiting = get_mapping(state, "waiting")
        is_loop = to_number(container.get("restartCount")) >= _CRASH_LOOP_RESTARTS
        if waiting.get("reason") != "CrashLoopBackOff" or is_loop:
            yield waiting
        terminated = get_mapping(state, "terminated")
        if terminated and not _is_restarted(pod):
            yield terminated


def _is_restarted(pod: Mapping[str, Any]) -> bool:
    """Whether the kubelet restarts a container of this pod that has ended."""
    restart_policy = get_mapping(pod, "spec").get("restartPolicy")
    return restart_policy in ("Always", "OnFailure") and get_pod_phase(pod) not in ENDED_POD_PHASES


def _is_disruption(condition: Mapping[str, Any]) -> bool:
    """Whether a condition shows why the pod is being ended, in Kubernetes' form or in Volcano's own."""
    condition_type = condition.get("type")
    if condition_type == "Ready":
        return bool(condition.get("reason") == "Evict")
    return bool(condition_type == "DisruptionTarget" and condition.get("status") == "True")


class PodProblem(NamedTuple):
    """A reason in a pod's status that has persisted for the patience of its cause."""

    node: str
    reason: PodReason
    cause: PodCause


def get_reasons_by_pod(pods: Pods) -> dict[str, list[PodReason]]:
    """The reasons of each pod that has any."""
    reasons_by_pod = {}
    for name, pod in pods.items():
        reasons = get_pod_reasons(pod)
        if reasons:
            reasons_by_pod[name] = reasons
    return reasons_by_pod


def find_pod_problems(pods: Pods, reasons_by_pod: Mapping[str, Sequence[PodReason]], now: float) -> list[PodProblem]:
    """Every cause in the reasons of the pods that counts at the time `now`."""
    problems = []
    for name, reasons in reasons_by_pod.items():
        for reason in reasons:
            cause = _determine_cause(reason)
            if now - reason.started_at >= cause.patience_s and not _is_harmless(pods[name], reason):
                problems.append(PodProblem(name, reason, cause))
    return problems


def find_pod_failure(pods: Pods, now: float) -> Failure | None:
    """The oldest cause that only the controllers report; None if only the logs can show it."""
    problems = find_pod_problems(pods, get_reasons_by_pod(pods), now)
    return build_failure(pods, problems) if problems else None


def build_failure(pods: Pods, problems: Sequence[PodProblem]) -> Failure:
    """The failure that describes the oldest of some problems."""
    oldest = min(problems, key=lambda problem: (problem.reason.started_at, problem.node))
    cause = oldest.cause
    pod = pods[oldest.node]
    subject = oldest.node
    node_name = get_node_name(pod)
    if cause.slug in ("node-lost", "evicted") and node_name:
        subject += f" on {node_name}"
    quote = oldest.reason.reason
    message = re.sub(r"\s+", " ", oldest.reason.message)[:MAX_MESSAGE_CHARS]
    if message:
        quote += f": {message}"
    return Failure(
        cause=cause.slug,
        sentence=f"{subject}: {cause.description} ({quote})",
        node=oldest.node,
        retry=cause.retry,
        exit_code=get_pod_exit_code(pod),
    )


def _is_harmless(pod: Mapping[str, Any], reason: PodReason) -> bool:
    """Whether the reason is OOMKilled beside exit code 0: a child was killed, and the container continued."""
    return reason.reason == "OOMKilled" and get_pod_exit_code(pod) == 0
