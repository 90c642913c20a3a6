"""Creates a plan's objects in a cluster, or adopts existing ones by name."""

import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from torchyard.cluster import code_upload, lease
from torchyard.cluster.checks.admission import find_deleting_run
from torchyard.cluster.checks.permissions import list_missing_rights
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.cluster.lease_renewal import hold_lease
from torchyard.cluster.listing import is_own_object
from torchyard.code.archive import read_archive
from torchyard.code.object_store import publish_archive
from torchyard.common.local_errors import OUTAGE_TIMEOUT_S, retry_step
from torchyard.common.log import get_log
from torchyard.diagnosis import pod_facts, pod_reasons
from torchyard.diagnosis.pod_facts import RUN_LABEL
from torchyard.kube.client import Client, KubeObject, get_cluster_client
from torchyard.model.errors import ClusterError, CodeError, RendezvousError
from torchyard.model.plan import ManifestPlan, StagedCode
from torchyard.pods import etcd, lease_record
from torchyard.pods.code.unpacking import add_archive, add_url, is_code_map
from torchyard.pods.code.upload import is_code_upload
from torchyard.pods.optional_objects import find_optional_object

_STORE_READY_TIMEOUT_S = 300.0  # seconds, including the pull of its image
_STORE_POLL_INTERVAL_S = 0.25
_STORE_LOG_TIMEOUT_S = 2.0
_LATE_POD_WARNING = "pods that start later will fail: %s"
_FORBIDDEN = "this user may not create and delete the {kind}; role {role} of deploy/kubernetes/rbac.yaml grants it"


def resolve_cluster(plan: ManifestPlan) -> ManifestPlan:
    """The plan with the cluster and namespace that the kubeconfig selects now, so that later processes use the same."""
    return plan.model_copy(update={"cluster": get_cluster_client(plan.cluster).cluster})


@retry_step(OUTAGE_TIMEOUT_S)
def drop_forbidden_objects(plan: ManifestPlan) -> ManifestPlan:
    """The plan without optional objects that this user may not create, so that no later step expects them."""
    client = get_cluster_client(plan.cluster)
    forbidden: list[KubeObject] = []
    for obj in plan.dependencies:
        optional = find_optional_object(obj)
        if optional is None or not list_missing_rights(client, [(verb, optional.resource) for verb in optional.verbs]):
            continue
        get_log().warning("%s: %s", optional.loss, _FORBIDDEN.format(kind=obj["kind"], role=optional.rbac_role))
        forbidden.append(obj)
    if not forbidden:
        return plan
    store = tuple(obj for obj in plan.store if obj not in forbidden)
    objects = tuple(obj for obj in plan.objects if obj not in forbidden)
    return plan.model_copy(update={"store": store, "objects": objects})


# --- creating


def create_job(plan: ManifestPlan, *, was_submitted: bool = False) -> tuple[KubeObject, bool]:
    """Create the job or find it; return it, and whether it is new.

    A dry run of all objects but the first comes first, so that nothing is created if the API server would refuse one
    of them. A job that this run has submitted before and that is gone is not created again: another user has deleted
    it.

    `was_submitted`: this machine has recorded the submit; the Lease may have been deleted since, and its record too.

    Raises RunInUseError if another living process owns the run, ClusterError if an object is refused.
    """
    client = get_cluster_client(plan.cluster)
    run_lease = hold_lease(plan)
    if was_submitted and not lease_record.is_submitted(run_lease):
        lease.record_submission(plan)
    if was_submitted or lease_record.is_submitted(run_lease):
        return _attach_to_job(client, plan, run_lease), False
    objects = [add_owner(obj, run_lease) for obj in _add_code(client, plan, may_lack_it=False)]
    for obj in objects[1:]:
        adopt_or_create(client, plan, obj, dry_run=True)
    results = [adopt_or_create(client, plan, obj) for obj in objects]
    job, created = results[-1]  # the job is the last object of a plan
    lease.record_submission(plan)
    _tie_store_to_job(client, plan, job)
    return job, created


def _attach_to_job(client: Client, plan: ManifestPlan, run_lease: KubeObject) -> KubeObject:
    """The submitted job; as the plan has it if it is gone, also if its name belongs to another owner by now.

    The job needs neither the right nor the room to be created again. Other objects of it that are gone are created
    again, for pods that start later; a refusal of these is a warning.
    """
    job = client.get(plan.main["apiVersion"], plan.main["kind"], plan.job)
    if job is None or not is_own_object(plan, job):
        return plan.main
    for obj in _add_code(client, plan, may_lack_it=True)[:-1]:
        try:
            adopt_or_create(client, plan, add_owner(obj, run_lease))
        except ClusterError as error:
            if error.is_transient:
                raise
            get_log().warning(_LATE_POD_WARNING, error)
    _tie_store_to_job(client, plan, job)
    return job


