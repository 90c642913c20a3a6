"""Why a job does not get on, in one sentence: what its objects do not say themselves, events, nodes and queues do."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from torchyard.diagnosis.event_rules import SIGNS, first_seen, last_seen, short, shows, signs_of
from torchyard.diagnosis.job_status import job_pods
from torchyard.diagnosis.pod_facts import Pods, Word, machine, number, part, phase, rows, silent_since, text
from torchyard.diagnosis.pod_facts import unscheduled as scheduler_word
from torchyard.diagnosis.pod_reasons import Reason, blame
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Check, Controller, Room
from torchyard.model.run import Failure, Observation

FRESH = 150.0  # seconds that an event counts: a kubelet tries a volume again after two minutes at most
RUN = "torchyard/run"


class Around(NamedTuple):
    """What there is around a job, as it was last asked for: events of the namespace, and other runs' pods in it."""

    events: Sequence[Any] = ()
    room: Check | None = None
    queue: Check | None = None
    pods: Sequence[Any] = ()


class Scene(NamedTuple):
    """What an explanation is made from. The pods are looked through once: there may be thousands."""

    plan: ManifestPlan
    observed: Observation
    around: Around
    pods: Pods
    unfit: Mapping[str, Word]  # the scheduler's words, by the pod that they are about


class Why(NamedTuple):
    """Why a job does not get on; `ends`: waiting any longer is in vain."""

    failure: Failure
    ends: bool = False


def explain(plan: ManifestPlan, observed: Observation, around: Around) -> Why | None:
    """The nearest cause: a pod's own word, its node, an event, the queue, the scheduler; None where nothing tells."""
    pods = job_pods(observed)
    scene = Scene(plan, observed, around, pods, lacks_nodes(pods))
    return next((why for way in WAYS if (why := way(scene))), None)


def blamed_by_pod(scene: Scene) -> Why | None:
    """What a pod says of itself, however new."""
    known = blame(scene.pods, math.inf)
    return Why(known) if known else None


def stands(plan: ManifestPlan, pods: Pods) -> bool:
    """Whether a pod is missing, has not started, or is on a node that does not answer."""
    halted = any(phase(pod) == "Pending" or silent_since(pod) for pod in pods.values())
    return halted or len(pods) < sum(plan.tasks.values())


def room_of(plan: ManifestPlan) -> Room | None:
    return next((need for need in plan.requires if isinstance(need, Room)), None)


def spare(plan: ManifestPlan) -> int:
    """How many pods an elastic job can do without."""
    total, need = sum(plan.tasks.values()), room_of(plan)
    return max(total - need.pods, 0) if need else 0


# --- nodes and events


def silent(scene: Scene) -> Why | None:
    """A pod that seems to run, on a node that does not answer: it is minutes until somebody takes it away."""
    pods = scene.pods
    found = {name: since for name, pod in pods.items() if (since := silent_since(pod))}
    if not found:
        return None
    name = min(found, key=lambda each: found[each])
    at = datetime.fromtimestamp(found[name], UTC).strftime("%H:%M:%S UTC")
    sentence = f"{name}: its node {machine(pods[name]) or '(unknown)'} does not answer since {at}"
    return Why(Failure(cause="node-lost", sentence=sentence, node=name, retry=True))


def told_by_event(scene: Scene) -> Why | None:
    """What the first sign means that an event of the job's objects shows."""
    telling = [each for each in scene.around.events if signs_of(text(part(each).get("reason")))]
    mine = [each for each in telling if is_mine(scene, each)]
    for sign in SIGNS:
        found = [each for each in mine if shows(each, sign)]
        if found:
            return blamed(scene, found, sign.reason)
    return None


def blamed(scene: Scene, found: list[Any], reason: Reason) -> Why:
    """The cause that events show. It fails the job if more pods are blocked than the job can spare."""
    plan, first = scene.plan, min(found, key=first_seen)
    pods = {text(thing.get("name")) for each in found if (thing := part(each, "involvedObject")).get("kind") == "Pod"}
    held = len(pods) or sum(plan.tasks.values()) - len(scene.pods)
    node = about(plan, first)
    sentence = f"{node or plan.job}: {reason.sentence} ({text(first.get('reason'))}: {short(first.get('message'))})"
    late = scene.observed.at - first_seen(first) >= reason.patience
    return Why(
        Failure(cause=reason.slug, sentence=sentence, node=node, retry=reason.retry), late and held > spare(plan)
    )


def is_mine(scene: Scene, event: Any) -> bool:
    """Whether an event is about a pod that has not started, or about the job while it lacks pods."""
    plan, thing = scene.plan, part(event, "involvedObject")
    name = text(thing.get("name"))
    if name != plan.job and not name.startswith(f"{plan.job}-"):
        return False
    if thing.get("kind") != "Pod":
        return len(scene.pods) < sum(plan.tasks.values())
    pod = scene.pods.get(plan.node(name))
    if pod is None or phase(pod) != "Pending" or scene.observed.at - last_seen(event) > FRESH:
        return False
    return part(pod, "metadata").get("uid") in (thing.get("uid"), None)


def about(plan: ManifestPlan, event: Any) -> str | None:
    """The node whose pod an event is about, if it is about one."""
    thing = part(event, "involvedObject")
    return plan.node(text(thing.get("name"))) if thing.get("kind") == "Pod" else None


