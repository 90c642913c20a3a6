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
from torchyard.model.causes.cause import PodRule
from torchyard.model.causes.platform import PlatformCause
from torchyard.model.causes.pods import IMAGE_PULL_FAILED, INIT_ERROR, OUT_OF_RESOURCE, POD_RULES, PULL_RULES
from torchyard.model.run import Failure

_CRASH_LOOP_RESTARTS = 3  # restarts of a container, from which on they count as a loop
MAX_MESSAGE_CHARS = 300  # of a controller's message
_NODE_CAUSES = (PlatformCause.NODE_LOST, PlatformCause.EVICTED)  # whose sentence names the machine


def _get_rule(reason: str) -> PodRule | None:
    """The rule of a reason in `POD_RULES`; None for any other."""
    return POD_RULES.get(OUT_OF_RESOURCE if reason.startswith(OUT_OF_RESOURCE[:-1]) else reason)


def _determine_rule(reason: PodReason) -> PodRule:
    """The rule of a reason in `POD_RULES`; that of an image which cannot be pulled is in the message."""
    rule = _get_rule(reason.reason)
    if rule is None or rule is IMAGE_PULL_FAILED:
        return _determine_pull_rule(reason.message)
    return rule


@functools.lru_cache(maxsize=4096)
def _determine_pull_rule(message: str) -> PodRule:
    """Why an image could not be pulled. Cached: a thousand pods of one image mostly report the same."""
    for pattern, rule in PULL_RULES:
        if re.search(pattern, message):
            return rule
    return IMAGE_PULL_FAILED


def get_pod_reasons(pod: Mapping[str, Any]) -> list[PodReason]:
    """Every reason in a pod's status that is in `POD_RULES`, containers last; quick for pods that have none."""
    status = get_mapping(pod, "status")
    conditions = get_mappings(status, "conditions")
    reasons: list[PodReason] = []
    if status.get("reason"):
        reasons.append(build_reason(status, 0.0))
    for condition in conditions:
        if _is_disruption(condition):
            reasons.append(build_reason(condition, _get_transition_time(condition)))
    container_states = [
        state for state in _iter_container_reasons(pod, status) if _get_rule(to_text(state.get("reason")))
    ]
    if container_states:
        # A container's state has no time of its own, so its reason counts from the pod's last change.
        last_change_at = max((_get_transition_time(condition) for condition in conditions), default=0.0)
        reasons += [build_reason(state, last_change_at) for state in container_states]
    return [reason for reason in reasons if _get_rule(reason.reason)]


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
    init_error = _find_init_error(pod, status)
    if init_error:
        yield init_error


def _find_init_error(pod: Mapping[str, Any], status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The init container that failed, as a reason; None if none has, or the job's container has been able to start."""
    if _is_restarted(pod) or get_pod_phase(pod) != "Failed":
        return None
    for condition in get_mappings(status, "conditions"):
        if condition.get("type") == "Initialized" and condition.get("status") != "False":
            return None
    for container in get_mappings(status, "initContainerStatuses"):
        terminated = get_mapping(container, "state", "terminated")
        exit_code = to_number(terminated.get("exitCode"))
        if exit_code:
            message = to_text(terminated.get("message")).strip() or f"exit code {exit_code:g}"
            return {"reason": INIT_ERROR, "message": f"{to_text(container.get('name'))}: {message}"}
    return None


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
    """Every cause in the reasons of the pods that counts at the time `now`."""
    problems = []
    for name, reasons in reasons_by_pod.items():
        for reason in reasons:
            rule = _determine_rule(reason)
            if now - reason.started_at >= rule.patience_s and not _is_harmless(pods[name], reason):
                problems.append(PodProblem(name, reason, rule))
    return problems


def find_pod_failure(pods: Pods, now: float) -> Failure | None:
    """The oldest cause that only the controllers report; None if only the logs can show it."""
    problems = find_pod_problems(pods, get_reasons_by_pod(pods), now)
    return build_failure(pods, problems) if problems else None


def build_failure(pods: Pods, problems: Sequence[PodProblem]) -> Failure:
    """The failure that describes the oldest of some problems."""
    oldest = min(problems, key=lambda problem: (problem.reason.started_at, problem.node))
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
