"""Deletes a plan's objects from a cluster, waits until they are gone, and reports leftovers."""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, NamedTuple

from torchyard.cluster.create import is_own_object
from torchyard.common.local_errors import OUTAGE_TIMEOUT_S, retry_step
from torchyard.common.log import get_log
from torchyard.diagnosis import pod_facts
from torchyard.kube.client import Client, KubeObject, get_cluster_client
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.pods import lease_record
from torchyard.pods.template import ROLE_LABEL
from torchyard.pods.user_manifest import has_protected_data

GroupVersionKind = tuple[str, str]  # batch/v1, Job
_MAX_PARALLEL_REQUESTS = 8
REMOVAL_TIMEOUT_S = 60.0  # seconds that removal may take, besides the pods' own grace period
_REMOVAL_POLL_INTERVAL_S = 0.25
_CONTROLLER_KINDS = (("v1", "Service"), ("v1", "ConfigMap"))  # what controllers create beside the pods
_GC_FINALIZERS = ("foregroundDeletion", "orphan")  # finalizers that the garbage collector removes
# The cluster's own records about objects, and not objects of the run: they disappear by themselves.
_SKIPPED_RESOURCES = frozenset({"events", "endpoints", "endpointslices"})
_DISCOVERED_KINDS: dict[Client, tuple[GroupVersionKind, ...]] = {}


def delete_object(plan: ManifestPlan, obj: KubeObject) -> None:
    """Request the deletion of an object of the plan. An object of that name that is not the run's is not deleted."""
    client = get_cluster_client(plan.cluster)
    identity = (obj["apiVersion"], obj["kind"], obj["metadata"]["name"])
    existing = client.get(*identity)
    if existing and is_own_object(plan, existing) and not has_protected_data(obj | existing):
        client.delete(*identity)


def read_grace_period(plan: ManifestPlan) -> float:
    """The seconds between the SIGTERM and the SIGKILL that the plan's pods get; Kubernetes gives 30 by default."""
    return plan.pod["spec"].get("terminationGracePeriodSeconds") or 30


@retry_step(OUTAGE_TIMEOUT_S)
def delete_all_objects(plan: ManifestPlan) -> list[str]:
    """Delete the job and, once its pods are gone, its store and files; return a description of each leftover.

    A leftover is an object with the run's labels, or a kind that the run has created or watched and that may not be
    listed. Raises ClusterError if a request is refused for any other reason.
    """
    client = get_cluster_client(plan.cluster)
    delete_object(plan, plan.main)
    _await_removal(plan, _is_part_of_job)
    for obj in plan.dependencies:
        delete_object(plan, obj)
    _await_removal(plan)
    created_kinds = _list_created_kinds(plan)
    listing = list_labelled_objects(client, dict.fromkeys((*created_kinds, *list_kinds(client))), plan.labels)
    leftovers = [describe_leftover(obj) for obj in listing.objects]
    for kind in created_kinds:
        if kind in listing.refusals:
            leftovers.append(_describe_unlisted_kind(client, kind, listing.refusals[kind]))
    return leftovers


def _is_part_of_job(obj: KubeObject) -> bool:
    """Whether an object belongs to the job itself; the store and the files have a role."""
    return ROLE_LABEL not in (obj["metadata"].get("labels") or {})


def _list_created_kinds(plan: ManifestPlan) -> list[GroupVersionKind]:
    """The kinds that a run has created or watched by its labels, each once: their absence must be proven."""
    kinds = [(obj["apiVersion"], obj["kind"]) for obj in plan.admitted_objects if is_own_object(plan, obj)]
    kinds += _list_watched_kinds(plan)
    return list(dict.fromkeys(kinds))


def _list_watched_kinds(plan: ManifestPlan) -> list[GroupVersionKind]:
    """The watched kinds whose objects have the run's labels; objects of other kinds are deleted with their owner."""
    return [(watched.api, watched.kind) for watched in plan.watch if watched.owner_label is None]


def _describe_unlisted_kind(client: Client, kind: GroupVersionKind, reason: str) -> str:
    _, kind_name = kind
    location = f"{kind_name} in {client.namespace}"
    return (
        f"{location}: cannot be listed, so objects may remain: {reason}; deploy/kubernetes/rbac.yaml grants the right"
    )


def _await_removal(plan: ManifestPlan, is_awaited: Callable[[KubeObject], bool] | None = None) -> None:
    """Wait while objects of the plan are terminating, at most as long as their removal may take.

    Only objects for which `is_awaited` returns True are waited for; all by default. After that time, pods on dead nodes
    are force-deleted if the plan allows it, and other objects are left for the caller to report.
    """
    client = get_cluster_client(plan.cluster)
    kinds = dict.fromkeys(_list_watched_kinds(plan))
    kinds |= dict.fromkeys(_CONTROLLER_KINDS)
    deadline = time.monotonic() + read_grace_period(plan) + REMOVAL_TIMEOUT_S
    delay_s = _REMOVAL_POLL_INTERVAL_S
    while True:
        objects = _list_visible_objects(client, kinds, plan.labels)
        terminating = [obj for obj in objects if _is_terminating(obj) and (is_awaited is None or is_awaited(obj))]
        if not terminating:
            return
        if time.monotonic() > deadline:
            if plan.force_delete:
                force_delete_pods(client, terminating)
            return
        time.sleep(delay_s)
        delay_s = min(delay_s * 1.5, _REMOVAL_POLL_INTERVAL_S * 8)


