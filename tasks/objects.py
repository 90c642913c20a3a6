"""A plan's objects in a cluster: created or adopted by name."""

import time

from tasks import lease
from tasks.cluster import Api, Object, api
from tasks.errors import ClusterError, RendezvousError
from tasks.launchers import _lease, _pod_causes, _pod_facts
from tasks.outlasting import outlasting
from tasks.plan import ManifestPlan
from tasks.step import log
from tasks.watch import ClusterWatch

STORE_PATIENCE = 300.0  # seconds, the pull of its image among them
LOOK = 0.25


def located(plan: ManifestPlan) -> ManifestPlan:
    """The plan with the cluster and namespace that the kubeconfig names today, to be found again tomorrow."""
    return plan.model_copy(update={"cluster": api(plan.cluster).cluster})


# --- creating


@outlasting
def create(plan: ManifestPlan) -> tuple[Object, bool]:
    """The job, and whether it is new. Nothing is created where the API server would refuse a part of it.

    A job that this run has made before, and that is not there any more, is not made again. OwnedError where another
    living process carries the run.
    """
    server, held = api(plan.cluster), lease.take(plan)
    if _lease.submitted(held) and not server.read(plan.main["apiVersion"], plan.main["kind"], plan.job):
        return plan.main, False
    things = [owned(thing, held) for thing in plan.objects]
    for thing in things:
        adopt_or_create(server, plan, thing, dry_run=True)
    made = [adopt_or_create(server, plan, thing) for thing in things]
    job, created = made[-1]
    lease.tell_submitted(plan)
    own(server, plan, job)
    return job, created


def owned(thing: Object, held: Object) -> Object:
    """An object that goes with the run's Lease."""
    return {**thing, "metadata": {**thing["metadata"], "ownerReferences": [_lease.owner(held)]}}


def adopt_or_create(server: Api, plan: ManifestPlan, thing: Object, dry_run: bool = False) -> tuple[Object, bool]:
    """The object, and whether it is new. ClusterError where the name is somebody else's, or the server refuses it."""
    try:
        return server.create(thing, dry_run), True
    except ClusterError as error:
        if error.status != 409:
            raise
    there = server.read(thing["apiVersion"], thing["kind"], thing["metadata"]["name"]) or {}
    if ours(plan, there) or thing["metadata"]["name"] != plan.job:
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


@outlasting
def serve(plan: ManifestPlan) -> None:
    """Create the rendezvous store and wait until it is ready. RendezvousError says why it never will be."""
    server, held = api(plan.cluster), lease.take(plan)
    for thing in plan.store:
        _, created = adopt_or_create(server, plan, owned(thing, held))
        if not created:
            log().info("%s %s is there already, and is used", thing["kind"], thing["metadata"]["name"])
    pods = {thing["metadata"]["name"] for thing in plan.store if thing["kind"] == "Pod"}
    until = time.monotonic() + STORE_PATIENCE
    with ClusterWatch(plan) as watch:
        while waiting := [name for name in pods if not is_ready(plan, watch, name)]:
            if time.monotonic() > until:
                said = f"{', '.join(waiting)} not ready within {STORE_PATIENCE:.0f} s"
                raise RendezvousError(str(plan.probe), said, f"kubectl describe pod {waiting[0]}", retry=True)
            watch.changes(LOOK)


def is_ready(plan: ManifestPlan, watch: ClusterWatch, name: str) -> bool:
    """Whether a pod of the store is ready; RendezvousError where it has ended or cannot start."""
    node = plan.node(name)
    pod = watch.seen.get(f"Pod/{node}")
    if pod is None:
        return False
    known = _pod_causes.blame({node: pod}, time.time())
    if known or _pod_facts.exit_code(pod) is not None:
        watch.settle(2.0)
        sentence = known.sentence if known else f"{node} {_pod_facts.how(_pod_facts.exit_code(pod))}"
        remedy = "use an etcd that serves the v2 API: 3.5 with --enable-v2 does, 3.6 does not (docs/etcd.md)"
        killed = known.retry if known else (_pod_facts.exit_code(pod) or 0) > 128
        raise RendezvousError(str(plan.probe), f"{sentence}; it said: {watch.last_line(node)}", remedy, killed)
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
