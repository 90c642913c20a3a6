"""Why a job makes no progress, in one sentence: events, nodes and queues show what its own objects do not."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from torchyard.diagnosis.event_rules import (
    EVENT_RULES,
    find_event_rules,
    get_first_seen,
    get_last_seen,
    is_rule_match,
    shorten_message,
)
from torchyard.diagnosis.job_status import select_job_pods
from torchyard.diagnosis.pod_facts import (
    PodReason,
    Pods,
    find_silence_start,
    get_mapping,
    get_mappings,
    get_node_name,
    get_pod_phase,
    parse_timestamp,
    to_number,
    to_text,
)
from torchyard.diagnosis.pod_facts import find_unscheduled_reason as scheduler_word
from torchyard.diagnosis.pod_reasons import PodCause, find_pod_failure
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Capacity, Check, Controller
from torchyard.model.run import Failure, Observation

_MAX_EVENT_AGE_S = 150.0  # how long an event counts: a kubelet retries a volume after two minutes at most
_CONTROLLER_TIMEOUT_S = 30.0  # without pods, after which a controller has missed a job, and is not only slow
RUN_LABEL = "torchyard/run"


class ClusterContext(NamedTuple):
    """What surrounds a job, as last read: the namespace's events, capacity, the queue, and other runs' pods."""

    events: Sequence[Any] = ()
    capacity: Check | None = None
    queue: Check | None = None
    other_pods: Sequence[Any] = ()


class _Context(NamedTuple):
    """The input of an explanation. The pods are scanned only once: there may be thousands."""

    plan: ManifestPlan
    observed: Observation
    cluster: ClusterContext
    pods: Pods
    unscheduled: Mapping[str, PodReason]  # what the scheduler reports, by pod


class Diagnosis(NamedTuple):
    """Why a job makes no progress; `ends`: waiting any longer is pointless."""

    failure: Failure
    is_final: bool = False


def explain_no_progress(plan: ManifestPlan, observed: Observation, cluster: ClusterContext) -> Diagnosis | None:
    """The nearest cause: a pod's own status, its node, an event, the queue, the scheduler; None if none is known."""
    pods = select_job_pods(observed)
    context = _Context(plan, observed, cluster, pods, find_unscheduled_pods(pods))
    return next((diagnosis for explain in _EXPLAINERS if (diagnosis := explain(context))), None)


def _explain_by_pod(context: _Context) -> Diagnosis | None:
    """What a pod's own status says, however recent."""
    failure = find_pod_failure(context.pods, math.inf)
    return Diagnosis(failure) if failure else None


def has_stalled_pods(plan: ManifestPlan, pods: Pods) -> bool:
    """Whether a pod is missing, has not started, or is on a node that does not answer."""
    has_halted = any(get_pod_phase(pod) == "Pending" or find_silence_start(pod) for pod in pods.values())
    return has_halted or len(pods) < sum(plan.tasks.values())


def find_required_capacity(plan: ManifestPlan) -> Capacity | None:
    return next((requirement for requirement in plan.requires if isinstance(requirement, Capacity)), None)


def _count_spare_pods(plan: ManifestPlan) -> int:
    """How many pods an elastic job can do without."""
    pod_count, capacity = sum(plan.tasks.values()), find_required_capacity(plan)
    return max(pod_count - capacity.pods, 0) if capacity else 0


# --- nodes and events


def _explain_by_silent_node(context: _Context) -> Diagnosis | None:
    """A pod that seems to run, on a node that does not answer: it takes minutes until the pod is evicted."""
    pods = context.pods
    silent_since = {name: started_at for name, pod in pods.items() if (started_at := find_silence_start(pod))}
    if not silent_since:
        return None
    name = min(silent_since, key=lambda pod_name: silent_since[pod_name])
    since = datetime.fromtimestamp(silent_since[name], UTC).strftime("%H:%M:%S UTC")
    sentence = f"{name}: its node {get_node_name(pods[name]) or '(unknown)'} has not answered since {since}"
    return Diagnosis(Failure(cause="node-lost", sentence=sentence, node=name, retry=True))


def _explain_by_event(context: _Context) -> Diagnosis | None:
    """The cause of the first rule that an event of the job's objects matches."""
    known_events = [
        event for event in context.cluster.events if find_event_rules(to_text(get_mapping(event).get("reason")))
    ]
    own_events = [event for event in known_events if _is_own_event(context, event)]
    for rule in EVENT_RULES:
        matching_events = [event for event in own_events if is_rule_match(event, rule)]
        if matching_events:
            return _diagnose_events(context, matching_events, rule.cause)
    return None


