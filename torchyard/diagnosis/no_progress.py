"""Why a job makes no progress, in one sentence: events, nodes and queues show what its own objects do not."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from torchyard.diagnosis.event_rules import (
    EVENT_RULES,
    find_event_rules,
    is_rule_match,
    read_first_seen,
    read_last_seen,
    shorten_message,
)
from torchyard.diagnosis.job_status import select_job_pods
from torchyard.diagnosis.pod_facts import (
    PodReason,
    Pods,
    find_silence_start,
    get_mapping,
    get_mappings,
    parse_timestamp,
    read_node_name,
    read_pod_phase,
    to_number,
    to_text,
)
from torchyard.diagnosis.pod_facts import find_unscheduled_reason as scheduler_word
from torchyard.diagnosis.pod_reasons import PodCause, find_pod_failure
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Capacity, Check, Controller
from torchyard.model.run import Failure, Observation

_MAX_EVENT_AGE_S = 150.0  # how long an event counts: a kubelet retries a volume after two minutes at most
_MISSED_AFTER_S = 30.0  # without pods, after which a controller has missed a job, and is not only slow
RUN_LABEL = "torchyard/run"


class ClusterContext(NamedTuple):
    """What surrounds a job, as last read: the namespace's events, capacity, the queue, and other runs' pods."""

    events: Sequence[Any] = ()
    room: Check | None = None
    queue: Check | None = None
    pods: Sequence[Any] = ()


class _Scene(NamedTuple):
    """The input of an explanation. The pods are scanned only once: there may be thousands."""

    plan: ManifestPlan
    observed: Observation
    around: ClusterContext
    pods: Pods
    unfit: Mapping[str, PodReason]  # what the scheduler reports, by pod


class Diagnosis(NamedTuple):
    """Why a job makes no progress; `ends`: waiting any longer is pointless."""

    failure: Failure
    ends: bool = False


def explain_no_progress(plan: ManifestPlan, observed: Observation, around: ClusterContext) -> Diagnosis | None:
    """The nearest cause: a pod's own status, its node, an event, the queue, the scheduler; None if none is known."""
    pods = select_job_pods(observed)
    scene = _Scene(plan, observed, around, pods, find_unscheduled_pods(pods))
    return next((why for way in _EXPLAINERS if (why := way(scene))), None)


def _explain_by_pod(scene: _Scene) -> Diagnosis | None:
    """What a pod's own status says, however recent."""
    known = find_pod_failure(scene.pods, math.inf)
    return Diagnosis(known) if known else None


def has_stalled_pods(plan: ManifestPlan, pods: Pods) -> bool:
    """Whether a pod is missing, has not started, or is on a node that does not answer."""
    halted = any(read_pod_phase(pod) == "Pending" or find_silence_start(pod) for pod in pods.values())
    return halted or len(pods) < sum(plan.tasks.values())


def find_required_capacity(plan: ManifestPlan) -> Capacity | None:
    return next((need for need in plan.requires if isinstance(need, Capacity)), None)


def _count_spare_pods(plan: ManifestPlan) -> int:
    """How many pods an elastic job can do without."""
    total, need = sum(plan.tasks.values()), find_required_capacity(plan)
    return max(total - need.pods, 0) if need else 0


# --- nodes and events


def _explain_by_silent_node(scene: _Scene) -> Diagnosis | None:
    """A pod that seems to run, on a node that does not answer: it takes minutes until the pod is evicted."""
    pods = scene.pods
    found = {name: since for name, pod in pods.items() if (since := find_silence_start(pod))}
    if not found:
        return None
    name = min(found, key=lambda each: found[each])
    at = datetime.fromtimestamp(found[name], UTC).strftime("%H:%M:%S UTC")
    sentence = f"{name}: its node {read_node_name(pods[name]) or '(unknown)'} has not answered since {at}"
    return Diagnosis(Failure(cause="node-lost", sentence=sentence, node=name, retry=True))


def _explain_by_event(scene: _Scene) -> Diagnosis | None:
    """The cause of the first rule that an event of the job's objects matches."""
    telling = [each for each in scene.around.events if find_event_rules(to_text(get_mapping(each).get("reason")))]
    mine = [each for each in telling if _is_own_event(scene, each)]
    for sign in EVENT_RULES:
        found = [each for each in mine if is_rule_match(each, sign)]
        if found:
            return _diagnose_events(scene, found, sign.reason)
    return None


