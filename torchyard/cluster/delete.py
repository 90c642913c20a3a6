"""Deletes a plan's objects from a cluster, waits until they are gone, and reports leftovers.

Ownership. Right before each deletion the API server proves that no other process owns the run
(`lease.confirm_ownership`), and the deletion names the uid of the object that was read. Only the deletion of all pods
of a job by a few requests cannot name uids: it is sent once their owner is being deleted, so they are lost already.

Orphans. Another user may delete the job and leave its pods, as the API does by default with a Job of batch/v1. Then no
object owns them and no controller ends them, so they are deleted one by one.

Proof. "Nothing remains" needs every kind of the plan: the plan's own objects are read by name, and all kinds are listed
twice, while their removal is awaited and after that, because one list proves nothing. An object whose deletion was
accepted, also in an earlier stop by this process, is gone once one reading lacks it; any other absence takes two,
seconds apart. What cannot be read is an error or a leftover.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus

from torchyard.cluster import lease
from torchyard.cluster.listing import GroupVersionKind, format_selector, is_own_object, list_labelled_objects
from torchyard.common.local_errors import OUTAGE_TIMEOUT_S, retry_step
from torchyard.common.log import get_log
from torchyard.diagnosis import pod_facts
from torchyard.kube.client import Client, KubeObject, get_cluster_client
from torchyard.kube.per_client import PerClient
from torchyard.model.errors import ClusterError, NotFoundError
from torchyard.model.plan import ManifestPlan
from torchyard.pods import lease_record
from torchyard.pods.user_manifest import has_protected_data

REMOVAL_TIMEOUT_S = 60.0  # seconds that removal may take, besides the pods' own grace period
_REMOVAL_POLL_INTERVAL_S = 0.25
_SHORTEST_GRACE_S = 1  # with 0 the pod would disappear before its processes
_END_THREADS = 8
_MAX_COLLECTIONS = 4  # parallel requests that delete pods: the server deletes the pods of each one after the other
_MIN_COLLECTION = 16  # pods that one of them deletes, at least
_MAX_SELECTOR_CHARS = 4000  # of a selector in an address, which proxies limit to 8,000
_NODE_ROLE_HINT = "role torchyard-look of deploy/kubernetes/rbac.yaml grants it"
_GC_FINALIZERS = ("foregroundDeletion", "orphan")  # finalizers that the garbage collector removes
# The objects whose deletion the API server has accepted from this process: a stop deletes the job before a teardown.
_ACCEPTED = PerClient(lambda _: set[tuple[str, str, str, str]]())


def delete_object(plan: ManifestPlan, obj: KubeObject) -> bool:
    """Request the deletion of an object of the plan; return whether the API server has accepted it.

    It has not if there is no such object, or if the one of that name is not the run's. Raises RunInUseError if another
    process owns the run.
    """
    client = get_cluster_client(plan.cluster)
    identity = (obj["apiVersion"], obj["kind"], obj["metadata"]["name"])
    try:
        existing = client.request("GET", client.path(*identity))
    except NotFoundError:  # one reading: the proof comes at the end
        return False
    if not is_own_object(plan, existing) or has_protected_data(obj | existing):
        return False
    is_accepted = client.delete(existing, confirm_ownership=partial(lease.confirm_ownership, plan))
    if is_accepted:
        _ACCEPTED.get(client).add((_format_attempt(plan), *identity))
    return is_accepted


def _format_attempt(plan: ManifestPlan) -> str:
    """The attempt of a run that a plan is for: the next one may have objects of the same names."""
    return format_selector(plan.labels)


def stop_job(plan: ManifestPlan) -> None:
    """Request the deletion of the job and, where another user has deleted it and left them, of its pods.

    Raises RunInUseError if another process owns the run.
    """
    if not delete_object(plan, plan.main):
        client = get_cluster_client(plan.cluster)
        kinds = (*_list_watched_kinds(plan), *_list_made_kinds(plan))
        _delete_orphans(plan, list_labelled_objects(client, kinds, plan.labels).objects)


def _delete_orphans(plan: ManifestPlan, objects: Iterable[KubeObject]) -> None:
    """Delete the orphans among the listed objects, and report each."""
    client = get_cluster_client(plan.cluster)
    for obj in objects:
        if _is_orphan(plan, obj):
            get_log().warning("%s %s has lost its owner: it is deleted", obj["kind"], obj["metadata"]["name"])
            client.delete(obj, confirm_ownership=partial(lease.confirm_ownership, plan))


def _is_orphan(plan: ManifestPlan, obj: KubeObject) -> bool:
    """Whether controllers made an object with the run's labels for the job, and no object owns it any more.

    A copy that a user has made of a pod, to debug it, has a name of its own.
    """
    metadata = obj["metadata"]
    if metadata.get("ownerReferences") or metadata.get("deletionTimestamp") or not _is_part_of_job(obj):
        return False
    own_names = {(own["kind"], own["metadata"]["name"]) for own in (*plan.objects, *plan.store)}
    return metadata["name"].startswith(f"{plan.job}-") and (obj["kind"], metadata["name"]) not in own_names


def read_grace_period(plan: ManifestPlan) -> float:
    """The seconds between the SIGTERM and the SIGKILL that the plan's pods get; Kubernetes gives 30 by default."""
    return plan.pod["spec"].get("terminationGracePeriodSeconds") or 30


