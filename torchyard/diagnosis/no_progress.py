"""Why a job waits or makes no progress, in one sentence: from its own objects, and from events, nodes and queues.

A status reports only what the job's objects show plainly, such as how many pods run; the reason is found here.
"""

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from torchyard.diagnosis.event_rules import (
    find_event_rules,
    get_first_seen,
    get_last_seen,
    is_rule_match,
    shorten_message,
)
from torchyard.diagnosis.job_status import select_job_pods
from torchyard.diagnosis.pod_facts import (
    RUN_LABEL,
    PodReason,
    Pods,
    find_condition,
    find_silence_start,
    find_unscheduled_reason,
    get_creation_time,
    get_mapping,
    get_mappings,
    get_node_name,
    get_pod_phase,
    to_number,
    to_text,
)
from torchyard.diagnosis.pod_reasons import find_companion_failure, find_pod_failure, quote_reason
from torchyard.diagnosis.queues.kueue import find_workload, read_suspended_job
from torchyard.diagnosis.queues.podgroup import read_pod_group
from torchyard.diagnosis.queues.queue import Queue, describe_queue
from torchyard.model.causes.cause import Cause, PodRule
from torchyard.model.causes.events import EVENT_RULES
from torchyard.model.causes.launcher import LauncherCause
from torchyard.model.causes.platform import SCHEDULER_RULES, SHORTAGE_PATTERN, PlatformCause
from torchyard.model.finding import Finding
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Capacity, Controller
from torchyard.model.run import Failure, Observation

_MAX_EVENT_AGE_S = 150.0  # how long an event counts: a kubelet retries a volume after two minutes at most
_CONTROLLER_TIMEOUT_S = 30.0  # without pods, after which a controller has missed a job, and is not only slow
_PIPELINED_MARKER = "can possibly be assigned"  # in Volcano's message about a pod for which it could preempt others
_ORIGIN_MARKER = "Origin reason is "  # in that about its PodGroup, before `POD: REASON`


class ClusterContext(NamedTuple):
    """What surrounds a job, as last read.

    events: of the namespace.
    capacity: the check of the nodes' capacity; None if it could not be read.
    queue: the Queue that the job names, and whether it accepts jobs; None if it names none, or that cannot be read.
    other_pods: those of other runs, as far as this user may see them.
    """

    events: Sequence[Any] = ()
    capacity: Finding | None = None
    queue: Queue | None = None
    other_pods: Sequence[Any] = ()


class _Context(NamedTuple):
    """The input of an explanation. The pods are scanned only once: there may be thousands."""

    plan: ManifestPlan
    observed: Observation
    cluster: ClusterContext
    pods: Pods
    unscheduled: Mapping[str, PodReason]  # the scheduler's reasons, by pod
    queue: Queue | None  # of a job that has no pods yet


class Diagnosis(NamedTuple):
    """Why a job waits or makes no progress.

    sentence: without the state of the job, which the status reports.
    failure: the job's failure if it ends now; None if the sentence is not a cause, as while a job waits for its turn.
    is_final: whether waiting any longer is pointless.
    """

    sentence: str
    failure: Failure | None = None
    is_final: bool = False


def describe_progress(reason: str, diagnosis: Diagnosis | None) -> str:
    """The state of a job and why it waits, as the user reads it; `reason`: that of its status."""
    return f"{reason}; {diagnosis.sentence}" if diagnosis else reason


def explain_no_progress(plan: ManifestPlan, observed: Observation, cluster: ClusterContext) -> Diagnosis | None:
    """The nearest cause: a pod's own status, its node, an event, the scheduler, the queue; None if none is known."""
    pods = select_job_pods(observed)
    queue = None if pods else _read_queue(plan, observed, cluster)
    context = _Context(plan, observed, cluster, pods, find_unscheduled_pods(pods, observed.states), queue)
    for explain in _EXPLAINERS:
        diagnosis = explain(context)
        if diagnosis:
            return diagnosis
    return None


class SilentHost(NamedTuple):
    """A host that cannot be queried: the processes on it that have not ended, and why."""

    processes: Sequence[str]
    reason: str


