"""What one pod's status says. Any field may be missing, or hold a value of the wrong type."""

import functools
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeGuard

Pods = Mapping[str, Mapping[str, Any]]
ROLE_LABEL = "torchyard/role"
REMOVALS = "torchyard/removals"  # in a removed pod as the watch keeps it: how many pods of its node have gone
ENDED_POD_PHASES = ("Succeeded", "Failed")
_KILLED_CODES = (137, 143)  # of a container that SIGKILL or SIGTERM ended
_PLAIN_TYPES = (type(None), str, list, int, bool, float)


class PodReason(NamedTuple):
    """One reason that a pod's status gives, its message, and since when it applies."""

    reason: str
    message: str
    since: float


# --- any object


def get_mapping(thing: Any, *keys: str) -> Mapping[str, Any]:
    """A mapping inside an object; empty if there is none."""
    for key in keys:
        if type(thing) is not dict and not _is_mapping(thing):  # a call for each of a thousand pods' keys is what costs
            return {}
        thing = thing.get(key)
    return thing if type(thing) is dict or _is_mapping(thing) else {}


def _is_mapping(thing: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether it has keys. JSON's own types are checked first: testing against an abstract one is ten times slower."""
    kind = type(thing)
    return kind is dict or (kind not in _PLAIN_TYPES and isinstance(thing, Mapping))


def get_mappings(thing: Any, *keys: str) -> list[Mapping[str, Any]]:
    """A list of mappings inside an object; empty if there is none."""
    found = get_mapping(thing, *keys[:-1]).get(keys[-1])
    return [each for each in found if type(each) is dict or _is_mapping(each)] if isinstance(found, list) else []


def to_number(thing: Any, otherwise: int = 0) -> int:
    """An integer; `otherwise` for anything else."""
    return thing if isinstance(thing, int) and not isinstance(thing, bool) else otherwise


def to_text(thing: Any) -> str:
    """A text; empty for anything else."""
    return thing if isinstance(thing, str) else ""


def parse_timestamp(stamp: Any) -> float:
    """A time of the API server, in seconds since the epoch; 0 if there is none."""
    return _parse_stamp(stamp) if isinstance(stamp, str) else 0.0


@functools.lru_cache(maxsize=4096)
def _parse_stamp(stamp: str) -> float:
    """Cached: stamps are in whole seconds, so even a thousand pods have few different ones."""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def find_condition(thing: Any, kind: str, status: str = "True") -> Mapping[str, Any] | None:
    """The condition of this type, if it has this status."""
    for each in get_mappings(thing, "status", "conditions"):
        if each.get("type") == kind and each.get("status") == status:
            return each
    return None


# --- a pod


def read_pod_phase(pod: Mapping[str, Any]) -> str:
    return to_text(get_mapping(pod, "status").get("phase")) or "Pending"


def read_node_name(pod: Mapping[str, Any]) -> str:
    """The Kubernetes node that it is on; empty if it has none yet."""
    return to_text(get_mapping(pod, "spec").get("nodeName"))


def is_being_deleted(pod: Mapping[str, Any]) -> bool:
    """Whether its deletion was requested: how it ends then says nothing about the job."""
    return bool(get_mapping(pod, "metadata").get("deletionTimestamp"))


def read_deletion_time(pod: Mapping[str, Any]) -> float:
    """When its deletion was requested: the stamp marks the end of its grace period. 0 if there is none."""
    grace = to_number(get_mapping(pod, "metadata").get("deletionGracePeriodSeconds"))
    return max(parse_timestamp(get_mapping(pod, "metadata").get("deletionTimestamp")) - grace, 0.0)


def _read_container_state(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state of the first container: waiting, running or terminated; empty if there is none yet.

    A kubelet sorts the statuses by name, so the first of them may be a sidecar's.
    """
    return get_mapping(_read_container_status(pod), "state")


def _read_container_status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The status of the first container; empty if there is none yet."""
    statuses = get_mappings(pod, "status", "containerStatuses")
    name = next((each.get("name") for each in get_mappings(pod, "spec", "containers")), None)
    return next((each for each in statuses if each.get("name") == name), statuses[0] if statuses else {})


def read_pod_exit_codes(pods: Pods) -> dict[str, int | None]:
    """Exit code by node; None while it runs."""
    return {name: read_pod_exit_code(pod) for name, pod in pods.items()}


def read_pod_exit_code(pod: Mapping[str, Any]) -> int | None:
    """The exit code of the first container; a pod that failed without one (evicted), or despite a 0, counts as 1."""
    over = _read_container_state(pod).get("terminated")
    bad = 1 if read_pod_phase(pod) == "Failed" else None
    if not over:
        return bad
    return to_number(get_mapping(over).get("exitCode"), 1) or bad or 0


class PodFailure(NamedTuple):
    """A failure of a pod's first container: when it ended, and its exit code."""

    at: float
    code: int


def read_own_failure(pod: Mapping[str, Any]) -> PodFailure | None:
    """The first known failure of a pod that is not its deletion; a restarted container's last one counts too.

    A pod that is being deleted is killed, so neither a signal nor what ends after the request proves anything.
    """
    deleted = read_deletion_time(pod) if is_being_deleted(pod) else math.inf
    ends = (get_mapping(_read_container_status(pod), which, "terminated") for which in ("lastState", "state"))
    for over in ends:
        code, at = to_number(over.get("exitCode")), parse_timestamp(over.get("finishedAt")) or math.inf
        if code and (deleted == math.inf or (at <= deleted and code not in _KILLED_CODES)):
            return PodFailure(at, code)
    if read_pod_phase(pod) == "Failed" and deleted == math.inf:
        return PodFailure(read_container_end(pod), read_pod_exit_code(pod) or 1)
    return None


def count_restarts(pod: Mapping[str, Any]) -> int:
    """How often the kubelet has restarted a pod's first container."""
    return to_number(_read_container_status(pod).get("restartCount"))


def is_container_down(pod: Mapping[str, Any]) -> bool:
    """Whether a pod counts as running although its first container does not: it has ended, or waits for a restart."""
    state = _read_container_state(pod)
    return read_pod_phase(pod) == "Running" and bool(state) and "running" not in state


def read_container_end(pod: Mapping[str, Any]) -> float:
    """When the first container ended; infinity if it has not."""
    return parse_timestamp(get_mapping(_read_container_state(pod), "terminated").get("finishedAt")) or math.inf


def read_container_start(pod: Mapping[str, Any]) -> float:
    """When the first container started; 0 if it has not."""
    state = _read_container_state(pod)
    return max(
        (parse_timestamp(get_mapping(state, which).get("startedAt")) for which in ("running", "terminated")),
        default=0.0,
    )


def find_unscheduled_reason(pod: Mapping[str, Any]) -> PodReason | None:
    """The scheduler's reason for not placing a pod; one that is `Schedulable` only waits for its gang."""
    found = find_condition(pod, "PodScheduled", "False")
    return read_reason(found, parse_timestamp(found.get("lastTransitionTime"))) if found else None


def find_silence_start(pod: Mapping[str, Any]) -> float:
    """Since when its node has not answered; 0 if it answers.

    The node controller sets a running pod to not ready without a reason, while every kubelet gives one.
    """
    if read_pod_phase(pod) != "Running":
        return 0.0
    found = find_condition(pod, "Ready", "False") or find_condition(pod, "Ready", "Unknown")
    return parse_timestamp(found.get("lastTransitionTime")) if found and not found.get("reason") else 0.0


def read_reason(thing: Mapping[str, Any], since: float) -> PodReason:
    return PodReason(to_text(thing.get("reason")), to_text(thing.get("message")), since)


def describe_exit(code: int | None) -> str:
    return f"was killed by signal {code - 128}" if code and code > 128 else f"ended with exit code {code}"
