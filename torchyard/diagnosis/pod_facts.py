"""What one pod's status says. It may lack anything, and hold anything, also where it should not."""

import functools
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeGuard

Pods = Mapping[str, Mapping[str, Any]]
ROLE = "torchyard/role"
ENDED_POD = ("Succeeded", "Failed")
PLAIN = (type(None), str, list, int, bool, float)


class Word(NamedTuple):
    """One reason that a pod's status gives, with what it says and since when."""

    reason: str
    message: str
    since: float


# --- whatever an object holds


def part(thing: Any, *keys: str) -> Mapping[str, Any]:
    """A mapping inside an object; empty where there is none."""
    for key in keys:
        if not is_mapping(thing):
            return {}
        thing = thing.get(key)
    return thing if is_mapping(thing) else {}


def is_mapping(thing: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether it has keys. JSON's own types are told apart first: to ask an abstract one takes ten times as long."""
    kind = type(thing)
    return kind is dict or (kind not in PLAIN and isinstance(thing, Mapping))


def rows(thing: Any, *keys: str) -> list[Mapping[str, Any]]:
    """A list of mappings inside an object; empty where there is none."""
    found = part(thing, *keys[:-1]).get(keys[-1])
    return list(filter(is_mapping, found)) if isinstance(found, list) else []


def number(thing: Any, otherwise: int = 0) -> int:
    """A whole number; `otherwise` for whatever is none, and for a missing one."""
    return thing if isinstance(thing, int) and not isinstance(thing, bool) else otherwise


def text(thing: Any) -> str:
    """A text; empty for whatever is none."""
    return thing if isinstance(thing, str) else ""


def seconds(stamp: Any) -> float:
    """A time of the API server, in seconds since the epoch; 0 where there is none."""
    return _read_stamp(stamp) if isinstance(stamp, str) else 0.0


@functools.lru_cache(maxsize=4096)
def _read_stamp(stamp: str) -> float:
    """Stamps are of whole seconds: what happens to a thousand pods has few of them."""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def true(thing: Any, kind: str, status: str = "True") -> Mapping[str, Any] | None:
    """The condition of this type, where it has this status."""
    found = (each for each in rows(thing, "status", "conditions") if each.get("type") == kind)
    return next((each for each in found if each.get("status") == status), None)


# --- a pod


def phase(pod: Mapping[str, Any]) -> str:
    return text(part(pod, "status").get("phase")) or "Pending"


def machine(pod: Mapping[str, Any]) -> str:
    """The Kubernetes node that it is on; empty where it has none yet."""
    return text(part(pod, "spec").get("nodeName"))


def leaving(pod: Mapping[str, Any]) -> bool:
    """Whether it was deleted: how it ends is no verdict then."""
    return bool(part(pod, "metadata").get("deletionTimestamp"))


def deleted_at(pod: Mapping[str, Any]) -> float:
    """When somebody asked for its deletion: the stamp is when its grace ends. 0 where nobody said."""
    grace = number(part(pod, "metadata").get("deletionGracePeriodSeconds"))
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
    return number(part(over).get("exitCode"), 1) or bad or 0


def ended(pod: Mapping[str, Any]) -> float:
    """When the first container ended; infinity where it has not."""
    return seconds(part(container_state(pod), "terminated").get("finishedAt")) or math.inf


def began(pod: Mapping[str, Any]) -> float:
    """When the first container began; 0 where it has not."""
    state = container_state(pod)
    return max((seconds(part(state, which).get("startedAt")) for which in ("running", "terminated")), default=0.0)


def unscheduled(pod: Mapping[str, Any]) -> Word | None:
    """The scheduler's word about a pod that it has not placed; `Schedulable` waits for its gang only."""
    found = true(pod, "PodScheduled", "False")
    return word_of(found, seconds(found.get("lastTransitionTime"))) if found else None


def silent_since(pod: Mapping[str, Any]) -> float:
    """Since when its node does not answer; 0 where it does.

    The node's controller takes the readiness of a running pod away and gives no reason, as every kubelet does.
    """
    if phase(pod) != "Running":
        return 0.0
    found = true(pod, "Ready", "False") or true(pod, "Ready", "Unknown")
    return seconds(found.get("lastTransitionTime")) if found and not found.get("reason") else 0.0


def word_of(thing: Mapping[str, Any], since: float) -> Word:
    return Word(text(thing.get("reason")), text(thing.get("message")), since)


def how(code: int | None) -> str:
    return f"was killed by signal {code - 128}" if code and code > 128 else f"ended with exit code {code}"
