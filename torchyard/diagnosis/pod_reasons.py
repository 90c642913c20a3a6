"""Why a pod does not run, or no longer runs: causes that only the controllers report and no log shows."""

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torchyard.diagnosis.pod_facts import (
    ENDED_POD_PHASES,
    OBSTACLES_KEY,
    PodReason,
    Pods,
    build_reason,
    get_container_end,
    get_container_state,
    get_container_status,
    get_mapping,
    get_mappings,
    get_node_name,
    get_pod_exit_code,
    get_pod_phase,
    parse_timestamp,
    to_number,
    to_text,
)
from torchyard.model.causes.cause import PodRule
from torchyard.model.causes.platform import PlatformCause
from torchyard.model.causes.pods import (
    CONTAINER_WAITING,
    DISRUPTION,
    INIT_ERROR,
    MESSAGE_RULES,
    OUT_OF_RESOURCE,
    POD_REJECTED,
    POD_RULES,
)
from torchyard.model.run import Failure

_NORMAL_WAITING_REASONS = ("", "ContainerCreating", "PodInitializing")
_CRASH_LOOP_RESTARTS = 3  # restarts of a container, from which on they count as a loop
MAX_MESSAGE_CHARS = 300  # of a controller's message
_NODE_CAUSES = (PlatformCause.NODE_LOST, PlatformCause.EVICTED)  # whose sentence names the machine


def _get_rule(reason: str) -> PodRule | None:
    """The rule of a reason in `POD_RULES`; None for any other."""
    return POD_RULES.get(OUT_OF_RESOURCE if reason.startswith(OUT_OF_RESOURCE[:-1]) else reason)


@functools.lru_cache(maxsize=4096)
def _determine_rule(reason: str, message: str) -> PodRule | None:
    """The rule of a reason, or of its message if that shows more; None if `POD_RULES` has none.

    Cached: a thousand pods of one image mostly report the same.
    """
    for pattern, rule in MESSAGE_RULES.get(reason, ()):
        if re.search(pattern, message):
            return rule
    return _get_rule(reason)


def get_pod_reasons(pod: Mapping[str, Any]) -> list[PodReason]:
    """Every reason in a pod's status that has a rule in `POD_RULES`, containers last; quick for pods that have none.

    A container beside the main one counts only if it decides about the pod: a sidecar that is killed, restarted or
    cannot start does not end a pod whose main container runs.
    """
    status = get_mapping(pod, "status")
    container_reasons = []
    for container_reason in _iter_container_reasons(pod, status):
        if container_reason.is_main or _are_companions_decisive(pod):
            container_reasons.append(container_reason)
    return [*_iter_pod_reasons(pod, status), *_date_reasons(pod, container_reasons)]


def get_companion_reasons(pod: Mapping[str, Any]) -> list[PodReason]:
    """The reasons of the containers beside the main one, also if they do not decide about the pod."""
    all_reasons = _iter_container_reasons(pod, get_mapping(pod, "status"))
    return _date_reasons(pod, [reason for reason in all_reasons if not reason.is_main])