def _diagnose_events(scene: _Scene, found: list[Any], reason: PodCause) -> Diagnosis:
    """The cause that events show. It fails the job if more pods are blocked than the job can spare."""
    plan, first = scene.plan, min(found, key=read_first_seen)
    pods = {
        to_text(thing.get("name"))
        for each in found
        if (thing := get_mapping(each, "involvedObject")).get("kind") == "Pod"
    }
    held = len(pods) or sum(plan.tasks.values()) - len(scene.pods)
    node = _find_event_node(plan, first)
    said = f"{to_text(first.get('reason'))}: {shorten_message(first.get('message'))}"
    sentence = f"{node or plan.job}: {reason.sentence} ({said})"
    late = scene.observed.observed_at - read_first_seen(first) >= reason.patience
    return Diagnosis(
        Failure(cause=reason.slug, sentence=sentence, node=node, retry=reason.retry),
        late and held > _count_spare_pods(plan),
    )


def _is_own_event(scene: _Scene, event: Any) -> bool:
    """Whether an event is about a pod that has not started, or about the job while it lacks pods."""
    plan, thing = scene.plan, get_mapping(event, "involvedObject")
    name = to_text(thing.get("name"))
    if name != plan.job and not name.startswith(f"{plan.job}-"):
        return False
    if thing.get("kind") != "Pod":
        return len(scene.pods) < sum(plan.tasks.values())
    pod = scene.pods.get(plan.node(name))
    if (
        pod is None
        or read_pod_phase(pod) != "Pending"
        or scene.observed.observed_at - read_last_seen(event) > _MAX_EVENT_AGE_S
    ):
        return False
    return get_mapping(pod, "metadata").get("uid") in (thing.get("uid"), None)


def _find_event_node(plan: ManifestPlan, event: Any) -> str | None:
    """The node of the pod that an event is about; None if it is about another object."""
    thing = get_mapping(event, "involvedObject")
    return plan.node(to_text(thing.get("name"))) if thing.get("kind") == "Pod" else None


# --- queues and schedulers


def _explain_by_closed_queue(scene: _Scene) -> Diagnosis | None:
    """A queue that no longer accepts jobs."""
    queue = scene.around.queue
    if queue is None or queue.verdict != "failed" or not (scene.unfit or not scene.pods):
        return None
    sentence = f"{_describe_gang(scene.plan)} waits for {queue.name}, which {queue.detail}"
    return Diagnosis(Failure(cause="queue-closed", sentence=sentence))


def find_unscheduled_pods(pods: Pods) -> dict[str, PodReason]:
    """What the scheduler reports, by pod: only a pod that has not started can lack a node."""
    return {
        name: word for name, pod in pods.items() if read_pod_phase(pod) == "Pending" and (word := scheduler_word(pod))
    }


def _explain_by_scheduler(scene: _Scene) -> Diagnosis | None:
    """A pod that the scheduler has no node for. One that could be placed only waits for the others of its gang."""
    plan, around, unfit = scene.plan, scene.around, scene.unfit
    if not unfit:
        return None
    name = min(unfit, key=lambda each: (unfit[each].reason == "Schedulable", each))
    said = shorten_message(unfit[name].message)
    together = not _count_spare_pods(plan) and any(each.startswith("PodGroup/") for each in scene.observed.states)
    lead = f"waits for the gang: it needs {_describe_request(plan)}" if together else f"{name} waits for a node"
    if around.room and around.room.verdict == "failed":
        return _explain_by_capacity(lead, around.room)
    if ports := " free ports" in said and _describe_port_clash(plan, scene.pods[name], around.pods):
        return Diagnosis(Failure(cause="host-port", sentence=f"{lead}, and {ports}", node=name, retry=True))
    busy = "; nodes would do if they were free" if around.room else ""
    return Diagnosis(Failure(cause="unschedulable", sentence=f"{lead}{busy}: {said}", node=name))


def _explain_by_capacity(lead: str, room: Check) -> Diagnosis:
    """Only new nodes would help, so the deadline decides: a cluster may grow."""
    taints = "`pod.tolerations`" in room.remedy and "ask for less" not in room.remedy
    sentence = f"{lead}, and even empty nodes would not do: {room.detail}; {room.remedy}"
    return Diagnosis(Failure(cause="taint" if taints else "unschedulable", sentence=sentence))


