"""A plan's objects in a cluster go without a trace: deleted, waited for, and the proof that nothing is left."""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from torchyard.cluster.create import ours
from torchyard.common.log import log
from torchyard.diagnosis import pod_facts
from torchyard.kube.client import Api, Object, api
from torchyard.kube.outlasting import outlasting
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.pods import lease_record
from torchyard.pods.template import ATTEMPT, ROLE, RUN
from torchyard.pods.user_manifest import holds_data

Kind = tuple[str, str]  # batch/v1, Job
AT_ONCE = 8  # requests
GOING = 60.0  # seconds beside the pods' own grace that everything may take to go away
LOOK = 0.25
BESIDE = (("v1", "Service"), ("v1", "ConfigMap"))  # what controllers make beside the pods
PROPAGATION = ("foregroundDeletion", "orphan")  # finalizers that the garbage collector takes away
# Kept by the API server about objects, and not objects of the run: they go by themselves.
ECHOES = frozenset({"events", "endpoints", "endpointslices"})
DISCOVERED: dict[Api, tuple[Kind, ...]] = {}


def delete(plan: ManifestPlan, thing: Object) -> None:
    """Ask for an object of the plan to go; one of the same name that belongs to somebody else stays."""
    server, which = api(plan.cluster), (thing["apiVersion"], thing["kind"], thing["metadata"]["name"])
    there = server.read(*which)
    if there and ours(plan, there) and not holds_data({**thing, **there}):
        server.delete(*which)


@outlasting
def remove(plan: ManifestPlan) -> list[str]:
    """Delete the job and, once its pods are gone, the store; prove that nothing with their labels is left; what is.

    What may not be looked at, of the kinds that the run has made or watched, counts as left.
    """
    server = api(plan.cluster)
    for thing in plan.store:
        keep_data(server, server.read(thing["apiVersion"], thing["kind"], thing["metadata"]["name"]), plan.labels)
    delete(plan, plan.main)
    await_gone(plan, lambda thing: ROLE not in (thing["metadata"].get("labels") or {}))
    for thing in plan.store:
        delete(plan, thing)
    await_gone(plan, lambda thing: True)
    known = made(plan)
    seen = look(server, dict.fromkeys((*known, *kinds(server))), plan.labels)
    unseen = [unprovable(server, kind, seen.unseen[kind]) for kind in known if kind in seen.unseen]
    return [*(describe(thing) for thing in seen.things), *unseen]


def made(plan: ManifestPlan) -> list[Kind]:
    """The kinds that a run has made, or watched its job by: of these nothing is left unproven."""
    things = [each for each in plan.parts if ours(plan, each)]
    return list(
        dict.fromkeys(
            [*((each["apiVersion"], each["kind"]) for each in things), *((each.api, each.kind) for each in plan.watch)]
        )
    )


def unprovable(server: Api, kind: Kind, why: str) -> str:
    return f"{kind[1]} in {server.namespace}: cannot be seen, so may be left: {why}; docs/rbac.yaml has the rights"


def keep_data(server: Api, thing: Object | None, labels: Mapping[str, str]) -> None:
    """Take the run's labels and owners off what holds data, so that neither we nor a garbage collector delete it.

    Only a version before has put them there.
    """
    worn = (thing or {}).get("metadata", {}).get("labels") or {}
    if thing and holds_data(thing) and labels.items() <= worn.items():
        nothing = {"labels": {key: None for key in (RUN, ATTEMPT, ROLE) if key in worn}, "ownerReferences": None}
        server.patch(thing, {"metadata": nothing})


def await_gone(plan: ManifestPlan, counts: Callable[[Object], bool]) -> None:
    """Wait while something of the plan that counts is going away, for as long as that may take."""
    server, look = api(plan.cluster), LOOK
    mine = {(each.api, each.kind): None for each in plan.watch} | dict.fromkeys(BESIDE)
    grace = plan.pod["spec"].get("terminationGracePeriodSeconds") or 30
    until = time.monotonic() + grace + GOING
    while going := [each for each in found(server, mine, plan.labels) if counts(each) and is_going(each)]:
        if time.monotonic() > until:
            force(server, going if plan.force else [])
            return
        time.sleep(look)
        look = min(look * 1.5, LOOK * 8)


