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


def delete_object(plan: ManifestPlan, thing: KubeObject) -> None:
    """Request the deletion of an object of the plan; one of the same name that is not the run's stays."""
    server, which = get_cluster_client(plan.cluster), (thing["apiVersion"], thing["kind"], thing["metadata"]["name"])
    there = server.get(*which)
    if there and is_own_object(plan, there) and not has_protected_data({**thing, **there}):
        server.delete(*which)


def read_grace_period(plan: ManifestPlan) -> float:
    """The seconds between the SIGTERM and the SIGKILL that the plan's pods get; Kubernetes gives 30 by default."""
    return plan.pod["spec"].get("terminationGracePeriodSeconds") or 30


@retry_step(OUTAGE_TIMEOUT_S)
def delete_all_objects(plan: ManifestPlan) -> list[str]:
    """Delete the job and, once its pods are gone, its store and files; return what is left with their labels.

    A kind that the run has created or watched, and that may not be listed, counts as left.
    """
    server = get_cluster_client(plan.cluster)
    for thing in plan.store:
        keep_data(server, server.get(thing["apiVersion"], thing["kind"], thing["metadata"]["name"]), plan.labels)
    delete_object(plan, plan.main)
    _await_gone(plan, lambda thing: ROLE_LABEL not in (thing["metadata"].get("labels") or {}))
    for thing in plan.dependencies:
        delete_object(plan, thing)
    _await_gone(plan, lambda thing: True)
    known = _list_created_kinds(plan)
    seen = list_labelled_objects(server, dict.fromkeys((*known, *list_kinds(server))), plan.labels)
    unseen = [_describe_unseen_kind(server, kind, seen.unseen[kind]) for kind in known if kind in seen.unseen]
    return [*(describe_leftover(thing) for thing in seen.things), *unseen]


def _list_created_kinds(plan: ManifestPlan) -> list[GroupVersionKind]:
    """The kinds that a run has created or watched: each must be proven to be gone."""
    things = [each for each in plan.admitted_objects if is_own_object(plan, each)]
    return list(
        dict.fromkeys(
            [*((each["apiVersion"], each["kind"]) for each in things), *((each.api, each.kind) for each in plan.watch)]
        )
    )


def _describe_unseen_kind(server: Client, kind: GroupVersionKind, why: str) -> str:
    where = f"{kind[1]} in {server.namespace}"
    return f"{where}: cannot be seen, so may be left: {why}; deploy/kubernetes/rbac.yaml has the rights"


def keep_data(server: Client, thing: KubeObject | None, labels: Mapping[str, str]) -> None:
    """Remove the run's labels and owners from what holds data, so that neither we nor the garbage collector delete it.

    Only an earlier version has set them.
    """
    worn = (thing or {}).get("metadata", {}).get("labels") or {}
    if thing and has_protected_data(thing) and labels.items() <= worn.items():
        nothing = {
            "labels": {key: None for key in (RUN_LABEL, ATTEMPT_KEY, ROLE_LABEL) if key in worn},
            "ownerReferences": None,
        }
        server.patch(thing, {"metadata": nothing})


def _await_gone(plan: ManifestPlan, counts: Callable[[KubeObject], bool]) -> None:
    """Wait while an object of the plan that `counts` is terminating, at most for as long as removal may take."""
    server, look = get_cluster_client(plan.cluster), _REMOVAL_POLL_INTERVAL_S
    mine = {(each.api, each.kind): None for each in plan.watch} | dict.fromkeys(_CONTROLLER_KINDS)
    until = time.monotonic() + read_grace_period(plan) + REMOVAL_TIMEOUT_S
    while going := [
        each for each in _list_visible_objects(server, mine, plan.labels) if counts(each) and _is_terminating(each)
    ]:
        if time.monotonic() > until:
            _force_delete_pods(server, going if plan.force_delete else [])
            return
        time.sleep(look)
        look = min(look * 1.5, _REMOVAL_POLL_INTERVAL_S * 8)


def _force_delete_pods(server: Client, things: Iterable[KubeObject]) -> None:
    """Force-delete pods whose dead node cannot confirm their end. A pod on a living node may still run: it stays."""
    pods = [each for each in things if each["kind"] == "Pod"]
    for pod in (each for each in pods if not _is_node_alive(server, each["spec"].get("nodeName"))):
        get_log().warning("pod %s is deleted by force: its node does not answer", pod["metadata"]["name"])
        server.delete("v1", "Pod", pod["metadata"]["name"], force=True)


