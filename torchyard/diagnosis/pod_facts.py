"""Facts in one pod's status, and in Kubernetes objects in general.

Objects are read as they come from the API server or from a recording: any field may be missing, or hold a value of the
wrong type, which counts as missing. Nothing is raised. All times are in seconds since the epoch.
"""

import functools
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeGuard, TypeVar

Pods = Mapping[str, Mapping[str, Any]]
RUN_LABEL = "torchyard/run"
ROLE_LABEL = "torchyard/role"
REMOVALS_KEY = "torchyard/removals"  # in a removed pod as the watch keeps it: how many pods of its node were removed
OBSTACLES_KEY = "torchyard/obstacles"  # in a pod as the watch keeps it: what its containers wait for, and since when
ENDED_POD_PHASES = ("Succeeded", "Failed")
_DEFAULT_CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"
_OPERATOR_CONTAINER = "pytorch"  # the container that the Training Operator looks for
_ACCELERATOR_PATTERN = re.compile(
    r".*/(?:gpu(?:\.shared)?|tpu|npu|gaudi|neuron\w*)|nvidia\.com/mig-.+|huawei\.com/Ascend.*", re.DOTALL
)
_AGENT_PATTERN = re.compile(r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b|\baccelerate\s+launch\b")
_KILL_EXIT_CODES = (137, 143)  # of a container that SIGKILL or SIGTERM ended
_ExitCode = TypeVar("_ExitCode", int, int | None)
_LAST_SIGNAL = 64  # of Linux
_NON_MAPPING_TYPES = (type(None), str, list, int, bool, float)  # of JSON


class PodReason(NamedTuple):
    """One reason in a pod's status, its message, and since when it applies (0 if that is unknown).

    is_disruption: whether it is the reason for which the cluster asked the pod to end.
    """

    reason: str
    message: str
    started_at: float
    is_disruption: bool = False


# --- any object


def get_mapping(value: Any, *keys: str) -> Mapping[str, Any]:
    """The mapping at a path of keys inside an object; empty if there is none."""
    for key in keys:
        # The first test saves a call: this runs for each key of thousands of pods.
        if type(value) is not dict and not _is_mapping(value):
            return {}
        value = value.get(key)
    return value if type(value) is dict or _is_mapping(value) else {}


def _is_mapping(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether it has keys. JSON's own types are checked first: testing against an abstract one is ten times slower."""
    value_type = type(value)
    return value_type is dict or (value_type not in _NON_MAPPING_TYPES and isinstance(value, Mapping))


def get_mappings(value: Any, *keys: str) -> list[Mapping[str, Any]]:
    """The mappings in the list at a path of at least one key; empty if there is no list. Other items are left out."""
    items = get_mapping(value, *keys[:-1]).get(keys[-1])
    if not isinstance(items, list):
        return []
    return [item for item in items if type(item) is dict or _is_mapping(item)]


def to_number(value: Any, default: int = 0) -> int:
    """The value if it is an integer, else `default`."""
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def to_text(value: Any) -> str:
    """The value if it is a text, else ""."""
    return value if isinstance(value, str) else ""


def parse_timestamp(timestamp: Any) -> float:
    """A time of the API server, in seconds since the epoch; 0 if it is not one."""
    return _parse_text_timestamp(timestamp) if isinstance(timestamp, str) else 0.0


@functools.lru_cache(maxsize=4096)
def _parse_text_timestamp(timestamp: str) -> float:
    """Cached: these times are in whole seconds, so even a thousand pods have few different ones."""
    try:
        return datetime.fromisoformat(timestamp).astimezone(UTC).timestamp()  # OverflowError: no year 0 in UTC
    except (ValueError, OverflowError):
        return 0.0


def find_condition(obj: Any, condition_type: str, status: str = "True") -> Mapping[str, Any] | None:
    """The condition of this type; None if there is none, or if it has another status."""
    for condition in get_mappings(obj, "status", "conditions"):
        if condition.get("type") == condition_type and condition.get("status") == status:
            return condition
    return None


def get_creation_time(obj: Any) -> float:
    """When an object was created, in seconds since the epoch by the API server's clock; 0 if that is unknown."""
    return parse_timestamp(get_mapping(obj, "metadata").get("creationTimestamp"))


def get_uid(obj: Any) -> str:
    """The uid of an object; "" if it has none."""
    return to_text(get_mapping(obj, "metadata").get("uid"))


def build_reason(source: Mapping[str, Any], started_at: float) -> PodReason:
    """The reason and the message of a status, a condition or a container's state."""
    return PodReason(to_text(source.get("reason")), to_text(source.get("message")), started_at)


# --- a pod


def get_pod_phase(pod: Mapping[str, Any]) -> str:
    return to_text(get_mapping(pod, "status").get("phase")) or "Pending"


def get_node_name(pod: Mapping[str, Any]) -> str:
    """The Kubernetes node that the pod is on; "" if it has none yet."""
    return to_text(get_mapping(pod, "spec").get("nodeName"))


def is_being_deleted(pod: Mapping[str, Any]) -> bool:
    """Whether its deletion was requested: how it ends then proves nothing about the job."""
    return bool(get_mapping(pod, "metadata").get("deletionTimestamp"))


def get_deletion_time(pod: Mapping[str, Any]) -> float:
    """When its deletion was requested; 0 if it was not. The time in the pod is the end of its grace period."""
    grace_period_s = to_number(get_mapping(pod, "metadata").get("deletionGracePeriodSeconds"))
    return max(parse_timestamp(get_mapping(pod, "metadata").get("deletionTimestamp")) - grace_period_s, 0.0)


def find_main_container(pod: Mapping[str, Any]) -> str | None:
    """The name of a pod's main container, whose log and exit code count; None if the pod has no named container.

    It is the one that the pod's annotation names, as for `kubectl logs`: a mesh that puts its proxy first sets it. Else
    it is the one that the Training Operator looks for, else the only one with an accelerator, else the only one with an
    agent, since daemons of a network may come first; else the first. `pod` may be a pod's template, which has the same
    main container as its pods.
    """
    containers = get_mappings(pod, "spec", "containers")
    names = [container.get("name") for container in containers]
    annotations = get_mapping(pod, "metadata", "annotations")
    for name in (annotations.get(_DEFAULT_CONTAINER_ANNOTATION), _OPERATOR_CONTAINER):
        if isinstance(name, str) and name in names:
            return name
    if len(containers) > 1:
        for is_main in (_requests_accelerator, runs_agent):
            main_containers = [container for container in containers if is_main(container)]
            if len(main_containers) == 1 and to_text(main_containers[0].get("name")):
                return to_text(main_containers[0].get("name"))
    return to_text(names[0]) or None if names else None


def _requests_accelerator(container: Mapping[str, Any]) -> bool:
    """Whether a container requests GPUs or other accelerators of a device plugin."""
    for key in ("limits", "requests"):
        for name, amount in get_mapping(container, "resources", key).items():
            if _ACCELERATOR_PATTERN.fullmatch(str(name)) and str(amount) not in ("0", ""):
                return True
    return False


def get_command_text(container: Mapping[str, Any]) -> str:
    """The words of a container's command and arguments, separated by spaces; "" if it has none."""
    argv: list[str] = []
    for key in ("command", "args"):
        value = container.get(key)
        if isinstance(value, list):
            argv += [arg for arg in value if isinstance(arg, str)]
    return " ".join(argv)


def runs_agent(container: Mapping[str, Any]) -> bool:
    """Whether a container's command names torchrun, or another program that starts its ranks through torchrun's agent.

    A script of the image may start one too.
    """
    return bool(_AGENT_PATTERN.search(get_command_text(container)))


def get_container_state(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The state of the main container: waiting, running or terminated; empty if there is none yet."""
    return get_mapping(get_container_status(pod), "state")


def get_container_status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The status of the main container; empty if there is none yet.

    It is found by its name: a kubelet sorts the statuses by name, so the first of them may be a sidecar's.
    """
    statuses = get_mappings(pod, "status", "containerStatuses")
    name = find_main_container(pod)
    for status in statuses:
        if status.get("name") == name:
            return status
    return statuses[0] if statuses else {}


def get_pod_exit_codes(pods: Pods) -> dict[str, int | None]:
    """Exit code by node; None while it runs."""
    return {name: get_pod_exit_code(pod) for name, pod in pods.items()}


def get_pod_exit_code(pod: Mapping[str, Any]) -> int | None:
    """The exit code of the main container; None while it runs.

    A pod that failed without an exit code (evicted), or despite a 0 (at its deadline), has 1.
    """
    terminated = get_container_state(pod).get("terminated")
    failed_code = 1 if get_pod_phase(pod) == "Failed" else None
    if not terminated:
        return failed_code
    return to_number(get_mapping(terminated).get("exitCode"), 1) or failed_code or 0


class PodFailure(NamedTuple):
    """A failure of a pod's main container: when it ended (infinity if that is unknown), and its exit code."""

    failed_at: float
    exit_code: int


def find_own_failure(pod: Mapping[str, Any]) -> PodFailure | None:
    """The first known failure of a pod that is not its deletion; None if there is none.

    The last failure of a container that was restarted counts too. A pod that is being deleted is killed, so neither a
    signal nor what ends after the request proves anything.
    """
    deletion_time = get_deletion_time(pod) if is_being_deleted(pod) else math.inf
    for state_name in ("lastState", "state"):
        terminated = get_mapping(get_container_status(pod), state_name, "terminated")
        exit_code = to_number(terminated.get("exitCode"))
        finished_at = parse_timestamp(terminated.get("finishedAt")) or math.inf
        is_own = deletion_time == math.inf or (finished_at <= deletion_time and exit_code not in _KILL_EXIT_CODES)
        if exit_code and is_own:
            return PodFailure(finished_at, exit_code)
    if get_pod_phase(pod) == "Failed" and deletion_time == math.inf:
        return PodFailure(get_container_end(pod), get_pod_exit_code(pod) or 1)
    return None


def find_object(states: Mapping[str, Mapping[str, Any]], kind: str) -> Mapping[str, Any] | None:
    """The first object of a kind among the observed ones; None if there is none. `states`: by `KIND/NAME`."""
    for key, obj in states.items():
        if key.startswith(f"{kind}/"):
            return obj
    return None


def count_restarts(pod: Mapping[str, Any]) -> int:
    """How often the kubelet has restarted a pod's main container."""
    return to_number(get_container_status(pod).get("restartCount"))


def is_container_down(pod: Mapping[str, Any]) -> bool:
    """Whether a pod counts as running although its main container has ended, or waits for a restart."""
    state = get_container_state(pod)
    return get_pod_phase(pod) == "Running" and bool(state) and "running" not in state


def runs_only_companions(pod: Mapping[str, Any]) -> bool:
    """Whether the main container has ended with 0, and only others run on, such as a sidecar."""
    if get_pod_phase(pod) != "Running" or get_pod_exit_code(pod) != 0:
        return False
    return any("running" in get_mapping(status, "state") for status in get_mappings(pod, "status", "containerStatuses"))


def get_container_end(pod: Mapping[str, Any]) -> float:
    """When the main container ended; infinity if it has not."""
    return parse_timestamp(get_mapping(get_container_state(pod), "terminated").get("finishedAt")) or math.inf


def get_container_start(pod: Mapping[str, Any]) -> float:
    """When the main container started; 0 if it has not."""
    state = get_container_state(pod)
    running_since = parse_timestamp(get_mapping(state, "running").get("startedAt"))
    terminated_since = parse_timestamp(get_mapping(state, "terminated").get("startedAt"))
    return max(running_since, terminated_since)


def find_unscheduled_reason(pod: Mapping[str, Any]) -> PodReason | None:
    """The scheduler's reason for not placing a pod; None if it reports none.

    A pod whose reason is `Schedulable` only waits for its gang.
    """
    condition = find_condition(pod, "PodScheduled", "False")
    if condition is None:
        return None
    return build_reason(condition, parse_timestamp(condition.get("lastTransitionTime")))


def find_silence_start(pod: Mapping[str, Any]) -> float | None:
    """Since when the control plane counts the node of a running pod as silent; None if it does not, or is unknown.

    That is some 40 seconds after the node's last sign of life. The node controller then sets the pod to not ready
    without a reason, while every kubelet gives one.
    """
    if get_pod_phase(pod) != "Running":
        return None
    condition = find_condition(pod, "Ready", "False") or find_condition(pod, "Ready", "Unknown")
    if not condition or condition.get("reason"):
        return None
    return parse_timestamp(condition.get("lastTransitionTime")) or None


def normalize_exit_code(exit_code: _ExitCode) -> _ExitCode:
    """The exit code, -n for signal n: shells and containers report 128 + n. None if it is unknown.

    Codes above that of the last signal are a program's own: 255 is `sys.exit(-1)`, or ssh's failure.
    """
    if exit_code is not None and 128 < exit_code <= 128 + _LAST_SIGNAL:
        return 128 - exit_code
    return exit_code


def describe_exit(exit_code: int) -> str:
    """How a container or a process ended, as a verb phrase: `was killed by signal 9`."""
    code = normalize_exit_code(exit_code)
    if code < 0:
        return f"was killed by signal {-code}"
    return f"ended with exit code {exit_code}"