@retry_step(OUTAGE_TIMEOUT_S)
def delete_all_objects(plan: ManifestPlan) -> list[str]:
    """Delete the job and, once its pods are gone, its store and files; return a description of each leftover.

    A leftover is an object with the run's labels of a kind that the run or the job's controllers create, or a kind that
    the run has created or watched and that may not be listed. Raises ClusterError if a request is refused for any other
    reason.
    """
    deadline = time.monotonic() + read_grace_period(plan) + REMOVAL_TIMEOUT_S
    delete_object(plan, plan.main)
    all_kinds = dict.fromkeys((*_list_created_kinds(plan), *_list_made_kinds(plan)))
    occupied_kinds = _await_removal(plan, all_kinds, _is_part_of_job)
    for obj in plan.dependencies:
        delete_object(plan, obj)
    if plan.dependencies or plan.force_delete:  # the job itself remains until its pods are deleted by force
        dependency_kinds = [(obj["apiVersion"], obj["kind"]) for obj in plan.dependencies]
        occupied_kinds = _await_removal(plan, dict.fromkeys((*occupied_kinds, *dependency_kinds)))
    if occupied_kinds:
        leftovers = _list_leftovers(plan, deadline)
        if leftovers:
            return leftovers
    remaining = _await_own_objects(plan)
    return [_describe_leftover_of(plan, obj) for obj in remaining] or _list_leftovers(plan, deadline)


def _list_leftovers(plan: ManifestPlan, deadline: float) -> list[str]:
    """A description of each object that a list of its kind contains, and of each kind that may not be listed.

    A controller that has not noticed the job's deletion may create an object for it after the wait for its objects. The
    garbage collector deletes it, so it is waited for until `deadline`, in monotonic seconds.
    """
    client = get_cluster_client(plan.cluster)
    created_kinds = _list_created_kinds(plan)
    kinds = dict.fromkeys((*created_kinds, *_list_made_kinds(plan)))
    listing = list_labelled_objects(client, kinds, plan.labels)
    while any(map(_is_terminating, listing.objects)) and time.monotonic() < deadline:
        time.sleep(_REMOVAL_POLL_INTERVAL_S)
        listing = list_labelled_objects(client, kinds, plan.labels)
    leftovers = [_describe_leftover_of(plan, obj) for obj in listing.objects]
    for kind in created_kinds:
        if kind in listing.refusals:
            leftovers.append(describe_unlisted_kind(client, kind, listing.refusals[kind]))
    return leftovers


