"""A plan's objects in a cluster: created or adopted by name, and gone without a trace afterwards."""

import functools
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tasks.cluster import Api, Object, api
from tasks.errors import ClusterError, RendezvousError
from tasks.launchers import _pod_facts
from tasks.plan import ManifestPlan
from tasks.step import log
from tasks.watch import ClusterWatch

AT_ONCE = 8  # requests
STORE_PATIENCE = 300.0  # seconds, the pull of its image among them
GOING = 60.0  # seconds beside the pods' own grace that everything may take to go away
LOOK = 0.25
BESIDE = (("v1", "Service"), ("v1", "ConfigMap"))  # what controllers make beside the pods
PROPAGATION = ("foregroundDeletion", "orphan")  # finalizers that the garbage collector takes away
# Kept by the API server about objects, and not objects of the run: they go by themselves.
ECHOES = frozenset({"events", "endpoints", "endpointslices"})


def located(plan: ManifestPlan) -> ManifestPlan:
    """The plan with the cluster and namespace that the kubeconfig names today, to be found again tomorrow."""
    return plan.model_copy(update={"cluster": api(plan.cluster).cluster})


# --- creating


def create(plan: ManifestPlan) -> tuple[Object, bool]:
    """The job, and whether it is new. Nothing is created where the API server would refuse a part of it."""
    server = api(plan.cluster)
    for thing in plan.objects:
        adopt_or_create(server, plan, thing, dry_run=True)
    made = [adopt_or_create(server, plan, thing) for thing in plan.objects]
    job, created = made[-1]
    own(server, plan, job)
    return job, created


def adopt_or_create(server: Api, plan: ManifestPlan, thing: Object, dry_run: bool = False) -> tuple[Object, bool]:
    """The object, and whether it is new. ClusterError where the name is somebody else's, or the server refuses it."""
    try:
        return server.create(thing, dry_run), True
    except ClusterError as error:
        if error.status != 409:
            raise
    there = server.read(thing["apiVersion"], thing["kind"], thing["metadata"]["name"]) or {}
    if ours(plan, there) or thing not in plan.objects:
        return there, False
    what = f"{thing['kind']} {thing['metadata']['name']}"
    raise ClusterError(server.host, f"create {what}", "it exists and belongs to somebody else", 409)


def ours(plan: ManifestPlan, thing: Object) -> bool:
    return plan.labels.items() <= (thing.get("metadata", {}).get("labels") or {}).items()


def own(server: Api, plan: ManifestPlan, job: Object) -> None:
    """Let the store go with the job, whoever deletes that."""
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": plan.job, "uid": job["metadata"]["uid"]}
    for thing in plan.store:
        there = server.read(thing["apiVersion"], thing["kind"], thing["metadata"]["name"])
        if there and ours(plan, there):
            server.patch(thing, {"metadata": {"ownerReferences": [owner]}})


def serve(plan: ManifestPlan) -> None:
    """Create the rendezvous store and wait until it is ready. RendezvousError says why it never will be."""
    server = api(plan.cluster)
    for thing in plan.store:
        _, created = adopt_or_create(server, plan, thing)
        if not created:
            log().info("%s %s is there already, and is used", thing["kind"], thing["metadata"]["name"])
    pods = {thing["metadata"]["name"] for thing in plan.store if thing["kind"] == "Pod"}
    until = time.monotonic() + STORE_PATIENCE
    with ClusterWatch(plan) as watch:
        while waiting := [name for name in pods if not is_ready(plan, watch, name)]:
            if time.monotonic() > until:
                said = f"{', '.join(waiting)} not ready within {STORE_PATIENCE:.0f} s"
                raise RendezvousError(str(plan.probe), said, f"kubectl describe pod {waiting[0]}")
            watch.changes(LOOK)


def is_ready(plan: ManifestPlan, watch: ClusterWatch, name: str) -> bool:
    """Whether a pod of the store is ready; RendezvousError where it has ended or cannot start."""
    node = plan.node(name)
    pod = watch.seen.get(f"Pod/{node}")
    if pod is None:
        return False
    known = _pod_facts.blame({node: pod}, time.time())
    if known or _pod_facts.exit_code(pod) is not None:
        watch.settle(2.0)
        sentence = known.sentence if known else f"{node} {_pod_facts.how(_pod_facts.exit_code(pod))}"
        remedy = "use an etcd that serves the v2 API: 3.5 with --enable-v2 does, 3.6 does not (docs/etcd.md)"
        raise RendezvousError(str(plan.probe), f"{sentence}; it said: {watch.last_line(node)}", remedy)
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


# --- removing


def delete_job(plan: ManifestPlan) -> None:
    """Ask for the job to go, its pods first. A job that is not there is a success."""
    delete(plan, plan.main)


def delete(plan: ManifestPlan, thing: Object) -> None:
    """Ask for an object of the plan to go; one of the same name that belongs to somebody else stays."""
    server, which = api(plan.cluster), (thing["apiVersion"], thing["kind"], thing["metadata"]["name"])
    there = server.read(*which)
    if there and ours(plan, there):
        server.delete(*which)


def remove(plan: ManifestPlan) -> list[str]:
    """Delete everything of the plan and prove that nothing with its labels is left, of any kind; what is."""
    server = api(plan.cluster)
    for thing in (*reversed(plan.objects), *plan.store):
        delete(plan, thing)
    grace = plan.pod["spec"].get("terminationGracePeriodSeconds") or 30
    until = time.monotonic() + grace + GOING
    mine = {(each.api, each.kind): None for each in plan.watch} | dict.fromkeys(BESIDE)
    look = LOOK
    while any(is_going(thing) for thing in found(server, plan, mine)) and time.monotonic() < until:
        time.sleep(look)
        look = min(look * 1.5, LOOK * 8)
    return [describe(thing) for thing in found(server, plan, kinds(server))]


def is_going(thing: Object) -> bool:
    """Whether an object will go without anybody's doing: it is being deleted, or its owner is."""
    return bool(thing["metadata"].get("deletionTimestamp") or thing["metadata"].get("ownerReferences"))


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


def found(server: Api, plan: ManifestPlan, which: Iterable[tuple[str, str]]) -> list[Object]:
    """Every object of some kinds that carries the labels of the plan."""
    selector = ",".join(f"{key}={value}" for key, value in plan.labels.items())

    def look(kind: tuple[str, str]) -> list[Object]:
        try:
            return server.items(*kind, {"labelSelector": selector})
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