def _diagnose_events(context: _Context, events: list[Any], cause: PodCause) -> Diagnosis:
    """The cause that events show. It fails the job if more pods are blocked than the job can spare."""
    plan, first_event = context.plan, min(events, key=get_first_seen)
    blocked_pods = {
        to_text(involved.get("name"))
        for event in events
        if (involved := get_mapping(event, "involvedObject")).get("kind") == "Pod"
    }
    blocked_count = len(blocked_pods) or sum(plan.tasks.values()) - len(context.pods)
    node = _find_event_node(plan, first_event)
    quote = f"{to_text(first_event.get('reason'))}: {shorten_message(first_event.get('message'))}"
    sentence = f"{node or plan.job}: {cause.description} ({quote})"
    is_expired = context.observed.observed_at - get_first_seen(first_event) >= cause.patience_s
    return Diagnosis(
        Failure(cause=cause.slug, sentence=sentence, node=node, retry=cause.retry),
        is_expired and blocked_count > _count_spare_pods(plan),
    )


def _is_own_event(context: _Context, event: Any) -> bool:
    """Whether an event is about a pod that has not started, or about the job while it lacks pods."""
    plan, involved = context.plan, get_mapping(event, "involvedObject")
    name = to_text(involved.get("name"))
    if name != plan.job and not name.startswith(f"{plan.job}-"):
        return False
    if involved.get("kind") != "Pod":
        return len(context.pods) < sum(plan.tasks.values())
    pod = context.pods.get(plan.node(name))
    if (
        pod is None
        or get_pod_phase(pod) != "Pending"
        or context.observed.observed_at - get_last_seen(event) > _MAX_EVENT_AGE_S
    ):
        return False
    return get_mapping(pod, "metadata").get("uid") in (involved.get("uid"), None)


def _find_event_node(plan: ManifestPlan, event: Any) -> str | None:
    """The node of the pod that an event is about; None if it is about another object."""
    involved = get_mapping(event, "involvedObject")
    return plan.node(to_text(involved.get("name"))) if involved.get("kind") == "Pod" else None


# --- queues and schedulers


def _explain_by_closed_queue(context: _Context) -> Diagnosis | None:
    """A queue that no longer accepts jobs."""
    queue = context.cluster.queue
    if queue is None or queue.verdict != "failed" or not (context.unscheduled or not context.pods):
        return None
    sentence = f"{_describe_gang(context.plan)} waits for {queue.name}, which {queue.detail}"
    return Diagnosis(Failure(cause="queue-closed", sentence=sentence))


def find_unscheduled_pods(pods: Pods) -> dict[str, PodReason]:
    """What the scheduler reports, by pod: only a pod that has not started can lack a node."""
    return {
        name: reason
        for name, pod in pods.items()
        if get_pod_phase(pod) == "Pending" and (reason := scheduler_word(pod))
    }


def _explain_by_scheduler(context: _Context) -> Diagnosis | None:
    """A pod that the scheduler has no node for. One that could be placed only waits for the others of its gang."""
    plan, cluster, unscheduled = context.plan, context.cluster, context.unscheduled
    if not unscheduled:
        return None
    name = min(unscheduled, key=lambda pod_name: (unscheduled[pod_name].reason == "Schedulable", pod_name))
    message = shorten_message(unscheduled[name].message)
    is_gang = not _count_spare_pods(plan) and any(key.startswith("PodGroup/") for key in context.observed.states)
    summary = f"waits for the gang: it needs {_describe_request(plan)}" if is_gang else f"{name} waits for a node"
    if cluster.capacity and cluster.capacity.verdict == "failed":
        return _explain_by_capacity(summary, cluster.capacity)
    if port_conflict := " free ports" in message and _describe_port_conflict(
        plan, context.pods[name], cluster.other_pods
    ):
        return Diagnosis(Failure(cause="host-port", sentence=f"{summary}, and {port_conflict}", node=name, retry=True))
    suffix = "; nodes would do if they were free" if cluster.capacity else ""
    return Diagnosis(Failure(cause="unschedulable", sentence=f"{summary}{suffix}: {message}", node=name))


def _explain_by_capacity(summary: str, capacity: Check) -> Diagnosis:
    """Only new nodes would help, so the deadline decides: a cluster may grow."""
    is_tainted = "`pod.tolerations`" in capacity.remedy and "ask for less" not in capacity.remedy
    sentence = f"{summary}, and even empty nodes would not do: {capacity.detail}; {capacity.remedy}"
    return Diagnosis(Failure(cause="taint" if is_tainted else "unschedulable", sentence=sentence))