def _is_node_alive(server: Client, node: str | None) -> bool:
    """Whether a node is known to be Ready; nothing is known of one that this user may not read."""
    try:
        found = server.get("v1", "Node", node, namespace=None) if node else None
    except ClusterError as error:
        if error.status != 403:
            raise
        return False
    conditions = pod_facts.get_mappings(found, "status", "conditions")
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _is_terminating(thing: KubeObject) -> bool:
    """Whether an object will go by itself: it is being deleted, or its owner is (but the Lease stays)."""
    owners = thing["metadata"].get("ownerReferences") or ()
    return bool(
        thing["metadata"].get("deletionTimestamp") or any(each["kind"] != lease_record.LEASE_KIND for each in owners)
    )


def describe_leftover(thing: KubeObject) -> str:
    """What is left, and what to do about it."""
    about = thing["metadata"]
    name = f"{thing['kind']} {about.get('namespace')}/{about['name']}"
    if not about.get("deletionTimestamp"):
        return name
    held = [each for each in about.get("finalizers") or () if each not in _PROPAGATION_FINALIZERS]
    if held:
        return f"{name}: its finalizer {', '.join(held)} holds it; its controller must remove it"
    if thing["kind"] == "Pod" and (node := thing["spec"].get("nodeName")):
        return f"{name}: node {node} does not confirm its end; kubectl delete pod --force once the node is known dead"
    return name


# --- listing


class ListedObjects(NamedTuple):
    """The objects that were found, and why some kinds could not be seen."""

    things: list[KubeObject]
    unseen: dict[GroupVersionKind, str]


def list_labelled_objects(
    server: Client, which: Iterable[GroupVersionKind], labels: Mapping[str, str], everywhere: bool = False
) -> ListedObjects:
    """Every object of some kinds that has the labels; an empty value matches any. A kind may be refused."""
    selector = ",".join(f"{key}={value}" if value else key for key, value in labels.items())

    def ask(kind: GroupVersionKind) -> tuple[GroupVersionKind, list[KubeObject], str]:
        try:
            return kind, server.list(*kind, {"labelSelector": selector}, everywhere=everywhere), ""
        except ClusterError as error:
            if error.status in (403, 405):
                return kind, [], error.message
            raise

    with ThreadPoolExecutor(_MAX_PARALLEL_REQUESTS) as pool:
        answers = list(pool.map(ask, which))
    return ListedObjects(
        [each for _, things, _ in answers for each in things], {kind: why for kind, _, why in answers if why}
    )


def _list_visible_objects(
    server: Client, which: Iterable[GroupVersionKind], labels: Mapping[str, str]
) -> list[KubeObject]:
    """The objects that this user may see."""
    return list_labelled_objects(server, which, labels).things


def list_kinds(server: Client) -> tuple[GroupVersionKind, ...]:
    """Every namespaced kind that can be listed, in its preferred version.

    Queried once per process, and again the next time if a part of the API did not answer.
    """
    if known := _DISCOVERED_KINDS.get(server):
        return known
    each, whole = _discover_kinds(server)
    if whole:
        _DISCOVERED_KINDS[server] = each
    return each


def _discover_kinds(server: Client) -> tuple[tuple[GroupVersionKind, ...], bool]:
    """The kinds that the API server reports, and whether the list is complete."""
    groups = server.request("GET", "/apis")["groups"]
    versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]

    def read(version: str) -> list[GroupVersionKind] | None:
        path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        try:
            resources: list[dict[str, Any]] = server.get_quick(path)["resources"]
        except ClusterError:
            return None  # an aggregated API whose server is down lists nothing
        return [(version, each["kind"]) for each in resources if _is_listable(each)]

    with ThreadPoolExecutor(_MAX_PARALLEL_REQUESTS) as pool:
        answers = list(pool.map(read, versions))
    return tuple(kind for some in answers for kind in some or ()), None not in answers


def _is_listable(resource: dict[str, Any]) -> bool:
    wanted = resource["namespaced"] and "list" in resource["verbs"] and "/" not in resource["name"]
    return wanted and resource["name"] not in _SKIPPED_RESOURCES