def _add_code(client: Client, plan: ManifestPlan, *, may_lack_it: bool) -> list[KubeObject]:
    """The plan's objects, with the archive in the ConfigMap for code, or its URL; unchanged if it is on a volume.

    If neither this machine nor the store has the archive, the ConfigMap is left out if the machine that has it has
    created it; also with `may_lack_it`, for a job whose pods have their code. Else that is a CodeError.
    """
    objects: list[KubeObject] = []
    for obj in plan.objects:
        if plan.code is None or plan.code.claim or not is_code_map(obj):
            objects.append(obj)
            continue
        try:
            objects.append(_fill_code_map(plan.code, obj))
        except CodeError as error:
            # Looked for only now: to know that an object does not exist takes seconds (torchyard/kube/absence.py).
            existing = client.get(obj["apiVersion"], obj["kind"], obj["metadata"]["name"])
            if existing is not None and is_own_object(plan, existing):
                continue
            if not may_lack_it:
                raise
            get_log().warning(_LATE_POD_WARNING, error)
    return objects


def _fill_code_map(code: StagedCode, code_map: KubeObject) -> KubeObject:
    """The ConfigMap for code with the archive or, if that is too large, with its URL in the store. CodeError."""
    if code.url:
        return add_url(code_map, publish_archive(code))
    return add_archive(code_map, read_archive(code))


def add_owner(obj: KubeObject, run_lease: KubeObject) -> KubeObject:
    """The object with the run's Lease as its owner; unchanged if it is not the run's, such as one that holds data."""
    if RUN_LABEL not in (obj["metadata"].get("labels") or {}):
        return obj
    metadata = obj["metadata"] | {"ownerReferences": [lease_record.owner_reference(run_lease)]}
    return obj | {"metadata": metadata}


def adopt_or_create(
    client: Client, plan: ManifestPlan, obj: KubeObject, *, dry_run: bool = False
) -> tuple[KubeObject, bool]:
    """Create an object or find it; return it, and whether it is new.

    An object that exists is looked for after any refusal: admission, such as that of a quota, refuses it before the API
    server finds that its name is taken. A companion of a manifest is used unchanged, also one of another owner: a claim
    may be older than the run. One that another run deletes at its end is not used. Raises ClusterError if the name
    belongs to another run, or the server refuses the object.
    """
    metadata = obj["metadata"]
    message = "it exists and does not belong to this run"
    for is_last_try in (False, True):
        try:
            return client.create(obj, dry_run=dry_run), True
        except ClusterError as error:
            if error.is_transient:
                raise
            refusal = error
        existing = _find_refused(client, obj, refusal)
        if existing and is_own_object(plan, existing):
            return existing, False
        if existing and etcd.is_companion_object(obj):
            deleting_run = find_deleting_run(plan, obj | existing)
            if deleting_run is None:
                return existing, False
            message = f"it belongs to the run {deleting_run}, which deletes it at its end"
        if existing:
            break
        if is_last_try or refusal.status != HTTPStatus.CONFLICT:
            raise refusal  # also a conflict about something else than the name, which is free, such as a quota
    raise ClusterError(client.host, f"create {obj['kind']} {metadata['name']}", message, HTTPStatus.CONFLICT)


def _find_refused(client: Client, obj: KubeObject, refusal: ClusterError) -> KubeObject | None:
    """The existing object with the name of a refused one; None if it is proven that there is none.

    Raises `refusal` if this user may not read it.
    """
    metadata = obj["metadata"]
    try:
        return client.get(obj["apiVersion"], obj["kind"], metadata["name"], metadata.get("namespace", ""))
    except ClusterError as error:
        if error.status == HTTPStatus.FORBIDDEN:
            raise refusal from error
        raise