def _describe_port_conflict(plan: ManifestPlan, pod: Mapping[str, Any], other_pods: Sequence[Any]) -> str:
    """Which port is not free, and which other runs hold it, as far as this user may see."""
    ports = set(_list_host_ports(pod))
    ports_text = ", ".join(map(str, sorted(ports))) or "of the host"
    own_run = plan.labels.get(RUN_LABEL)
    holders = [
        other_pod for other_pod in other_pods if ports & set(_list_host_ports(other_pod)) and get_node_name(other_pod)
    ]
    holder_runs = {
        to_text(label)
        for holder in holders
        if (label := get_mapping(holder, "metadata", "labels").get(RUN_LABEL)) != own_run
    }
    suffix = f" (run {', '.join(sorted(holder_runs))} has it)" if holder_runs else ""
    return f"no node has port {ports_text} free{suffix}"


def _list_host_ports(pod: Any) -> Iterator[int]:
    for container in get_mappings(pod, "spec", "containers"):
        yield from (
            port
            for container_port in get_mappings(container, "ports")
            if (port := to_number(container_port.get("hostPort")))
        )


def _explain_by_admission(context: _Context) -> Diagnosis | None:
    """A job without pods, because its queue or the whole cluster has too little for it; only events say so."""
    plan, cluster = context.plan, context.cluster
    if context.pods:
        return None
    own_events = (
        event
        for event in cluster.events
        if to_text(get_mapping(event, "involvedObject").get("name")).startswith(plan.job)
    )
    messages = (to_text(event.get("message")) for event in own_events if event.get("reason") == "Unschedulable")
    quota_message = next(
        (message for message in messages if "quota insufficient" in message or "overused" in message), ""
    )
    if cluster.capacity and cluster.capacity.verdict == "failed":
        return _explain_by_capacity(f"{_describe_gang(plan)} waits to be admitted", cluster.capacity)
    if not quota_message:
        return _explain_by_silent_controller(plan, context.observed)
    slug = "queue-full" if "quota" in quota_message else "unschedulable"
    return Diagnosis(
        Failure(cause=slug, sentence=f"{_describe_gang(plan)} waits in its queue: {shorten_message(quota_message)}")
    )


def _explain_by_silent_controller(plan: ManifestPlan, observed: Observation) -> Diagnosis | None:
    """A job that no controller has given a status, or whose admitted gang has no pods: a controller can miss a job."""
    kind = plan.main["kind"]
    job = observed.states.get(f"{kind}/{plan.job}")
    if not isinstance(job, Mapping):
        return None
    if not get_mapping(job, "status"):
        problem = f"no controller has reported anything about the {kind} so far"
    elif _is_gang_admitted(observed) and observed.observed_at - _get_creation_time(job) > _CONTROLLER_TIMEOUT_S:
        problem = f"the {kind} is admitted (its PodGroup is Inqueue), and its controller has created no pods so far"
    else:
        return None
    controllers = (
        ", ".join(requirement.label for requirement in plan.requires if isinstance(requirement, Controller))
        or "its controller"
    )
    return Diagnosis(
        Failure(
            cause="controller-silent",
            sentence=f"{problem}: check that it runs and keeps up ({controllers})",
            retry=True,
        )
    )


def _get_creation_time(obj: Mapping[str, Any]) -> float:
    return parse_timestamp(get_mapping(obj, "metadata").get("creationTimestamp"))


def _is_gang_admitted(observed: Observation) -> bool:
    """Whether Volcano has let a PodGroup out of its queue: its controller creates the pods next."""
    groups = [obj for name, obj in observed.states.items() if name.startswith("PodGroup/")]
    return any(get_mapping(group, "status").get("phase") == "Inqueue" for group in groups)


def _describe_gang(plan: ManifestPlan) -> str:
    return f"the gang of {_describe_request(plan)}"


def _describe_request(plan: ManifestPlan) -> str:
    """`2 pods x 8 nvidia.com/gpu`: the devices that it requests or, without any, everything that it requests."""
    capacity = find_required_capacity(plan)
    amounts = {
        name: amount for name, amount in (capacity.resources if capacity else {}).items() if amount not in ("0", "")
    }
    devices = {name: amount for name, amount in amounts.items() if "/" in name} or amounts
    count = capacity.pods if capacity else sum(plan.tasks.values())
    request = " + ".join(f"{amount} {name}" for name, amount in devices.items())
    return f"{count} {'pod' if count == 1 else 'pods'}{f' x {request}' if request else ''}"


# The nearest cause first.
_EXPLAINERS: tuple[Callable[[_Context], Diagnosis | None], ...] = (
    _explain_by_pod,
    _explain_by_silent_node,
    _explain_by_event,
    _explain_by_closed_queue,
    _explain_by_scheduler,
    _explain_by_admission,
)