def explain_waiting_processes(
    states: Mapping[str, Mapping[str, Any]], silent_hosts: Sequence[SilentHost]
) -> Diagnosis | None:
    """Why a job of processes waits: a host that cannot be queried, a scheduler's words, or the reason of an old state.

    None if none is known. `states`: by process, with a `detail` if it is an old one, because the process or its
    scheduler cannot be observed. Those of a scheduler's processes have a `status`, its own word for the state.
    """
    if silent_hosts:
        clauses = [f"{', '.join(host.processes)} cannot be queried: {host.reason}" for host in silent_hosts]
        node = silent_hosts[0].processes[0]
        return _diagnose(Failure(cause=LauncherCause.HOST_SILENT, sentence="; ".join(clauses), node=node))
    scheduled_states = {name: state for name, state in states.items() if "status" in state}
    clauses = []
    for name, state in scheduled_states.items():
        if state.get("phase") in (None, "starting"):
            clauses.append(f"{name}: {state['status'] or 'no state known yet'}")
            break
    for state in scheduled_states.values():
        if state.get("detail"):
            clauses.append(state["detail"])
            break
    for name, state in states.items():
        if name not in scheduled_states and state.get("detail"):
            clauses.append(f"{name}: {state['detail']}")
    return Diagnosis("; ".join(clauses)) if clauses else None


def _explain_by_pod(context: _Context) -> Diagnosis | None:
    """The cause in a pod's own status, however recent; None if no pod reports one."""
    failure = find_pod_failure(context.pods, math.inf) or find_companion_failure(context.pods)
    return _diagnose(failure) if failure else None


def _diagnose(failure: Failure, *, is_final: bool = False) -> Diagnosis:
    return Diagnosis(failure.sentence, failure, is_final)


def has_stalled_pods(plan: ManifestPlan, pods: Pods) -> bool:
    """Whether a pod is missing, has not started, or is on a node that does not answer."""
    has_halted = any(get_pod_phase(pod) == "Pending" or find_silence_start(pod) for pod in pods.values())
    return has_halted or len(pods) < _count_planned_pods(plan)


def find_required_capacity(plan: ManifestPlan) -> Capacity | None:
    """The capacity that a plan requires; None if it requires none."""
    for requirement in plan.requires:
        if isinstance(requirement, Capacity):
            return requirement
    return None


def _count_planned_pods(plan: ManifestPlan) -> int:
    return len(plan.pods)


def _count_spare_pods(plan: ManifestPlan) -> int:
    """How many pods an elastic job can do without."""
    capacity = find_required_capacity(plan)
    return max(_count_planned_pods(plan) - capacity.pods, 0) if capacity else 0


# --- nodes and events


def _explain_by_silent_node(context: _Context) -> Diagnosis | None:
    """The silent node of a pod that seems to run, because its eviction takes minutes; None if all nodes answer."""
    silent_since: dict[str, float] = {}
    for name, pod in context.pods.items():
        started_at = find_silence_start(pod)
        if started_at:
            silent_since[name] = started_at
    if not silent_since:
        return None
    name = min(silent_since, key=lambda pod_name: silent_since[pod_name])
    since = datetime.fromtimestamp(silent_since[name], UTC).strftime("%H:%M:%S UTC")
    node_name = get_node_name(context.pods[name]) or "(unknown)"
    sentence = f"{name}: its node {node_name} has not answered since {since}"
    return _diagnose(Failure(cause=PlatformCause.NODE_LOST, sentence=sentence, node=name))


def _explain_by_event(context: _Context) -> Diagnosis | None:
    """The cause of the first rule that an event of the job's objects matches; None if none matches."""
    own_events = []
    for event in context.cluster.events:
        # The rules first: they rule out most events, for less than the look at their pods.
        if find_event_rules(to_text(get_mapping(event).get("reason"))) and _is_own_event(context, event):
            own_events.append(event)
    for rule in EVENT_RULES:
        matching_events = [event for event in own_events if is_rule_match(event, rule)]
        if matching_events:
            return _diagnose_events(context, matching_events, rule.pod_rule)
    return None


