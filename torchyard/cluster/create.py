"""Creates a plan's objects in a cluster, or adopts existing ones by name."""

import time

from torchyard.cluster import lease
from torchyard.cluster.checks.permissions import is_allowed
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.cluster.lease_renewal import hold_lease
from torchyard.common.local_errors import OUTAGE_TIMEOUT_S, retry_step
from torchyard.common.log import get_log
from torchyard.diagnosis import pod_facts, pod_reasons
from torchyard.kube.client import Client, KubeObject, get_cluster_client
from torchyard.model.errors import ClusterError, RendezvousError
from torchyard.model.plan import ManifestPlan
from torchyard.pods import etcd, lease_record
from torchyard.pods.template import RUN_LABEL

_STORE_READY_TIMEOUT_S = 300.0  # seconds, including the pull of its image
_STORE_POLL_INTERVAL_S = 0.25
_STORE_LOG_TIMEOUT_S = 2.0
_NETWORK_POLICIES = "networkpolicies.networking.k8s.io"
_NO_POLICY = "this user may not create one; role torchyard-policy of deploy/kubernetes/rbac.yaml allows it"


def resolve_cluster(plan: ManifestPlan) -> ManifestPlan:
    """The plan with the cluster and namespace that the kubeconfig names now, for later processes to find."""
    return plan.model_copy(update={"cluster": get_cluster_client(plan.cluster).cluster})


@retry_step(OUTAGE_TIMEOUT_S)
def drop_forbidden_objects(plan: ManifestPlan) -> ManifestPlan:
    """The plan without optional objects that this user may not create: no later step looks for them."""
    server, optional = (
        get_cluster_client(plan.cluster),
        [thing for thing in plan.store if etcd.is_optional_object(thing)],
    )
    if not optional or all(is_allowed(server, verb, _NETWORK_POLICIES) for verb in etcd.PERMISSION_VERBS):
        return plan
    get_log().warning("no NetworkPolicy protects the rendezvous store: %s", _NO_POLICY)
    return plan.model_copy(update={"store": tuple(thing for thing in plan.store if thing not in optional)})


# --- creating


def create_job(plan: ManifestPlan) -> tuple[KubeObject, bool]:
    """The job, and whether it is new. Nothing is created if the API server would refuse a part of it.

    A job that this run created before, and that is gone, is not created again. Raises RunInUseError if another living
    process owns the run.
    """
    server, held = get_cluster_client(plan.cluster), hold_lease(plan)
    if lease_record.is_submitted(held) and not server.get(plan.main["apiVersion"], plan.main["kind"], plan.job):
        return plan.main, False
    things = [_add_owner(thing, held) for thing in plan.objects]
    for thing in things:
        _adopt_or_create(server, plan, thing, dry_run=True)
    made = [_adopt_or_create(server, plan, thing) for thing in things]
    job, created = made[-1]
    lease.record_submission(plan)
    _tie_store_to_job(server, plan, job)
    return job, created


def _add_owner(thing: KubeObject, held: KubeObject) -> KubeObject:
    """The object, owned by the run's Lease if it is the run's; what holds data gets no owner."""
    if RUN_LABEL not in (thing["metadata"].get("labels") or {}):
        return thing
    return {**thing, "metadata": {**thing["metadata"], "ownerReferences": [lease_record.owner_reference(held)]}}


def _adopt_or_create(
    server: Client, plan: ManifestPlan, thing: KubeObject, dry_run: bool = False
) -> tuple[KubeObject, bool]:
    """The object, and whether it is new. Raises ClusterError if the name is taken, or the server refuses the object.

    A companion of a manifest is used as it is, whoever created it: a claim may be older than the run.
    """
    about = thing["metadata"]
    for last in (False, True):
        try:
            return server.create(thing, dry_run=dry_run), True
        except ClusterError as error:
            if error.status != 409:
                raise
        there = server.get(thing["apiVersion"], thing["kind"], about["name"], about.get("namespace", ""))
        if there and (is_own_object(plan, there) or etcd.is_companion_object(thing)):
            return there, False
        if there or last:  # otherwise it has gone meanwhile, and the name is free
            break
    said = "it exists and does not belong to this run"
    raise ClusterError(server.host, f"create {thing['kind']} {about['name']}", said, 409)


def is_own_object(plan: ManifestPlan, thing: KubeObject) -> bool:
    return plan.labels.items() <= (thing.get("metadata", {}).get("labels") or {}).items()


def _tie_store_to_job(server: Client, plan: ManifestPlan, job: KubeObject) -> None:
    """Make the job own the store, which then goes with it, whoever deletes the job."""
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": plan.job, "uid": job["metadata"]["uid"]}
    for thing in plan.store:
        there = server.get(thing["apiVersion"], thing["kind"], thing["metadata"]["name"])
        if there and is_own_object(plan, there):
            server.patch(thing, {"metadata": {"ownerReferences": [owner]}})


@retry_step(OUTAGE_TIMEOUT_S)
def create_store(plan: ManifestPlan) -> None:
    """Create the rendezvous store and wait until it is ready. Raises RendezvousError if it never will be."""
    server, held = get_cluster_client(plan.cluster), hold_lease(plan)
    for thing in plan.store:
        _, created = _adopt_or_create(server, plan, _add_owner(thing, held))
        if not created:
            get_log().info("%s %s already exists, and is used", thing["kind"], thing["metadata"]["name"])
    pods = {thing["metadata"]["name"] for thing in plan.store if thing["kind"] == "Pod"}
    until = time.monotonic() + _STORE_READY_TIMEOUT_S
    with ClusterWatch(plan) as watch:
        while waiting := [name for name in pods if not _is_pod_ready(plan, watch, name)]:
            if time.monotonic() > until:
                said = f"{', '.join(waiting)} not ready within {_STORE_READY_TIMEOUT_S:.0f} s"
                raise RendezvousError(str(plan.probe), said, f"kubectl describe pod {waiting[0]}", retry=True)
            watch.poll(_STORE_POLL_INTERVAL_S)


def _is_pod_ready(plan: ManifestPlan, watch: ClusterWatch, name: str) -> bool:
    """Whether a pod of the store is ready. Raises RendezvousError if it has ended or cannot start."""
    node = plan.node(name)
    pod = watch.seen.get(f"Pod/{node}")
    if pod is None:
        return False
    known = pod_reasons.find_pod_failure({node: pod}, time.time())
    if known or pod_facts.get_pod_exit_code(pod) is not None:
        said = _read_last_line(watch, node)
        sentence = known.sentence if known else f"{node} {pod_facts.describe_exit(pod_facts.get_pod_exit_code(pod))}"
        remedy = "use an etcd that serves the v2 API: 3.5 with --enable-v2 does, 3.6 does not (docs/etcd.md)"
        killed = known.retry if known else (pod_facts.get_pod_exit_code(pod) or 0) > 128
        raise RendezvousError(str(plan.probe), f"{sentence}; it said: {said}", remedy, retry=killed)
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _read_last_line(watch: ClusterWatch, node: str) -> str:
    """The last line of a pod that has ended, whose log may still be on its way."""
    until = time.monotonic() + _STORE_LOG_TIMEOUT_S
    while not watch.last_line(node) and time.monotonic() < until:
        watch.poll(_STORE_POLL_INTERVAL_S)
    watch.poll(_STORE_POLL_INTERVAL_S)
    return watch.last_line(node) or "nothing"