def force_delete_pods(client: Client, objects: Iterable[KubeObject]) -> None:
    """Force-delete pods whose dead node cannot confirm their end. A pod on a live node may still run: it stays.

    A node that does not exist, or that this user may not read, counts as dead. Raises ClusterError if a node cannot be
    read for another reason: that pod and those after it stay.
    """
    for obj in objects:
        if obj["kind"] != "Pod" or _is_node_alive(client, obj["spec"].get("nodeName")):
            continue
        name = obj["metadata"]["name"]
        get_log().warning("pod %s is force-deleted: its node does not respond", name)
        client.delete("v1", "Pod", name, force=True)


def _is_node_alive(client: Client, name: str | None) -> bool:
    """Whether a node is known to be Ready; False for a node that does not exist or that this user may not read."""
    if not name:
        return False
    try:
        node = client.get("v1", "Node", name, namespace=None)
    except ClusterError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        return False
    conditions = pod_facts.get_mappings(node, "status", "conditions")
    return any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)


def _is_terminating(obj: KubeObject) -> bool:
    """Whether an object will disappear without a request: it is being deleted, or an owner other than the Lease is."""
    if obj["metadata"].get("deletionTimestamp"):
        return True
    owners = obj["metadata"].get("ownerReferences") or ()
    return any(owner["kind"] != lease_record.LEASE_KIND for owner in owners)


def describe_leftover(obj: KubeObject) -> str:
    """Kind, namespace and name of an object that remains and, if it is being deleted, what holds it and the remedy."""
    metadata = obj["metadata"]
    name = f"{obj['kind']} {metadata.get('namespace')}/{metadata['name']}"
    if not metadata.get("deletionTimestamp"):
        return name
    finalizers = [finalizer for finalizer in metadata.get("finalizers") or () if finalizer not in _GC_FINALIZERS]
    if finalizers:
        return f"{name}: its finalizer {', '.join(finalizers)} holds it; its controller must remove the finalizer"
    node = obj["spec"].get("nodeName") if obj["kind"] == "Pod" else None
    if node:
        remedy = "kubectl delete pod --force once the node is known to be dead"
        return f"{name}: node {node} does not confirm that the pod has ended; {remedy}"
    return name


# --- listing


class ListedObjects(NamedTuple):
    """The objects that a list returned, and the API server's message for each kind that it refused to list."""

    objects: list[KubeObject]
    refusals: dict[GroupVersionKind, str]


def list_labelled_objects(
    client: Client, kinds: Iterable[GroupVersionKind], labels: Mapping[str, str], *, everywhere: bool = False
) -> ListedObjects:
    """List the objects of some kinds that have `labels`; an empty value matches any.

    `everywhere`: in all namespaces, not only in the client's. A refusal with 403 or 405 is returned in `refusals`;
    ClusterError is raised for any other.
    """
    selector = ",".join(f"{key}={value}" if value else key for key, value in labels.items())
    params = {"labelSelector": selector}

    def list_kind(kind: GroupVersionKind) -> list[KubeObject] | ClusterError:
        try:
            return client.list(*kind, params, everywhere=everywhere)
        except ClusterError as error:
            if error.status not in (HTTPStatus.FORBIDDEN, HTTPStatus.METHOD_NOT_ALLOWED):
                raise
            return error

    requested_kinds = list(kinds)
    listing = ListedObjects([], {})
    with ThreadPoolExecutor(_MAX_PARALLEL_REQUESTS) as pool:
        for kind, response in zip(requested_kinds, pool.map(list_kind, requested_kinds), strict=True):
            if isinstance(response, ClusterError):
                listing.refusals[kind] = response.message
            else:
                listing.objects.extend(response)
    return listing


def _list_visible_objects(
    client: Client, kinds: Iterable[GroupVersionKind], labels: Mapping[str, str]
) -> list[KubeObject]:
    """The objects that this user may list."""
    return list_labelled_objects(client, kinds, labels).objects


def list_kinds(client: Client) -> tuple[GroupVersionKind, ...]:
    """Every namespaced kind that can be listed, in its preferred version.

    Queried once per process, and again the next time if a part of the API did not respond.
    """
    cached = _DISCOVERED_KINDS.get(client)
    if cached:
        return cached
    kinds, is_complete = _discover_kinds(client)
    if is_complete:
        _DISCOVERED_KINDS[client] = kinds
    return kinds


def _discover_kinds(client: Client) -> tuple[tuple[GroupVersionKind, ...], bool]:
    """The kinds that the API server reports, and whether the list is complete."""
    groups = client.request("GET", "/apis")["groups"]
    versions = ["v1"]
    versions += [group["preferredVersion"]["groupVersion"] for group in groups]

    def read_kinds(version: str) -> list[GroupVersionKind] | None:
        """The kinds of one API version; None if an aggregated API does not respond."""
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        try:
            resources: list[dict[str, Any]] = client.get_quick(path)["resources"]
        except ClusterError:
            return None
        return [(version, resource["kind"]) for resource in resources if _is_listable(resource)]

    kinds: list[GroupVersionKind] = []
    is_complete = True
    with ThreadPoolExecutor(_MAX_PARALLEL_REQUESTS) as pool:
        for version_kinds in pool.map(read_kinds, versions):
            if version_kinds is None:
                is_complete = False
            else:
                kinds += version_kinds
    return tuple(kinds), is_complete


def _is_listable(resource: dict[str, Any]) -> bool:
    """Whether a resource of the API discovery is namespaced, can be listed, and may belong to a run."""
    is_subresource = "/" in resource["name"]
    can_be_listed = resource["namespaced"] and "list" in resource["verbs"] and not is_subresource
    return can_be_listed and resource["name"] not in _SKIPPED_RESOURCES