def _await_own_objects(plan: ManifestPlan) -> list[KubeObject]:
    """The plan's own objects that exist, once none of them is being deleted, or their removal has taken too long.

    A list that lacked one of them may have been wrong, so that nothing has waited for it yet.
    """
    deadline = time.monotonic() + REMOVAL_TIMEOUT_S
    while True:
        objects = _read_own_objects(plan)
        is_any_terminating = any(obj["metadata"].get("deletionTimestamp") for obj in objects)
        if not is_any_terminating or time.monotonic() > deadline:
            return objects
        time.sleep(_REMOVAL_POLL_INTERVAL_S)


def _read_own_objects(plan: ManifestPlan) -> list[KubeObject]:
    """The plan's own objects that exist, read by name: the job and all that its pods use."""
    client = get_cluster_client(plan.cluster)
    accepted = _ACCEPTED.get(client)
    attempt = _format_attempt(plan)
    names: dict[GroupVersionKind, list[str]] = {}
    for obj in (*plan.objects, *plan.store):
        names.setdefault((obj["apiVersion"], obj["kind"]), []).append(obj["metadata"]["name"])
    own_objects: list[KubeObject] = []

    def read_kind(kind: GroupVersionKind) -> Iterable[KubeObject]:
        deleted_names = {name for name in names[kind] if (attempt, *kind, name) in accepted}
        return client.get_all(*kind, names[kind], deleted_names).values()

    with ThreadPoolExecutor(len(names)) as pool:
        for objects in pool.map(read_kind, names):
            own_objects += [obj for obj in objects if is_own_object(plan, obj)]
    return own_objects


def _is_part_of_job(obj: KubeObject) -> bool:
    """Whether an object belongs to the job itself; the store and the files have a role."""
    return pod_facts.ROLE_LABEL not in (obj["metadata"].get("labels") or {})


def _list_created_kinds(plan: ManifestPlan) -> list[GroupVersionKind]:
    """The kinds that a run has created or watched by its labels, each once: their absence must be proven."""
    kinds = [(obj["apiVersion"], obj["kind"]) for obj in plan.admitted_objects if is_own_object(plan, obj)]
    kinds += _list_watched_kinds(plan)
    return list(dict.fromkeys(kinds))


def _list_watched_kinds(plan: ManifestPlan) -> list[GroupVersionKind]:
    """The watched kinds whose objects have the run's labels; objects of other kinds are deleted with their owner."""
    return [(watched.api, watched.kind) for watched in plan.watch if watched.owner_label is None]


def _list_made_kinds(plan: ManifestPlan) -> list[GroupVersionKind]:
    """The kinds of the objects that controllers make for the job, besides those that are watched."""
    return [(made.api, made.kind) for made in plan.made]


def describe_unlisted_kind(client: Client, kind: GroupVersionKind, reason: str) -> str:
    """The leftover of a kind that this user may not list: objects of it may remain."""
    _, kind_name = kind
    location = f"{kind_name} in {client.namespace}"
    return (
        f"{location}: cannot be listed, so objects may remain: {reason}; deploy/kubernetes/rbac.yaml grants the right"
    )


def _await_removal(
    plan: ManifestPlan, kinds: Iterable[GroupVersionKind], is_awaited: Callable[[KubeObject], bool] | None = None
) -> list[GroupVersionKind]:
    """Wait while objects of the plan are terminating, at most as long as their removal may take.

    Objects of `kinds` are waited for if `is_awaited` returns True; all by default. Orphans are deleted. After that
    time, pods on dead nodes are force-deleted if the plan allows it, and other objects are left for the caller to
    report. Returns the kinds whose last list was not empty, or was refused.
    """
    client = get_cluster_client(plan.cluster)
    deadline = time.monotonic() + read_grace_period(plan) + REMOVAL_TIMEOUT_S
    delay_s = _REMOVAL_POLL_INTERVAL_S
    refused_kinds: list[GroupVersionKind] = []
    while True:
        listing = list_labelled_objects(client, kinds, plan.labels, is_metadata_enough=True)
        refused_kinds += listing.refusals
        _delete_orphans(plan, listing.objects)
        kinds = list(dict.fromkeys((obj["apiVersion"], obj["kind"]) for obj in listing.objects))
        terminating = []
        for obj in listing.objects:
            if (_is_terminating(obj) or _is_orphan(plan, obj)) and (is_awaited is None or is_awaited(obj)):
                terminating.append(obj)
        if not terminating:
            return refused_kinds + kinds
        if time.monotonic() > deadline:
            if plan.force_delete:
                terminating_uids = {obj["metadata"]["uid"] for obj in terminating}
                pods = list_labelled_objects(client, [("v1", "Pod")], plan.labels).objects
                stuck_pods = [pod for pod in pods if pod["metadata"]["uid"] in terminating_uids]
                force_delete_pods(client, stuck_pods, partial(lease.confirm_ownership, plan))
            return refused_kinds + kinds
        delete_owned_pods(client, plan.labels, listing.objects, partial(lease.confirm_ownership, plan))
        time.sleep(delay_s)
        delay_s = min(delay_s * 1.5, _REMOVAL_POLL_INTERVAL_S * 8)


