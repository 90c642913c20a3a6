"""Deletes a plan's objects from a cluster, waits until they are gone, and proves that nothing is left."""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from torchyard.cluster.create import is_own_object
from torchyard.common.local_errors import OUTAGE_TIMEOUT_S, retry_step
from torchyard.common.log import get_log
from torchyard.diagnosis import pod_facts
from torchyard.kube.client import Client, KubeObject, get_cluster_client
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.pods import lease_record
from torchyard.pods.template import ATTEMPT_KEY, ROLE_LABEL, RUN_LABEL
from torchyard.pods.user_manifest import has_protected_data

GroupVersionKind = tuple[str, str]  # batch/v1, Job
_MAX_PARALLEL_REQUESTS = 8
REMOVAL_TIMEOUT_S = 60.0  # seconds that removal may take, besides the pods' own grace period
_REMOVAL_POLL_INTERVAL_S = 0.25
_CONTROLLER_KINDS = (("v1", "Service"), ("v1", "ConfigMap"))  # what controllers create beside the pods
_PROPAGATION_FINALIZERS = ("foregroundDeletion", "orphan")  # finalizers that the garbage collector removes
# The cluster's own records about objects, and not objects of the run: they disappear by themselves.
_SKIPPED_RESOURCES = frozenset({"events", "endpoints", "endpointslices"})
_DISCOVERED_KINDS: dict[Client, tuple[GroupVersionKind, ...]] = {}


def delete_object(plan: ManifestPlan, obj: KubeObject) -> None:
    """Request the deletion of an object of the plan; one of the same name that is not the run's stays."""
    client, identity = get_cluster_client(plan.cluster), (obj["apiVersion"], obj["kind"], obj["metadata"]["name"])
    existing = client.get(*identity)
    if existing and is_own_object(plan, existing) and not has_protected_data({**obj, **existing}):
        client.delete(*identity)


def read_grace_period(plan: ManifestPlan) -> float:
    """The seconds between the SIGTERM and the SIGKILL that the plan's pods get; Kubernetes gives 30 by default."""
    return plan.pod["spec"].get("terminationGracePeriodSeconds") or 30


@retry_step(OUTAGE_TIMEOUT_S)
def delete_all_objects(plan: ManifestPlan) -> list[str]:
    """Delete the job and, once its pods are gone, its store and files; return what is left with their labels.

    A kind that the run has created or watched, and that may not be listed, counts as left.
    """
    client = get_cluster_client(plan.cluster)
    for obj in plan.store:
        disown_protected_data(client, client.get(obj["apiVersion"], obj["kind"], obj["metadata"]["name"]), plan.labels)
    delete_object(plan, plan.main)
    _await_removal(plan, lambda obj: ROLE_LABEL not in (obj["metadata"].get("labels") or {}))
    for obj in plan.dependencies:
        delete_object(plan, obj)
    _await_removal(plan, lambda obj: True)
    created_kinds = _list_created_kinds(plan)
    listing = list_labelled_objects(client, dict.fromkeys((*created_kinds, *list_kinds(client))), plan.labels)
    unlisted = [
        _describe_unlisted_kind(client, kind, listing.refusals[kind])
        for kind in created_kinds
        if kind in listing.refusals
    ]
    return [*(describe_leftover(obj) for obj in listing.objects), *unlisted]


def _list_created_kinds(plan: ManifestPlan) -> list[GroupVersionKind]:
    """The kinds that a run has created or watched: each must be proven to be gone."""
    objects = [obj for obj in plan.admitted_objects if is_own_object(plan, obj)]
    return list(
        dict.fromkeys(
            [*((obj["apiVersion"], obj["kind"]) for obj in objects), *((obj.api, obj.kind) for obj in plan.watch)]
        )
    )


def _describe_unlisted_kind(client: Client, kind: GroupVersionKind, reason: str) -> str:
    location = f"{kind[1]} in {client.namespace}"
    return f"{location}: cannot be seen, so may be left: {reason}; deploy/kubernetes/rbac.yaml has the rights"


def disown_protected_data(client: Client, obj: KubeObject | None, labels: Mapping[str, str]) -> None:
    """Remove the run's labels and owners from what holds data, so that neither we nor the garbage collector delete it.

    Only an earlier version has set them.
    """
    existing_labels = (obj or {}).get("metadata", {}).get("labels") or {}
    if obj and has_protected_data(obj) and labels.items() <= existing_labels.items():
        cleared_fields = {
            "labels": {key: None for key in (RUN_LABEL, ATTEMPT_KEY, ROLE_LABEL) if key in existing_labels},
            "ownerReferences": None,
        }
        client.patch(obj, {"metadata": cleared_fields})


def _await_removal(plan: ManifestPlan, is_awaited: Callable[[KubeObject], bool]) -> None:
    """Wait while an object of the plan that `counts` is terminating, at most for as long as removal may take."""
    client, delay_s = get_cluster_client(plan.cluster), _REMOVAL_POLL_INTERVAL_S
    kinds = {(watched.api, watched.kind): None for watched in plan.watch} | dict.fromkeys(_CONTROLLER_KINDS)
    deadline = time.monotonic() + read_grace_period(plan) + REMOVAL_TIMEOUT_S
    while terminating := [
        obj for obj in _list_visible_objects(client, kinds, plan.labels) if is_awaited(obj) and _is_terminating(obj)
    ]:
        if time.monotonic() > deadline:
            _force_delete_pods(client, terminating if plan.force_delete else [])
            return
        time.sleep(delay_s)
        delay_s = min(delay_s * 1.5, _REMOVAL_POLL_INTERVAL_S * 8)