def _tie_store_to_job(client: Client, plan: ManifestPlan, job: KubeObject) -> None:
    """Make the job own the store, which is then deleted with the job, also by another user."""
    owner = {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": plan.job, "uid": job["metadata"]["uid"]}
    for obj in plan.store:
        existing = client.get(obj["apiVersion"], obj["kind"], obj["metadata"]["name"])
        if existing is None or not is_own_object(plan, existing):
            continue
        owner_uids = [reference.get("uid") for reference in existing["metadata"].get("ownerReferences") or []]
        if owner["uid"] not in owner_uids:
            client.patch(obj, {"metadata": {"ownerReferences": [owner]}})


@retry_step(OUTAGE_TIMEOUT_S)
def create_store(plan: ManifestPlan) -> None:
    """Create what the job needs before it, wait until its pods are ready, and send the code to the one for it.

    That is the rendezvous store, the companions of a manifest, and the pod that brings the code to a claim. Raises
    RendezvousError, or CodeError of that pod, if a pod is not ready within `_STORE_READY_TIMEOUT_S` of observation, has
    ended, or cannot start.
    """
    client = get_cluster_client(plan.cluster)
    run_lease = hold_lease(plan)
    for obj in plan.store:
        _, created = adopt_or_create(client, plan, add_owner(obj, run_lease))
        if not created:
            get_log().info("using existing %s %s", obj["kind"], obj["metadata"]["name"])
    pods = [obj for obj in plan.store if obj["kind"] == "Pod"]
    if not pods:
        return
    observed_s = 0.0
    with ClusterWatch(plan) as watch:
        while True:
            waiting = [pod["metadata"]["name"] for pod in pods if not _is_pod_ready(plan, watch, pod)]
            if not waiting:
                break
            if observed_s > _STORE_READY_TIMEOUT_S:
                message = f"{', '.join(waiting)} not ready within {_STORE_READY_TIMEOUT_S:.0f} s"
                raise RendezvousError(
                    plan.probe or waiting[0], message, f"kubectl describe pod {waiting[0]}", retry=True
                )
            started_at = time.monotonic()
            watch.poll(timeout_s=_STORE_POLL_INTERVAL_S)
            if watch.is_fully_observed():  # during an outage a pod may become ready unseen
                observed_s += time.monotonic() - started_at
        for pod in filter(is_code_upload, pods):
            if plan.code and not _has_ended_well(watch.states[_get_key(plan, pod)]):
                code_upload.send_code(client, plan.code, pod["metadata"]["name"])


def _get_key(plan: ManifestPlan, pod: KubeObject) -> str:
    """The key of a pod of the store among the states of a watch."""
    return f"Pod/{plan.node(pod['metadata']['name'])}"


def _has_ended_well(pod: Mapping[str, Any]) -> bool:
    """Whether a pod has ended with 0, as the one for code does once it has received it."""
    return pod_facts.get_pod_exit_code(pod) == 0


def _is_pod_ready(plan: ManifestPlan, watch: ClusterWatch, store_pod: KubeObject) -> bool:
    """Whether a pod of the store is ready, or is for code and has received it.

    Raises RendezvousError, or CodeError of the pod for code, if it has ended otherwise or cannot start.
    """
    name = store_pod["metadata"]["name"]
    node = plan.node(name)
    pod = watch.states.get(_get_key(plan, store_pod))
    if pod is None:
        return False
    if is_code_upload(store_pod) and _has_ended_well(pod):
        return True
    failure = pod_reasons.find_pod_failure({node: pod}, watch.now())
    exit_code = pod_facts.get_pod_exit_code(pod)
    if failure:
        sentence = failure.sentence
        is_retryable = failure.retry
    elif exit_code is not None:
        sentence = f"{node} {pod_facts.describe_exit(exit_code)}"
        is_retryable = pod_facts.normalize_exit_code(exit_code) < 0
    else:
        conditions = pod.get("status", {}).get("conditions") or ()
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    last_line = _read_last_line(watch, node)
    log_text = f"last line of its log: {last_line}" if last_line else "its log is empty"
    if is_code_upload(store_pod):
        raise CodeError(f"in pod {name}", f"{sentence}; {log_text}", code_upload.UPLOAD_REMEDY)
    remedy = "use an etcd that serves the v2 API: 3.5 with --enable-v2 does, 3.6 does not (docs/etcd.md)"
    raise RendezvousError(plan.probe or name, f"{sentence}; {log_text}", remedy, retry=is_retryable)


def _read_last_line(watch: ClusterWatch, node: str) -> str:
    """The last line that a pod of the store has logged; empty if none arrives within `_STORE_LOG_TIMEOUT_S`.

    The pod has ended, but its log may still arrive.
    """
    deadline = time.monotonic() + _STORE_LOG_TIMEOUT_S
    while not watch.last_line(node) and time.monotonic() < deadline:
        watch.poll(timeout_s=_STORE_POLL_INTERVAL_S)
    watch.poll(timeout_s=_STORE_POLL_INTERVAL_S)
    return watch.last_line(node)