def _diagnose_events(context: _Context, events: list[Any], rule: PodRule) -> Diagnosis:
    """The cause that events show. It fails the job if more pods are blocked than the job can spare."""
    plan = context.plan
    first_event = min(events, key=get_first_seen)
    blocked_pods = set()
    for event in events:
        involved = get_mapping(event, "involvedObject")
        if involved.get("kind") == "Pod":
            blocked_pods.add(to_text(involved.get("name")))
    # An event about the job blocks all pods that do not exist yet.
    blocked_count = len(blocked_pods) or _count_planned_pods(plan) - len(context.pods)
    has_persisted = context.observed.observed_at - get_first_seen(first_event) >= rule.patience_s

    node = _find_event_node(plan, first_event)
    quote = quote_reason(to_text(first_event.get("reason")), shorten_message(first_event.get("message")))
    sentence = f"{node or plan.job}: {rule.description} ({quote})"
    failure = Failure(cause=rule.cause, sentence=sentence, node=node, retry=rule.retry, requeue=rule.requeue)
    return _diagnose(failure, is_final=has_persisted and blocked_count > _count_spare_pods(plan))


def _is_own_event(context: _Context, event: Any) -> bool:
    """Whether an event is about a pod that has not started, or about the job while it lacks pods.

    The controller has overcome what it reported about the job before it created the job's newest pod.
    """
    plan = context.plan
    involved = get_mapping(event, "involvedObject")
    name = to_text(involved.get("name"))
    if involved.get("kind") != "Pod":
        if not _is_job_event(plan, event) or len(context.pods) >= _count_planned_pods(plan):
            return False
        newest_pod_at = max((get_creation_time(pod) for pod in context.pods.values()), default=0.0)
        return get_last_seen(event) >= newest_pod_at
    if not name.startswith(f"{plan.job}-"):
        return False
    pod = context.pods.get(plan.node(name))
    if pod is None or get_pod_phase(pod) != "Pending":
        return False
    if context.observed.observed_at - get_last_seen(event) > _MAX_EVENT_AGE_S:
        return False
    # An event without the uid of its pod counts for the current pod of that name.
    return get_mapping(pod, "metadata").get("uid") in (involved.get("uid"), None)


def _is_job_event(plan: ManifestPlan, event: Any) -> bool:
    """Whether an event is about the job itself, or about what a controller creates between it and its pods."""
    involved = get_mapping(event, "involvedObject")
    return plan.is_job_object(to_text(involved.get("kind")), to_text(involved.get("name")))


def _find_event_node(plan: ManifestPlan, event: Any) -> str | None:
    """The node of the pod that an event is about; None if it is about another object."""
    involved = get_mapping(event, "involvedObject")
    return plan.node(to_text(involved.get("name"))) if involved.get("kind") == "Pod" else None


# --- queues and schedulers


def _read_queue(plan: ManifestPlan, observed: Observation, cluster: ClusterContext) -> Queue | None:
    """The queue that a job without pods waits in; None if no object or event shows one."""
    job = observed.states.get(f"{plan.main['kind']}/{plan.job}", {})
    job_events = [event for event in cluster.events if _is_job_event(plan, event)]
    group_queue = read_pod_group(observed.states, job_events)
    return group_queue or read_suspended_job(job, find_workload(observed.states))


def _explain_by_closed_queue(context: _Context) -> Diagnosis | None:
    """The job's queue, if it no longer accepts jobs; else None."""
    queue = context.cluster.queue
    is_waiting = context.unscheduled or not context.pods
    if queue is None or not queue.refusal or not is_waiting:
        return None
    sentence = describe_queue(queue, _describe_gang(context.plan))
    return _diagnose(Failure(cause=PlatformCause.QUEUE_CLOSED, sentence=sentence))


def find_unscheduled_pods(pods: Pods, states: Mapping[str, Any]) -> dict[str, PodReason]:
    """The scheduler's reasons by pod: only a pod that has not started can lack a node.

    `states`: all observed objects. If Volcano may preempt, a pod only has the node that could be freed for it, and its
    PodGroup has the reason for which no node is free.
    """
    origin_reason = _find_origin_reason(states)
    unscheduled = {}
    for name, pod in pods.items():
        reason = find_unscheduled_reason(pod) if get_pod_phase(pod) == "Pending" else None
        if reason and origin_reason and reason.reason != "Schedulable" and _PIPELINED_MARKER in reason.message:
            reason = reason._replace(message=origin_reason)
        if reason:
            unscheduled[name] = reason
    return unscheduled