def _describe_port_clash(plan: ManifestPlan, pod: Mapping[str, Any], others: Sequence[Any]) -> str:
    """Which port is not free, and which other runs hold it, as far as this user may see."""
    wanted = set(_list_host_ports(pod))
    shown = ", ".join(map(str, sorted(wanted))) or "of the host"
    mine = plan.labels.get(RUN_LABEL)
    held = [each for each in others if wanted & set(_list_host_ports(each)) and read_node_name(each)]
    runs = {
        to_text(label) for each in held if (label := get_mapping(each, "metadata", "labels").get(RUN_LABEL)) != mine
    }
    named = f" (run {', '.join(sorted(runs))} has it)" if runs else ""
    return f"no node has port {shown} free{named}"


def _list_host_ports(pod: Any) -> Iterator[int]:
    for container in get_mappings(pod, "spec", "containers"):
        yield from (port for each in get_mappings(container, "ports") if (port := to_number(each.get("hostPort"))))


def _explain_by_admission(scene: _Scene) -> Diagnosis | None:
    """A job without pods, because its queue or the whole cluster has too little for it; only events say so."""
    plan, around = scene.plan, scene.around
    if scene.pods:
        return None
    mine = (
        each for each in around.events if to_text(get_mapping(each, "involvedObject").get("name")).startswith(plan.job)
    )
    held = (to_text(each.get("message")) for each in mine if each.get("reason") == "Unschedulable")
    said = next((message for message in held if "quota insufficient" in message or "overused" in message), "")
    if around.room and around.room.verdict == "failed":
        return _explain_by_capacity(f"{_describe_gang(plan)} waits to be admitted", around.room)
    if not said:
        return _explain_by_silent_controller(plan, scene.observed)
    slug = "queue-full" if "quota" in said else "unschedulable"
    return Diagnosis(
        Failure(cause=slug, sentence=f"{_describe_gang(plan)} waits in its queue: {shorten_message(said)}")
    )


def _explain_by_silent_controller(plan: ManifestPlan, observed: Observation) -> Diagnosis | None:
    """A job that no controller has given a status, or whose admitted gang has no pods: a controller can miss a job."""
    kind = plan.main["kind"]
    job = observed.states.get(f"{kind}/{plan.job}")
    if not isinstance(job, Mapping):
        return None
    if not get_mapping(job, "status"):
        what = f"no controller has reported anything about the {kind} so far"
    elif _is_gang_admitted(observed) and observed.observed_at - _read_creation(job) > _MISSED_AFTER_S:
        what = f"the {kind} is admitted (its PodGroup is Inqueue), and its controller has created no pods so far"
    else:
        return None
    who = ", ".join(need.label for need in plan.requires if isinstance(need, Controller)) or "its controller"
    return Diagnosis(
        Failure(cause="controller-silent", sentence=f"{what}: check that it runs and keeps up ({who})", retry=True)
    )


def _read_creation(thing: Mapping[str, Any]) -> float:
    return parse_timestamp(get_mapping(thing, "metadata").get("creationTimestamp"))


def _is_gang_admitted(observed: Observation) -> bool:
    """Whether Volcano has let a PodGroup out of its queue: its controller creates the pods next."""
    groups = [thing for name, thing in observed.states.items() if name.startswith("PodGroup/")]
    return any(get_mapping(group, "status").get("phase") == "Inqueue" for group in groups)


def _describe_gang(plan: ManifestPlan) -> str:
    return f"the gang of {_describe_request(plan)}"


def _describe_request(plan: ManifestPlan) -> str:
    """`2 pods x 8 nvidia.com/gpu`: the devices that it requests or, without any, everything that it requests."""
    need = find_required_capacity(plan)
    amounts = {name: amount for name, amount in (need.resources if need else {}).items() if amount not in ("0", "")}
    devices = {name: amount for name, amount in amounts.items() if "/" in name} or amounts
    count = need.pods if need else sum(plan.tasks.values())
    each = " + ".join(f"{amount} {name}" for name, amount in devices.items())
    return f"{count} {'pod' if count == 1 else 'pods'}{f' x {each}' if each else ''}"


# The nearest cause first.
_EXPLAINERS: tuple[Callable[[_Scene], Diagnosis | None], ...] = (
    _explain_by_pod,
    _explain_by_silent_node,
    _explain_by_event,
    _explain_by_closed_queue,
    _explain_by_scheduler,
    _explain_by_admission,
)