def delete_owned_pods(
    client: Client,
    labels: Mapping[str, str],
    objects: Sequence[KubeObject],
    confirm_ownership: Callable[[], object],
) -> None:
    """Delete the pods of owners that are being deleted, by a few requests: the garbage collector sends one for each.

    `objects`: the objects with `labels` as they are now, with their kinds. `confirm_ownership`: see `Client.delete`.
    Nothing is sent if a pod of the job (a store's has a role) has another owner: it is not known to be the run's, or a
    controller would replace it. A refusal is ignored, because the garbage collector deletes the same pods.
    """
    deleted_uids = set()
    for obj in objects:
        if obj["metadata"].get("deletionTimestamp"):
            deleted_uids.add(obj["metadata"]["uid"])
    label_sets: list[Mapping[str, str]] = []  # of the pods to delete
    for obj in objects:
        is_job_pod = obj["kind"] == "Pod" and pod_facts.ROLE_LABEL not in (obj["metadata"].get("labels") or {})
        if is_job_pod and not obj["metadata"].get("deletionTimestamp"):
            owner_uids = {owner.get("uid") for owner in pod_facts.get_mappings(obj, "metadata", "ownerReferences")}
            if not owner_uids & deleted_uids:
                return
            label_sets.append(obj["metadata"]["labels"])
    if not label_sets:
        return
    selectors = [format_selector(labels), f"!{pod_facts.ROLE_LABEL}"]

    def delete_share(selector: str) -> None:
        query = {"labelSelector": ",".join([*selectors, selector] if selector else selectors)}
        try:
            client.delete_collection("v1", "Pod", query, confirm_ownership)
        except ClusterError as error:
            if error.status not in (HTTPStatus.FORBIDDEN, HTTPStatus.METHOD_NOT_ALLOWED):
                raise

    with ThreadPoolExecutor(_MAX_COLLECTIONS) as pool:
        list(pool.map(delete_share, split_pods(label_sets)))  # `list` raises a thread's error