def _find_origin_reason(states: Mapping[str, Any]) -> str:
    """Why no node is free for a pod of the job's PodGroup, without the name of the pod; empty if that is not known."""
    for key, obj in states.items():
        condition = find_condition(obj, "Unschedulable") if key.startswith("PodGroup/") else None
        if condition:
            origin = to_text(condition.get("message")).partition(_ORIGIN_MARKER)[2]
            return origin.partition(": ")[2]
    return ""


def _explain_by_scheduler(context: _Context) -> Diagnosis | None:
    """The scheduler's reason for a pod without a node; None if there is no such pod.

    A pod that could be placed only waits for the others of its gang, so that another pod's reason comes first.
    """
    plan = context.plan
    unscheduled = context.unscheduled
    capacity = context.cluster.capacity
    if not unscheduled:
        return None
    name = min(unscheduled, key=lambda pod_name: (_rank_reason(unscheduled[pod_name].reason), pod_name))
    message = shorten_message(unscheduled[name].message)
    cause = _determine_scheduler_cause(to_text(unscheduled[name].message))
    has_pod_group = any(key.startswith("PodGroup/") for key in context.observed.states)
    if has_pod_group and not _count_spare_pods(plan):
        summary = f"waits for the gang: it needs {_describe_request(plan)}"
    else:
        summary = f"{name} waits for a node"
    if capacity and capacity.verdict == "failed":
        return _explain_by_capacity(summary, capacity)
    if cause is PlatformCause.HOST_PORT:
        port_conflict = _describe_port_conflict(plan, context.pods[name], context.cluster.other_pods)
        if re.search(SHORTAGE_PATTERN, message):
            port_conflict += " among those with room"
        return _diagnose(Failure(cause=PlatformCause.HOST_PORT, sentence=f"{summary}, and {port_conflict}", node=name))
    is_room_missing = cause is PlatformCause.UNSCHEDULABLE and unscheduled[name].reason != "SchedulingGated"
    suffix = "; nodes would do if they were free" if capacity and is_room_missing else ""
    return _diagnose(Failure(cause=cause, sentence=f"{summary}{suffix}: {message}", node=name))


def _rank_reason(reason: str) -> int:
    """The order in which the scheduler's reasons explain a wait: Volcano skips a pod after another one of its gang."""
    return {"Schedulable": 2, "Undetermined": 1}.get(reason, 0)


@functools.lru_cache(maxsize=1024)
def _determine_scheduler_cause(message: str) -> Cause:
    """Why no node is suitable. What a preemption would change, which follows in newer messages, is not a reason."""
    reasons = message.partition(" preemption: ")[0]
    for pattern, cause in SCHEDULER_RULES:
        if re.search(pattern, reasons):
            return cause
    return PlatformCause.UNSCHEDULABLE


def _explain_by_capacity(summary: str, capacity: Finding) -> Diagnosis:
    """The diagnosis of a job for which not even the empty nodes have room. It is never final: a cluster may grow."""
    sentence = f"{summary}, and even empty nodes would not do: {capacity.what}; {capacity.remedy}"
    cause = PlatformCause.TAINT if capacity.lacks_toleration else PlatformCause.UNSCHEDULABLE
    return _diagnose(Failure(cause=cause, sentence=sentence))


def _describe_port_conflict(plan: ManifestPlan, pod: Mapping[str, Any], other_pods: Sequence[Any]) -> str:
    """Which port is not free, and which other runs hold it, as far as this user may see."""
    ports = set(_list_host_ports(pod))
    holder_runs = set()
    for other_pod in other_pods:
        if ports & set(_list_host_ports(other_pod)) and get_node_name(other_pod):
            run_label = get_mapping(other_pod, "metadata", "labels").get(RUN_LABEL)
            if run_label != plan.labels.get(RUN_LABEL):
                holder_runs.add(to_text(run_label))
    ports_text = ", ".join(str(port) for port in sorted(ports)) or "of the host"
    holders_text = f" (run {', '.join(sorted(holder_runs))} has it)" if holder_runs else ""
    return f"no node has port {ports_text} free{holders_text}"


