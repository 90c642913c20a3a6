"""A plan's objects in a cluster go without a trace: deleted, waited for, and the proof that nothing is left."""

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tasks.cluster import Api, Object, api
from tasks.errors import ClusterError
from tasks.launchers import _lease, _pod_facts
from tasks.launchers._pod import ROLE
from tasks.objects import ours
from tasks.outlasting import outlasting
from tasks.plan import ManifestPlan
from tasks.step import log

AT_ONCE = 8  # requests
GOING = 60.0  # seconds beside the pods' own grace that everything may take to go away
LOOK = 0.25
BESIDE = (("v1", "Service"), ("v1", "ConfigMap"))  # what controllers make beside the pods
PROPAGATION = ("foregroundDeletion", "orphan")  # finalizers that the garbage collector takes away
# Kept by the API server about objects, and not objects of the run: they go by themselves.
ECHOES = frozenset({"events", "endpoints", "endpointslices"})


def delete(plan: ManifestPlan, thing: Object) -> None:
    """Ask for an object of the plan to go; one of the same name that belongs to somebody else stays."""
    server, which = api(plan.cluster), (thing["apiVersion"], thing["kind"], thing["metadata"]["name"])
    there = server.read(*which)
    if there and ours(plan, there):
        server.delete(*which)


@outlasting
def remove(plan: ManifestPlan) -> list[str]:
    """Delete the job and, once its pods are gone, the store; prove that nothing with their labels is left; what is."""
    server = api(plan.cluster)
    delete(plan, plan.main)
    await_gone(plan, lambda thing: ROLE not in (thing["metadata"].get("labels") or {}))
    for thing in plan.store:
        delete(plan, thing)
    await_gone(plan, lambda thing: True)
    return [describe(thing) for thing in found(server, kinds(server), plan.labels)]


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
    conditions = _pod_facts.rows(found, "status", "conditions")
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def is_going(thing: Object) -> bool:
    """Whether an object will go without anybody's doing: it is being deleted, or its owner is. The Lease stays."""
    owners = thing["metadata"].get("ownerReferences") or ()
    return bool(thing["metadata"].get("deletionTimestamp") or any(each["kind"] != _lease.KIND for each in owners))


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


def found(
    server: Api, which: Iterable[tuple[str, str]], labels: Mapping[str, str], everywhere: bool = False
) -> list[Object]:
    """Every object of some kinds that carries the labels; an empty value is any."""
    selector = ",".join(f"{key}={value}" if value else key for key, value in labels.items())

    def look(kind: tuple[str, str]) -> list[Object]:
        try:
            return server.items(*kind, {"labelSelector": selector}, everywhere)
        except ClusterError as error:
            if error.status in (403, 405):  # what this user may not see, he has not made
                return []
            raise

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [thing for things in pool.map(look, which) for thing in things]


@functools.cache
def kinds(server: Api) -> tuple[tuple[str, str], ...]:
    """Every kind of the namespace that can be listed, in its preferred version."""
    groups = server.ask("GET", "/apis")["groups"]
    versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]

    def read(version: str) -> list[tuple[str, str]]:
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        try:
            resources: list[dict[str, Any]] = server.glance(path)["resources"]
        except ClusterError:
            return []  # an aggregated API whose server is down lists nothing
        return [(version, each["kind"]) for each in resources if is_listed(each)]

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return tuple(kind for some in pool.map(read, versions) for kind in some)


def is_listed(resource: dict[str, Any]) -> bool:
    wanted = resource["namespaced"] and "list" in resource["verbs"] and "/" not in resource["name"]
    return wanted and resource["name"] not in ECHOES