def force(server: Api, things: Iterable[Object]) -> None:
    """End pods whose dead node will not confirm it. A pod on a node that is alive may still run: it stays."""
    pods = [each for each in things if each["kind"] == "Pod"]
    for pod in (each for each in pods if not is_alive(server, each["spec"].get("nodeName"))):
        log().warning("pod %s is deleted by force: its node does not answer", pod["metadata"]["name"])
        server.delete("v1", "Pod", pod["metadata"]["name"], force=True)


def is_alive(server: Api, node: str | None) -> bool:
    """Whether a node is known to be Ready; of one that this user may not look at nothing is known."""
    try:
        found = server.read("v1", "Node", node, namespace=None) if node else None
    except ClusterError as error:
        if error.status != 403:
            raise
        return False
    conditions = pod_facts.rows(found, "status", "conditions")
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def is_going(thing: Object) -> bool:
    """Whether an object will go without anybody's doing: it is being deleted, or its owner is. The Lease stays."""
    owners = thing["metadata"].get("ownerReferences") or ()
    return bool(thing["metadata"].get("deletionTimestamp") or any(each["kind"] != lease_record.KIND for each in owners))


def describe(thing: Object) -> str:
    """What is left, and what to do about it."""
    about = thing["metadata"]
    name = f"{thing['kind']} {about.get('namespace')}/{about['name']}"
    if not about.get("deletionTimestamp"):
        return name
    held = [each for each in about.get("finalizers") or () if each not in PROPAGATION]
    if held:
        return f"{name}: its finalizer {', '.join(held)} holds it; whoever set it must take it away"
    if thing["kind"] == "Pod" and (node := thing["spec"].get("nodeName")):
        return f"{name}: node {node} does not confirm its end; kubectl delete pod --force once the node is known dead"
    return name


# --- looking


class Seen(NamedTuple):
    """What a look has found, and why it has not seen some kinds."""

    things: list[Object]
    unseen: dict[Kind, str]


def look(server: Api, which: Iterable[Kind], labels: Mapping[str, str], everywhere: bool = False) -> Seen:
    """Every object of some kinds that carries the labels; an empty value is any. A kind may be refused."""
    selector = ",".join(f"{key}={value}" if value else key for key, value in labels.items())

    def ask(kind: Kind) -> tuple[Kind, list[Object], str]:
        try:
            return kind, server.items(*kind, {"labelSelector": selector}, everywhere), ""
        except ClusterError as error:
            if error.status in (403, 405):
                return kind, [], error.said
            raise

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(ask, which))
    return Seen([each for _, things, _ in answers for each in things], {kind: why for kind, _, why in answers if why})


def found(server: Api, which: Iterable[Kind], labels: Mapping[str, str]) -> list[Object]:
    """The objects that this user may see."""
    return look(server, which, labels).things


def kinds(server: Api) -> tuple[Kind, ...]:
    """Every kind of the namespace that can be listed, in its preferred version.

    Asked for once a process; where a part of the API did not answer, again the next time.
    """
    if known := DISCOVERED.get(server):
        return known
    each, whole = discover(server)
    if whole:
        DISCOVERED[server] = each
    return each


def discover(server: Api) -> tuple[tuple[Kind, ...], bool]:
    """The kinds that the API server tells of, and whether that is all of them."""
    groups = server.ask("GET", "/apis")["groups"]
    versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]

    def read(version: str) -> list[Kind] | None:
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        try:
            resources: list[dict[str, Any]] = server.glance(path)["resources"]
        except ClusterError:
            return None  # an aggregated API whose server is down lists nothing
        return [(version, each["kind"]) for each in resources if is_listed(each)]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(read, versions))
    return tuple(kind for some in answers for kind in some or ()), None not in answers


def is_listed(resource: dict[str, Any]) -> bool:
    wanted = resource["namespaced"] and "list" in resource["verbs"] and "/" not in resource["name"]
    return wanted and resource["name"] not in ECHOES