def _list_host_ports(pod: Any) -> Iterator[int]:
    for container in get_mappings(pod, "spec", "containers"):
        for container_port in get_mappings(container, "ports"):
            port = to_number(container_port.get("hostPort"))
            if port:
                yield port


def _explain_by_admission(context: _Context) -> Diagnosis | None:
    """Why a job has no pods: too little room in the cluster, its queue, or a silent controller; None if it has some."""
    plan = context.plan
    capacity = context.cluster.capacity
    queue = context.queue
    if context.pods:
        return None
    if capacity and capacity.verdict == "failed":
        return _explain_by_capacity(f"{_describe_gang(plan)} waits to be admitted", capacity)
    sentence = describe_queue(queue, _describe_gang(plan)) if queue else ""
    if queue and queue.missing and not queue.is_admitted:
        return _diagnose(Failure(cause=_determine_queue_cause(queue.missing), sentence=sentence))
    silence = _explain_by_silent_controller(plan, context.observed, queue)
    if silence:
        return silence
    return Diagnosis(sentence) if sentence else None


def _determine_queue_cause(missing: str) -> Cause:
    """The cause of what a queue lacks for a job: an open queue, a quota, or room."""
    if re.search(r"Queue \S+ (?:doesn't exist|is inactive|is stopped)", missing):
        return PlatformCause.QUEUE_CLOSED
    return PlatformCause.QUEUE_FULL if "quota" in missing else PlatformCause.UNSCHEDULABLE


def _explain_by_silent_controller(plan: ManifestPlan, observed: Observation, queue: Queue | None) -> Diagnosis | None:
    """The controller of a job without a status, or of an admitted gang without pods; None if it did its work."""
    kind = plan.main["kind"]
    job = observed.states.get(f"{kind}/{plan.job}")
    if not isinstance(job, Mapping):
        return None
    if not get_mapping(job, "status"):
        problem = f"no controller has reported anything about the {kind} so far"
    elif queue and queue.is_admitted and _has_missed_job(job, observed):
        problem = f"the {kind} is admitted ({queue.state}), and its controller has created no pods so far"
    else:
        return None
    labels = [requirement.label for requirement in plan.requires if isinstance(requirement, Controller)]
    controllers = ", ".join(labels) or "its controller"
    sentence = f"{problem}: check that it runs and keeps up ({controllers})"
    return _diagnose(Failure(cause=PlatformCause.CONTROLLER_SILENT, sentence=sentence))


def _has_missed_job(job: Mapping[str, Any], observed: Observation) -> bool:
    """Whether a controller that has created no pods is late; it has created those that were removed since."""
    has_created_pods = any(key.startswith("Removed/") for key in observed.states)
    return not has_created_pods and observed.observed_at - get_creation_time(job) > _CONTROLLER_TIMEOUT_S


def _describe_gang(plan: ManifestPlan) -> str:
    return f"the gang of {_describe_request(plan)}"


def _describe_request(plan: ManifestPlan) -> str:
    """`2 pods x 8 nvidia.com/gpu`: the devices that it requests or, without any, everything that it requests."""
    capacity = find_required_capacity(plan)
    count = capacity.pods if capacity else _count_planned_pods(plan)
    resources = capacity.resources if capacity else {}
    amounts = {name: amount for name, amount in resources.items() if amount not in ("0", "")}
    devices = {name: amount for name, amount in amounts.items() if "/" in name}
    request = " + ".join(f"{amount} {name}" for name, amount in (devices or amounts).items())
    text = f"{count} pod" if count == 1 else f"{count} pods"
    return f"{text} x {request}" if request else text


# The nearest cause first.
_EXPLAINERS: tuple[Callable[[_Context], Diagnosis | None], ...] = (
    _explain_by_pod,
    _explain_by_silent_node,
    _explain_by_event,
    _explain_by_closed_queue,
    _explain_by_scheduler,
    _explain_by_admission,
)