def _force_delete_pods(client: Client, objects: Iterable[KubeObject]) -> None:
    """Force-delete pods whose dead node cannot confirm their end. A pod on a living node may still run: it stays."""
    pods = [obj for obj in objects if obj["kind"] == "Pod"]
    for pod in (pod for pod in pods if not _is_node_alive(client, pod["spec"].get("nodeName"))):
        get_log().warning("pod %s is deleted by force: its node does not answer", pod["metadata"]["name"])
        client.delete("v1", "Pod", pod["metadata"]["name"], force=True)


def _is_node_alive(client: Client, node: str | None) -> bool:
    """Whether a node is known to be Ready; nothing is known of one that this user may not read."""
    try:
        obj = client.get("v1", "Node", node, namespace=None) if node else None
    except ClusterError as error:
        if error.status != 403:
            raise
        return False
    conditions = pod_facts.get_mappings(obj, "status", "conditions")
    return any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)


def _is_terminating(obj: KubeObject) -> bool:
    """Whether an object will go by itself: it is being deleted, or its owner is (but the Lease stays)."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return bool(
        obj["metadata"].get("deletionTimestamp") or any(owner["kind"] != lease_record.LEASE_KIND for owner in owners)
    )


def describe_leftover(obj: KubeObject) -> str:
    """What is left, and what to do about it."""
    metadata = obj["metadata"]
    name = f"{obj['kind']} {metadata.get('namespace')}/{metadata['name']}"
    if not metadata.get("deletionTimestamp"):
        return name
    finalizers = [
        finalizer for finalizer in metadata.get("finalizers") or () if finalizer not in _PROPAGATION_FINALIZERS
    ]
    if finalizers:
        return f"{name}: its finalizer {', '.join(finalizers)} holds it; its controller must remove it"
    if obj["kind"] == "Pod" and (node := obj["spec"].get("nodeName")):
        return f"{name}: node {node} does not confirm its end; kubectl delete pod --force once the node is known dead"
    return name


# --- listing


class ListedObjects(NamedTuple):
    """The objects that were found, and why some kinds could not be seen."""

    objects: list[KubeObject]
    refusals: dict[GroupVersionKind, str]


def list_labelled_objects(
    client: Client, kinds: Iterable[GroupVersionKind], labels: Mapping[str, str], everywhere: bool = False
) -> ListedObjects:
    """Every object of some kinds that has the labels; an empty value matches any. A kind may be refused."""
    selector = ",".join(f"{key}={value}" if value else key for key, value in labels.items())

    def query(kind: GroupVersionKind) -> tuple[GroupVersionKind, list[KubeObject], str]:
        try:
            return kind, client.list(*kind, {"labelSelector": selector}, everywhere=everywhere), ""
        except ClusterError as error:
            if error.status in (403, 405):
                return kind, [], error.message
            raise

    with ThreadPoolExecutor(_MAX_PARALLEL_REQUESTS) as pool:
        responses = list(pool.map(query, kinds))
    return ListedObjects(
        [obj for _, objects, _ in responses for obj in objects],
        {kind: reason for kind, _, reason in responses if reason},
    )


def _list_visible_objects(
    client: Client, kinds: Iterable[GroupVersionKind], labels: Mapping[str, str]
) -> list[KubeObject]:
    """The objects that this user may see."""
    return list_labelled_objects(client, kinds, labels).objects


def list_kinds(client: Client) -> tuple[GroupVersionKind, ...]:
    """Every namespaced kind that can be listed, in its preferred version.

    Queried once per process, and again the next time if a part of the API did not answer.
    """
    if cached := _DISCOVERED_KINDS.get(client):
        return cached
    kinds, is_complete = _discover_kinds(client)
    if is_complete:
        _DISCOVERED_KINDS[client] = kinds
    return kinds


def _discover_kinds(client: Client) -> tuple[tuple[GroupVersionKind, ...], bool]:
    """The kinds that the API server reports, and whether the list is complete."""
    groups = client.request("GET", "/apis")["groups"]
    versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]

    def read_kinds(version: str) -> list[GroupVersionKind] | None:
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        try:
            resources: list[dict[str, Any]] = client.get_quick(path)["resources"]
        except ClusterError:
            return None  # an aggregated API whose server is down lists nothing
        return [(version, resource["kind"]) for resource in resources if _is_listable(resource)]

    with ThreadPoolExecutor(_MAX_PARALLEL_REQUESTS) as pool:
        responses = list(pool.map(read_kinds, versions))
    return tuple(kind for kinds in responses for kind in kinds or ()), None not in responses


def _is_listable(resource: dict[str, Any]) -> bool:
    can_be_listed = resource["namespaced"] and "list" in resource["verbs"] and "/" not in resource["name"]
    return can_be_listed and resource["name"] not in _SKIPPED_RESOURCES