def _iter_pod_reasons(pod: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[PodReason]:
    """The reasons of the pod itself: why its node refused or ended it, and why it is being ended."""
    if status.get("reason"):
        reason = build_reason(status, _find_pod_end(pod, status))
        if _get_rule(reason.reason):
            yield reason
        elif get_pod_phase(pod) == "Failed" and not _has_started(status):
            yield _rename_reason(POD_REJECTED, reason)
    for condition in get_mappings(status, "conditions"):
        if _is_disruption(condition):
            reason = build_reason(condition, _get_transition_time(condition))._replace(is_disruption=True)
            yield reason if _get_rule(reason.reason) else _rename_reason(DISRUPTION, reason)


def _find_pod_end(pod: Mapping[str, Any], status: Mapping[str, Any]) -> float:
    """When a pod was ended, in seconds since the epoch, for the reason of its status, which has no time; 0 if unknown.

    That is when its end was announced or its main container ended, else the last change of its conditions.
    """
    conditions = get_mappings(status, "conditions")
    times = [_get_transition_time(condition) for condition in conditions if _is_disruption(condition)]
    end = min([get_container_end(pod), *filter(None, times)])
    if end == math.inf:
        end = max(map(_get_transition_time, conditions), default=0.0)
    return end


def _rename_reason(own_reason: str, reason: PodReason) -> PodReason:
    """One of torchyard's own reasons, with the reason of Kubernetes in its message."""
    quote = quote_reason(reason.reason, reason.message) if reason.reason else reason.message
    return reason._replace(reason=own_reason, message=quote)


def _has_started(status: Mapping[str, Any]) -> bool:
    """Whether a container of the pod runs or has ended."""
    for container in (*get_mappings(status, "initContainerStatuses"), *get_mappings(status, "containerStatuses")):
        state = get_mapping(container, "state")
        if "running" in state or "terminated" in state:
            return True
    return False


def _are_companions_decisive(pod: Mapping[str, Any]) -> bool:
    """Whether the containers beside the main one may be why the pod does not start, or has failed.

    Not while the main container runs, and not if it has failed by itself. If it has ended with 0, the pod fails only
    because of another container.
    """
    state = get_container_state(pod)
    if "running" in state:
        return False
    if "terminated" not in state:
        return True
    return not to_number(get_mapping(state, "terminated").get("exitCode"), 1) and get_pod_phase(pod) == "Failed"


def _get_transition_time(condition: Mapping[str, Any]) -> float:
    return parse_timestamp(condition.get("lastTransitionTime"))


class _ContainerReason(NamedTuple):
    """What a container waits for or ended with. The message names a container that is not the main one.

    observed_at: when the watch saw it first, in seconds since the epoch; 0 if it has not recorded that.
    """

    reason: str
    message: str
    is_main: bool
    observed_at: float = 0.0


def _date_reasons(pod: Mapping[str, Any], container_reasons: Sequence[_ContainerReason]) -> list[PodReason]:
    """The reasons with their time.

    A container's state has none of its own: it counts from the pod's last change, or since the watch has seen it.
    """
    if not container_reasons:
        return []
    conditions = get_mappings(pod, "status", "conditions")
    last_change_at = max((_get_transition_time(condition) for condition in conditions), default=0.0)
    return [
        PodReason(reason.reason, reason.message, max(last_change_at, reason.observed_at))
        for reason in container_reasons
    ]


class _Obstacle(NamedTuple):
    """What a container waits for: its cause, since when, and the last message that shows more than the reason."""

    cause: str
    observed_at: float
    message: str


def record_obstacles(pod: Mapping[str, Any], previous: Mapping[str, Any] | None, now: float) -> Mapping[str, Any]:
    """The pod with what its containers wait for, and when that was seen first; the pod itself if they wait for nothing.

    A container's state has no time, so an image that cannot be pulled after an hour's download would count as one that
    could not for an hour. Kubelets before 1.32 report the error of a pull only until they back off. `previous`: the
    same pod as last recorded; None if it is new. `now`: seconds since the epoch, by the API server's clock.
    """
    status = get_mapping(pod, "status")
    obstacles = {}
    for container in (*get_mappings(status, "initContainerStatuses"), *get_mappings(status, "containerStatuses")):
        reason = _find_waiting_reason(container)
        rule = _get_rule(reason.reason) if reason else None
        if reason is None or rule is None:
            continue
        name = to_text(container.get("name"))
        earlier = _get_obstacle(previous, name)
        obstacle = earlier if earlier and earlier.cause == rule.cause else _Obstacle(rule.cause, now, "")
        if _determine_rule(reason.reason, reason.message) is not rule:
            obstacle = obstacle._replace(message=reason.message)
        obstacles[name] = obstacle._asdict()
    if not obstacles:
        return pod
    recorded = dict(pod)
    recorded[OBSTACLES_KEY] = obstacles
    return recorded


def _get_obstacle(pod: Mapping[str, Any] | None, container_name: str) -> _Obstacle | None:
    """The recorded obstacle of a container; None if there is none."""
    recorded = get_mapping(pod, OBSTACLES_KEY, container_name)
    observed_at = recorded.get("observed_at")
    if not isinstance(observed_at, int | float):
        return None
    return _Obstacle(to_text(recorded.get("cause")), observed_at, to_text(recorded.get("message")))


def _iter_container_reasons(pod: Mapping[str, Any], status: Mapping[str, Any]) -> Iterator[_ContainerReason]:
    """What each container waits for or ended with, except an end after which the kubelet restarts it."""
    main_status: Mapping[str, Any] | None = None
    for container in (*get_mappings(status, "initContainerStatuses"), *get_mappings(status, "containerStatuses")):
        reason = _find_waiting_reason(container) or _find_end_reason(pod, container)
        if reason is None:
            continue
        if main_status is None:
            main_status = get_container_status(pod)
        is_main = container is main_status
        name = to_text(container.get("name"))
        message = reason.message
        obstacle = _get_obstacle(pod, name) if "waiting" in get_mapping(container, "state") else None
        if obstacle and obstacle.message and _determine_rule(reason.reason, message) is _get_rule(reason.reason):
            message = obstacle.message
        if not is_main:
            message = f"{name}: {message}" if message else name
        yield _ContainerReason(reason.reason, message, is_main, obstacle.observed_at if obstacle else 0.0)
    init_error = _find_init_error(pod, status)
    if init_error:
        yield init_error


def _find_waiting_reason(container: Mapping[str, Any]) -> PodReason | None:
    """Why a container does not start; None if it does not wait, or waits as each container does before its start."""
    waiting = get_mapping(container, "state", "waiting")
    reason = build_reason(waiting, 0.0)
    if reason.reason in _NORMAL_WAITING_REASONS:
        return None
    if reason.reason == "CrashLoopBackOff" and to_number(container.get("restartCount")) < _CRASH_LOOP_RESTARTS:
        return None
    return reason if _get_rule(reason.reason) else _rename_reason(CONTAINER_WAITING, reason)


def _find_end_reason(pod: Mapping[str, Any], container: Mapping[str, Any]) -> PodReason | None:
    """Why a container has ended; None if it has not, if it is restarted, or if the reason has no rule."""
    terminated = get_mapping(container, "state", "terminated")
    reason = build_reason(terminated, 0.0)
    is_end = _get_rule(reason.reason) is not None and not _is_restarted(pod, to_text(container.get("name")))
    return reason if is_end else None


def _find_init_error(pod: Mapping[str, Any], status: Mapping[str, Any]) -> _ContainerReason | None:
    """The init container that failed first; None if none has, or the job's container has been able to start.

    A sidecar among them is killed when another one fails.
    """
    if get_pod_phase(pod) != "Failed":
        return None
    for condition in get_mappings(status, "conditions"):
        if condition.get("type") == "Initialized" and condition.get("status") != "False":
            return None
    first_failed_at = math.inf
    init_error = None
    for container in get_mappings(status, "initContainerStatuses"):
        name = to_text(container.get("name"))
        terminated = get_mapping(container, "state", "terminated")
        exit_code = to_number(terminated.get("exitCode"))
        failed_at = parse_timestamp(terminated.get("finishedAt")) or math.inf
        is_first = init_error is None or failed_at < first_failed_at
        if exit_code and is_first and _get_own_restart_policy(pod, name) != "Always":
            message = to_text(terminated.get("message")).strip() or f"exit code {exit_code:g}"
            init_error = _ContainerReason(INIT_ERROR, f"{name}: {message}", is_main=False)
            first_failed_at = failed_at
    return init_error


def _is_restarted(pod: Mapping[str, Any], container_name: str) -> bool:
    """Whether the kubelet restarts this container after its end: a sidecar also in a pod that is never restarted."""
    policy = _get_own_restart_policy(pod, container_name) or get_mapping(pod, "spec").get("restartPolicy")
    return policy in ("Always", "OnFailure") and get_pod_phase(pod) not in ENDED_POD_PHASES


def _get_own_restart_policy(pod: Mapping[str, Any], container_name: str) -> str:
    """The restart policy of a container itself, which precedes its pod's; "" if it has none."""
    for key in ("initContainers", "containers"):
        for container in get_mappings(pod, "spec", key):
            if container.get("name") == container_name:
                return to_text(container.get("restartPolicy"))
    return ""


def _is_disruption(condition: Mapping[str, Any]) -> bool:
    """Whether a condition shows why the pod is being ended, in Kubernetes' form or in Volcano's own."""
    condition_type = condition.get("type")
    if condition_type == "Ready":
        return bool(condition.get("reason") == "Evict")
    return bool(condition_type == "DisruptionTarget" and condition.get("status") == "True")


class PodProblem(NamedTuple):
    """A reason in a pod's status that has persisted for the patience of its rule."""

    node: str
    reason: PodReason
    rule: PodRule


def get_reasons_by_pod(pods: Pods) -> dict[str, list[PodReason]]:
    """The reasons of each pod that has any."""
    reasons_by_pod = {}
    for name, pod in pods.items():
        reasons = get_pod_reasons(pod)
        if reasons:
            reasons_by_pod[name] = reasons
    return reasons_by_pod


def find_pod_problems(pods: Pods, reasons_by_pod: Mapping[str, Sequence[PodReason]], now: float) -> list[PodProblem]:
    """The reasons that prove a problem of a pod: those that have lasted as long as their rule requires, by `now`.

    A reason of a pod that has ended counts at once. `now`: seconds since the epoch, by the API server's clock.
    """
    problems = []
    for name, reasons in reasons_by_pod.items():
        has_ended = get_pod_phase(pods[name]) in ENDED_POD_PHASES
        for reason in reasons:
            rule = _determine_rule(reason.reason, reason.message)
            if rule is None or _is_harmless(pods[name], reason):
                continue
            if has_ended or now - reason.started_at >= rule.patience_s:
                problems.append(PodProblem(name, reason, rule))
    return problems


def find_pod_failure(pods: Pods, now: float) -> Failure | None:
    """The oldest cause that only the controllers report; None if only the logs can show it."""
    problems = find_pod_problems(pods, get_reasons_by_pod(pods), now)
    return build_failure(pods, problems) if problems else None


def find_companion_failure(pods: Pods) -> Failure | None:
    """The oldest obstacle in a container beside the main one, of pods that are Pending; None if there is none.

    It does not end a pod whose main container runs, which may still wait for that container.
    """
    pending_pods = {name: pod for name, pod in pods.items() if get_pod_phase(pod) == "Pending"}
    reasons_by_pod = {name: get_companion_reasons(pod) for name, pod in pending_pods.items()}
    problems = find_pod_problems(pending_pods, reasons_by_pod, math.inf)
    return build_failure(pending_pods, problems) if problems else None


def build_failure(pods: Pods, problems: Sequence[PodProblem]) -> Failure:
    """The failure that describes the oldest of some problems."""
    # One whose time is not known is the oldest only if no time is known.
    oldest = min(problems, key=lambda problem: (problem.reason.started_at or math.inf, problem.node))
    rule = oldest.rule
    pod = pods[oldest.node]
    subject = oldest.node
    node_name = get_node_name(pod)
    if rule.cause in _NODE_CAUSES and node_name:
        subject += f" on {node_name}"
    return Failure(
        cause=rule.cause,
        sentence=f"{subject}: {rule.description} ({quote_reason(oldest.reason.reason, oldest.reason.message)})",
        node=oldest.node,
        retry=rule.retry,
        requeue=rule.requeue,
        stopped_at=oldest.reason.started_at if rule.requeue and oldest.reason.started_at else None,
        exit_code=get_pod_exit_code(pod),
    )


def quote_reason(reason: str, message: str) -> str:
    """`Reason: message` in one line; a message may be empty, or only a line end."""
    short_message = re.sub(r"\s+", " ", message).strip()[:MAX_MESSAGE_CHARS]
    return f"{reason}: {short_message}" if short_message else reason


def _is_harmless(pod: Mapping[str, Any], reason: PodReason) -> bool:
    """Whether the reason is OOMKilled beside exit code 0: a child was killed, and the container continued."""
    return reason.reason == "OOMKilled" and get_pod_exit_code(pod) == 0