# --- queues and schedulers


def closed(scene: Scene) -> Why | None:
    """A queue that takes nothing any more."""
    queue = scene.around.queue
    if queue is None or queue.verdict != "failed" or not (scene.unfit or not scene.pods):
        return None
    sentence = f"{gang(scene.plan)} waits for {queue.need}, which {queue.detail}"
    return Why(Failure(cause="queue-closed", sentence=sentence))


def lacks_nodes(pods: Pods) -> dict[str, Word]:
    """The scheduler's words, by the pod that they are about: only one that has not started can lack a node."""
    return {name: word for name, pod in pods.items() if phase(pod) == "Pending" and (word := scheduler_word(pod))}


def unplaced(scene: Scene) -> Why | None:
    """A pod that the scheduler has no node for. One that could be placed only waits for the others of its gang."""
    plan, around, unfit = scene.plan, scene.around, scene.unfit
    if not unfit:
        return None
    name = min(unfit, key=lambda each: (unfit[each].reason == "Schedulable", each))
    said = short(unfit[name].message)
    together = not spare(plan) and any(each.startswith("PodGroup/") for each in scene.observed.seen)
    lead = f"waits for the gang: it needs {asks(plan)}" if together else f"{name} waits for a node"
    if around.room and around.room.verdict == "failed":
        return unfitting(lead, around.room)
    if ports := " free ports" in said and clash(plan, scene.pods[name], around.pods):
        return Why(Failure(cause="host-port", sentence=f"{lead}, and {ports}", node=name, retry=True))
    busy = "; nodes would do if they were free" if around.room else ""
    return Why(Failure(cause="unschedulable", sentence=f"{lead}{busy}: {said}", node=name))


def unfitting(lead: str, room: Check) -> Why:
    """No waiting helps but for new nodes, so the deadline decides: a cluster may grow."""
    taints = "`pod.tolerations`" in room.remedy and "ask for less" not in room.remedy
    sentence = f"{lead}, and even empty nodes would not do: {room.detail}; {room.remedy}"
    return Why(Failure(cause="taint" if taints else "unschedulable", sentence=sentence))


def clash(plan: ManifestPlan, pod: Mapping[str, Any], others: Sequence[Any]) -> str:
    """Which port is not free, and which other runs hold it, as far as this user may see."""
    wanted = set(host_ports(pod))
    shown = ", ".join(map(str, sorted(wanted))) or "of the host"
    mine = plan.labels.get(RUN)
    held = [each for each in others if wanted & set(host_ports(each)) and machine(each)]
    runs = {text(label) for each in held if (label := part(each, "metadata", "labels").get(RUN)) != mine}
    named = f" (run {', '.join(sorted(runs))} has it)" if runs else ""
    return f"no node has port {shown} free{named}"


def host_ports(pod: Any) -> Iterator[int]:
    for container in rows(pod, "spec", "containers"):
        yield from (port for each in rows(container, "ports") if (port := number(each.get("hostPort"))))


def unadmitted(scene: Scene) -> Why | None:
    """A job without pods, because its queue or the whole cluster has too little for it; only events say so."""
    plan, around = scene.plan, scene.around
    if scene.pods:
        return None
    mine = (each for each in around.events if text(part(each, "involvedObject").get("name")).startswith(plan.job))
    held = (text(each.get("message")) for each in mine if each.get("reason") == "Unschedulable")
    said = next((message for message in held if "quota insufficient" in message or "overused" in message), "")
    if around.room and around.room.verdict == "failed":
        return unfitting(f"{gang(plan)} waits to be admitted", around.room)
    if not said:
        return ignored(plan, scene.observed)
    slug = "queue-full" if "quota" in said else "unschedulable"
    return Why(Failure(cause=slug, sentence=f"{gang(plan)} waits in its queue: {short(said)}"))


def ignored(plan: ManifestPlan, observed: Observation) -> Why | None:
    """A job of which no controller has said a word."""
    kind = plan.main["kind"]
    job = observed.seen.get(f"{kind}/{plan.job}")
    if not isinstance(job, Mapping) or part(job, "status"):
        return None
    who = ", ".join(need.label for need in plan.requires if isinstance(need, Controller)) or "its controller"
    sentence = f"no controller has said anything of the {kind} so far: look whether it runs and keeps up ({who})"
    return Why(Failure(cause="controller-silent", sentence=sentence, retry=True))


def gang(plan: ManifestPlan) -> str:
    return f"the gang of {asks(plan)}"


def asks(plan: ManifestPlan) -> str:
    """`2 pods x 8 nvidia.com/gpu`: its devices, or where it asks for none, all that it asks for."""
    need = room_of(plan)
    amounts = {name: amount for name, amount in (need.resources if need else {}).items() if amount not in ("0", "")}
    devices = {name: amount for name, amount in amounts.items() if "/" in name} or amounts
    count = need.pods if need else sum(plan.tasks.values())
    each = " + ".join(f"{amount} {name}" for name, amount in devices.items())
    return f"{count} {'pod' if count == 1 else 'pods'}{f' x {each}' if each else ''}"


# The nearest cause first.
WAYS: tuple[Callable[[Scene], Why | None], ...] = (blamed_by_pod, silent, told_by_event, closed, unplaced, unadmitted)