def split_pods(label_sets: Sequence[Mapping[str, str]]) -> list[str]:
    """Label selectors that select disjoint shares of the pods with these labels, all pods together, also new ones.

    One empty selector if there are few pods, or if no label, such as the index that controllers add, differs enough.
    """
    share_count = min(len(label_sets) // _MIN_COLLECTION, _MAX_COLLECTIONS)
    if share_count < 2:
        return [""]
    values_by_key: dict[str, set[str]] = {}
    for label_set in label_sets:
        for key, value in label_set.items():
            values_by_key.setdefault(key, set()).add(value)
    key, values = max(values_by_key.items(), key=lambda item: len(item[1]))
    if len(values) < share_count or sum(len(value) + 1 for value in values) > _MAX_SELECTOR_CHARS:
        return [""]
    ordered_values = sorted(values)
    shares = [ordered_values[number::share_count] for number in range(share_count - 1)]
    selectors = [f"{key} in ({','.join(share)})" for share in shares]
    others = ",".join(value for share in shares for value in share)
    return [*selectors, f"{key} notin ({others})"]


def end_pods(plan: ManifestPlan) -> None:
    """Let the kubelets kill the job's pods within a second, also those that are being deleted with a longer grace.

    Raises ClusterError if a request is refused, RunInUseError if another process owns the run.
    """
    client = get_cluster_client(plan.cluster)
    listing = list_labelled_objects(client, (("v1", "Pod"),), plan.labels)
    pods = [pod for pod in listing.objects if _is_part_of_job(pod)]
    confirm_ownership = partial(lease.confirm_ownership, plan)

    def end_pod(pod: KubeObject) -> None:
        client.delete(pod, grace_s=_SHORTEST_GRACE_S, confirm_ownership=confirm_ownership)

    with ThreadPoolExecutor(_END_THREADS) as pool:
        list(pool.map(end_pod, pods))  # `list` raises a thread's error


class _UnprovenDeathError(Exception):
    """It is not proven that a pod's node is dead."""


def force_delete_pods(client: Client, objects: Iterable[KubeObject], confirm_ownership: Callable[[], object]) -> None:
    """Force-delete pods whose dead node cannot confirm their end. A pod on any other node may still run: it stays.

    Before each try of a deletion the node is read again, and then the ownership confirmed (see `Client.delete`). Raises
    ClusterError if a node cannot be read for another reason than a missing right: that pod and those after it stay.
    """
    for obj in objects:
        if obj["kind"] != "Pod":
            continue
        node = obj["spec"].get("nodeName")
        confirm = partial(_confirm_forced_deletion, client, node, confirm_ownership)
        name = obj["metadata"]["name"]
        try:
            # A pod without a node has never run, unless it has got one since it was read.
            if client.delete(obj, force=True, is_unchanged=not node, confirm_ownership=confirm):
                reason = f"node {node} does not respond" if node else "it has no node"
                get_log().warning("pod %s was force-deleted: %s", name, reason)
        except _UnprovenDeathError:
            get_log().debug("pod %s is not force-deleted: it is not proven that its node is dead", name)


def _confirm_forced_deletion(client: Client, node: str | None, confirm_ownership: Callable[[], object]) -> None:
    """Raise _UnprovenDeathError unless a pod's node is dead; then confirm the ownership, whose proof ages sooner."""
    if node and explain_living_node(client, node) is not None:
        raise _UnprovenDeathError
    confirm_ownership()


def explain_living_node(client: Client, name: str) -> str | None:
    """Why a node may be alive, so that its pods may run; None if it counts as dead.

    It does if the API server reports that it does not exist, or if its Ready is Unknown: the control plane has received
    nothing from its kubelet for a while. A node that has only lost its network counts as dead too, which is why a
    profile must request forced deletions. Ready=False is the report of a kubelet that runs.

    Raises ClusterError if the node cannot be read, unless this user lacks the right.
    """
    try:
        node = client.get("v1", "Node", name, namespace=None)
    except ClusterError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        return f"this user may not read nodes ({error.message}); {_NODE_ROLE_HINT}"
    if node is None:
        return None
    for condition in pod_facts.get_mappings(node, "status", "conditions"):
        if condition.get("type") == "Ready":
            status = condition.get("status")
            return None if status == "Unknown" else f"its kubelet reports Ready={status}"
    return "it has never reported its state"


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


def _describe_leftover_of(plan: ManifestPlan, obj: KubeObject) -> str:
    """As `describe_leftover`; of a pod that the plan allows to delete by force, also why it was not."""
    message = describe_leftover(obj)
    is_stuck_pod = obj["kind"] == "Pod" and obj["metadata"].get("deletionTimestamp")
    node = pod_facts.get_mapping(obj, "spec").get("nodeName")
    if not (plan.force_delete and is_stuck_pod and node):
        return message
    reason = explain_living_node(get_cluster_client(plan.cluster), node)
    if reason is None:
        return message
    return f"{message}; not force-deleted (on_stuck_pod), because node {node} may be alive: {reason}"
