"""What one pod's status says. It may lack anything, and hold anything, also where it should not."""

import functools
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeGuard

Pods = Mapping[str, Mapping[str, Any]]
ROLE_LABEL = "torchyard/role"
ENDED_POD_PHASES = ("Succeeded", "Failed")
_PLAIN_TYPES = (type(None), str, list, int, bool, float)


class PodReason(NamedTuple):
    """One reason that a pod's status gives, with what it says and since when."""

    reason: str
    message: str
    since: float


# --- whatever an object holds


def get_mapping(thing: Any, *keys: str) -> Mapping[str, Any]:
    """A mapping inside an object; empty where there is none."""
    for key in keys:
        if not _is_mapping(thing):
            return {}
        thing = thing.get(key)
    return thing if _is_mapping(thing) else {}


def _is_mapping(thing: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether it has keys. JSON's own types are told apart first: to ask an abstract one takes ten times as long."""
    kind = type(thing)
    return kind is dict or (kind not in _PLAIN_TYPES and isinstance(thing, Mapping))


def get_mappings(thing: Any, *keys: str) -> list[Mapping[str, Any]]:
    """A list of mappings inside an object; empty where there is none."""
    found = get_mapping(thing, *keys[:-1]).get(keys[-1])
    return list(filter(_is_mapping, found)) if isinstance(found, list) else []


def to_number(thing: Any, otherwise: int = 0) -> int:
    """A whole number; `otherwise` for whatever is none, and for a missing one."""
    return thing if isinstance(thing, int) and not isinstance(thing, bool) else otherwise


def to_text(thing: Any) -> str:
    """A text; empty for whatever is none."""
    return thing if isinstance(thing, str) else ""


def parse_timestamp(stamp: Any) -> float:
    """A time of the API server, in seconds since the epoch; 0 where there is none."""
    return _parse_stamp(stamp) if isinstance(stamp, str) else 0.0


@functools.lru_cache(maxsize=4096)
def _parse_stamp(stamp: str) -> float:
    """Stamps are of whole seconds: what happens to a thousand pods has few of them."""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def find_condition(thing: Any, kind: str, status: str = "True") -> Mapping[str, Any] | None:
    """The condition of this type, where it has this status."""
    found = (each for each in get_mappings(thing, "status", "conditions") if each.get("type") == kind)
    return next((each for each in found if each.get("status") == status), None)


# --- a pod


def read_pod_phase(pod: Mapping[str, Any]) -> str:
    return to_text(get_mapping(pod, "status").get("phase")) or "Pending"


def read_node_name(pod: Mapping[str, Any]) -> str:
    """The Kubernetes node that it is on; empty where it has none yet."""
    return to_text(get_mapping(pod, "spec").get("nodeName"))


def is_being_deleted(pod: Mapping[str, Any]) -> bool:
    """Whether it was deleted: how it ends is no verdict then."""
    return bool(get_mapping(pod, "metadata").get("deletionTimestamp"))


def read_deletion_time(pod: Mapping[str, Any]) -> float:
    """When somebody asked for its deletion: the stamp is when its grace ends. 0 where nobody said."""
    grace = to_number(get_mapping(pod, "metadata").get("deletionGracePeriodSeconds"))
    return max(parse_timestamp(get_mapping(pod, "metadata").get("deletionTimestamp")) - grace, 0.0)


def _read_container_state(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state of the first container: waiting, running or terminated; empty where there is none yet.

    A kubelet sorts the statuses by name, so that the first of them may be a sidecar's.
    """
    statuses = get_mappings(pod, "status", "containerStatuses")
    name = next((each.get("name") for each in get_mappings(pod, "spec", "containers")), None)
    return get_mapping(
        next((each for each in statuses if each.get("name") == name), statuses[0] if statuses else {}), "state"
    )


def read_pod_exit_codes(pods: Pods) -> dict[str, int | None]:
    """Exit code by node; None while it runs."""
    return {name: read_pod_exit_code(pod) for name, pod in pods.items()}


def read_pod_exit_code(pod: Mapping[str, Any]) -> int | None:
    """Of the first container; a pod that failed without one (evicted), or in spite of a 0, counts as 1."""
    over = _read_container_state(pod).get("terminated")
    bad = 1 if read_pod_phase(pod) == "Failed" else None
    if not over:
        return bad
    return to_number(get_mapping(over).get("exitCode"), 1) or bad or 0


def read_container_end(pod: Mapping[str, Any]) -> float:
    """When the first container ended; infinity where it has not."""
    return parse_timestamp(get_mapping(_read_container_state(pod), "terminated").get("finishedAt")) or math.inf


def read_container_start(pod: Mapping[str, Any]) -> float:
    """When the first container began; 0 where it has not."""
    state = _read_container_state(pod)
    return max(
        (parse_timestamp(get_mapping(state, which).get("startedAt")) for which in ("running", "terminated")),
        default=0.0,
    )


def find_unscheduled_reason(pod: Mapping[str, Any]) -> PodReason | None:
    """The scheduler's word about a pod that it has not placed; `Schedulable` waits for its gang only."""
    found = find_condition(pod, "PodScheduled", "False")
    return read_reason(found, parse_timestamp(found.get("lastTransitionTime"))) if found else None


def find_silence_start(pod: Mapping[str, Any]) -> float:
    """Since when its node does not answer; 0 where it does.

    The node's controller takes the readiness of a running pod away and gives no reason, as every kubelet does.
    """
    if read_pod_phase(pod) != "Running":
        return 0.0
    found = find_condition(pod, "Ready", "False") or find_condition(pod, "Ready", "Unknown")
    return parse_timestamp(found.get("lastTransitionTime")) if found and not found.get("reason") else 0.0


def read_reason(thing: Mapping[str, Any], since: float) -> PodReason:
    return PodReason(to_text(thing.get("reason")), to_text(thing.get("message")), since)


def describe_exit(code: int | None) -> str:
    return f"was killed by signal {code - 128}" if code and code > 128 else f"ended with exit code {code}"
