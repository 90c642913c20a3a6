"""Finds the runs of dead launchers in a cluster, by their Leases in all namespaces, and removes their objects.

Order. `find_orphans` lists Leases and objects and returns the runs that no process owns. `remove_orphan` observes the
Lease until a living holder would have renewed it, claims it, deletes what it owns, and deletes the Lease last. So a
launcher that resumes meanwhile finds the Lease held, and the next sweep finds what this one could not remove.

Proof. Any user may write a Lease or a label. A Lease therefore counts only for the objects that it owns, in its own
namespace; a malformed one is reported and not removed. All ages are by the API server's clock. A list that is refused
does not prove absence: it is raised, or its kind counts as not searched. The Lease is released once each object that
was found is proven to be gone, by its name or by two lists, and each kind that was searched could be listed again.

Errors. ClusterError if Leases, or the pods of a run, may not be listed, or a request fails.
"""

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import NamedTuple

from torchyard.cluster.delete import REMOVAL_TIMEOUT_S, delete_owned_pods, describe_leftover, describe_unlisted_kind
from torchyard.cluster.lease import (
    HOLDER_DEAD_AFTER_S,
    RENEW_INTERVAL_S,
    TEST_FAILED_STATUS,
    build_spec_patch,
    format_server_time,
)
from torchyard.cluster.listing import GroupVersionKind, ListedObjects, list_kinds, list_labelled_objects
from torchyard.common.log import get_log
from torchyard.diagnosis import pod_facts
from torchyard.diagnosis.pod_facts import ROLE_LABEL, RUN_LABEL
from torchyard.kube.client import Client, KubeObject, get_cluster_client
from torchyard.kube.kubeconfig import has_kubeconfig
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster
from torchyard.pods import lease_record
from torchyard.pods.user_manifest import has_protected_data

_UNLEASED_ORPHAN_AFTER_S = 600.0  # seconds after which an object of a run without a Lease is an orphan
LEASE_OBSERVATION_S = 1.5 * RENEW_INTERVAL_S  # a living holder renews its Lease within it
REMOVAL_POLL_INTERVAL_S = 1.0  # seconds between two checks whether deleted objects are gone
_LEASE_KIND: GroupVersionKind = (lease_record.LEASE_API, lease_record.LEASE_KIND)
_POD_KIND: GroupVersionKind = ("v1", "Pod")
_SWEEP_ROLE_HINT = "deploy/kubernetes/rbac.yaml grants it in role torchyard-sweep"
LivenessCheck = Callable[[str], str | None]  # why a run may be alive; None if it is not


def _report_unchecked(_: str) -> str:
    """The liveness of a run that no check was given for."""
    return "cannot check whether it is alive"


class SweepScope(NamedTuple):
    """The runs that a sweep may remove.

    Without `runs`: those whose Lease has expired. With `runs`: those alone, and only if their Lease is not renewed.

    check_alive: receives a flow run's id.
    check_alive_by_name: receives a run's name; for runs without a Lease, which have no id.
    without_lease: remove objects without a Lease too.
    """

    check_alive: LivenessCheck
    check_alive_by_name: LivenessCheck = _report_unchecked
    runs: frozenset[str] | None = None
    without_lease: bool = False

    def covers(self, run: str) -> bool:
        return self.runs is None or run in self.runs


class Orphan(NamedTuple):
    """A run that no process owns.

    client: for the run's namespace.
    reason: why the run counts as abandoned.
    kept_reason: why the sweep does not remove it nevertheless; None if it does.
    lease: the run's Lease as it was listed; None if there is none.
    listed_at: when the Lease was listed, in monotonic seconds.
    """

    client: Client
    run: str
    reason: str
    kept_reason: str | None = None
    lease: KubeObject | None = None
    listed_at: float = 0.0

    def __str__(self) -> str:
        return f"{self.client.namespace}/{self.run}"


def find_orphans(context: str | None, scope: SweepScope) -> Iterator[Orphan]:
    """Every run that no process owns, in all namespaces that this user may list.

    Raises ClusterError if the API server does not respond, or its Leases may not be listed.
    """
    client = get_cluster_client(Cluster(context=context))
    leases, is_everywhere = _list_leases(client)
    now = client.now()
    for lease in leases:
        if not scope.covers(lease_record.read_lease_name(lease)):
            continue
        orphan = _check_lease(_get_namespace_client(client, lease), lease, now, scope)
        if orphan:
            yield orphan

    leased_runs = {(lease["metadata"]["namespace"], lease_record.read_lease_name(lease)) for lease in leases}
    unleased_objects = []
    for obj in _list_run_objects(client, everywhere=is_everywhere):
        if obj["kind"] != lease_record.LEASE_KIND and _get_run_key(obj) not in leased_runs:
            unleased_objects.append(obj)
    for (_, run), objects in _group_by_run(unleased_objects).items():
        if not scope.covers(run):
            continue
        orphan = _check_unleased_run(_get_namespace_client(client, objects[0]), run, objects, scope)
        if orphan:
            yield orphan


def find_unrenewed_leases(context: str | None) -> list[KubeObject]:
    """The unexpired Leases that no process renews: the launchers of their runs are lost. Malformed ones are skipped."""
    client = get_cluster_client(Cluster(context=context))
    now = client.now()
    unrenewed = []
    for lease in _list_leases(client).leases:
        if lease_record.list_lease_faults(lease, now):
            continue
        age_s = lease_record.measure_lease_age(lease, now) or 0.0
        remaining_s = lease_record.measure_time_left(lease, now) or 0.0
        if age_s > HOLDER_DEAD_AFTER_S and remaining_s >= 0:
            unrenewed.append(lease)
    return unrenewed


class _ListedLeases(NamedTuple):
    """The Leases of runs, and whether they are those of all namespaces, not only of the user's own."""

    leases: list[KubeObject]
    is_everywhere: bool


def _list_leases(client: Client) -> _ListedLeases:
    """The Leases of runs in all namespaces or, if that is refused, in the user's own.

    Raises ClusterError if both are refused: without Leases a live run looks like an abandoned one.
    """
    params = {"labelSelector": RUN_LABEL}
    try:
        return _ListedLeases(client.list(*_LEASE_KIND, params, everywhere=True), is_everywhere=True)
    except ClusterError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
    try:
        leases = client.list(*_LEASE_KIND, params)
    except ClusterError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        message = f"{error.message}; nothing was swept, because a sweep needs `list leases`: {_SWEEP_ROLE_HINT}"
        raise ClusterError(error.host, error.action, message, error.status) from error
    get_log().warning(
        "only namespace %s is searched: searching all namespaces needs `list leases` in all of them; %s",
        client.namespace,
        _SWEEP_ROLE_HINT,
    )
    return _ListedLeases(leases, is_everywhere=False)


def _check_lease(client: Client, lease: KubeObject, now: float, scope: SweepScope) -> Orphan | None:
    """The run of a Lease, if the Lease has expired, is malformed, or the sweep names the run.

    None if the Lease protects the run, or the run may be alive. `now`: seconds of the API server's clock.
    """
    run = lease_record.read_lease_name(lease)
    is_named = scope.runs is not None
    orphan = Orphan(client, run, "its Lease has expired", lease=lease, listed_at=time.monotonic())
    faults = lease_record.list_lease_faults(lease, now)
    if faults:
        remedy = f"`kubectl delete lease -n {client.namespace} {run}` also deletes the objects that it owns"
        return orphan._replace(reason="its Lease is malformed", kept_reason=f"{'; '.join(faults)}; {remedy}")
    age_s = lease_record.measure_lease_age(lease, now) or 0.0
    remaining_s = lease_record.measure_time_left(lease, now) or 0.0
    if remaining_s >= 0:
        if not is_named:
            return None
        orphan = orphan._replace(reason="it was named, and its Lease is not renewed")
        if age_s < HOLDER_DEAD_AFTER_S:
            holder = lease_record.read_holder(lease)
            remedy = "cancel the run, or stop that process"
            return orphan._replace(kept_reason=f"{holder} renewed its Lease {age_s:.0f} s ago: {remedy}")
    liveness = scope.check_alive(lease_record.read_flow_run_id(lease))
    if liveness is None:
        return orphan
    return orphan._replace(kept_reason=f"{liveness}: cancel it in Prefect first") if is_named else None


def _check_unleased_run(client: Client, run: str, objects: list[KubeObject], scope: SweepScope) -> Orphan | None:
    """The run of objects that no listed Lease belongs to; None if one of them is young, so that it may just start."""
    now = client.now()
    for obj in objects:
        age_s = now - pod_facts.parse_timestamp(obj["metadata"].get("creationTimestamp"))
        if age_s < _UNLEASED_ORPHAN_AFTER_S:
            return None
    orphan = Orphan(client, run, "it has no Lease")
    # A list proves nothing: the Lease may have lost its label.
    if client.get(*_LEASE_KIND, run) is not None:
        return orphan._replace(reason="its Lease is malformed", kept_reason=f"it lacks the label {RUN_LABEL}")
    if not scope.without_lease:
        return orphan._replace(kept_reason="`--without-lease` removes it")
    return orphan._replace(kept_reason=scope.check_alive_by_name(run))


def _list_run_objects(client: Client, *, everywhere: bool) -> list[KubeObject]:
    """Objects with a run's label in the user's own namespace.

    everywhere: in all namespaces, except kinds that may not be listed there. Without the Leases of a namespace, its
    runs look abandoned.
    """
    if not everywhere:
        return list_labelled_objects(client, list_kinds(client), {RUN_LABEL: ""}).objects
    all_namespaces = list_labelled_objects(client, list_kinds(client), {RUN_LABEL: ""}, everywhere=True)
    own_namespace = list_labelled_objects(client, all_namespaces.refusals, {RUN_LABEL: ""})
    return all_namespaces.objects + own_namespace.objects


def _get_namespace_client(client: Client, obj: KubeObject) -> Client:
    """A client for the same cluster and an object's namespace."""
    return get_cluster_client(Cluster(context=client.context, namespace=obj["metadata"]["namespace"]))


def _get_run_key(obj: KubeObject) -> tuple[str, str]:
    """The namespace and the run of an object: two namespaces may have runs of one name."""
    return obj["metadata"]["namespace"], obj["metadata"]["labels"][RUN_LABEL]


def _group_by_run(objects: Iterable[KubeObject]) -> dict[tuple[str, str], list[KubeObject]]:
    groups: dict[tuple[str, str], list[KubeObject]] = {}
    for obj in objects:
        groups.setdefault(_get_run_key(obj), []).append(obj)
    return groups


# --- removing one


def remove_orphan(orphan: Orphan) -> list[str] | None:
    """Delete the run's jobs, then its stores, then its Lease; return a description of each leftover.

    None if the Lease was renewed meanwhile: nothing is deleted then. Raises ClusterError if pods may not be listed, or
    a request is refused.
    """
    labels = {RUN_LABEL: orphan.run}
    listing = _list_orphan_objects(orphan, labels)
    if _POD_KIND in listing.refusals:
        hint = "deploy/kubernetes/rbac.yaml grants it in role torchyard"
        message = f"{listing.refusals[_POD_KIND]}; a run whose pods cannot be listed is not removed: {hint}"
        raise ClusterError(orphan.client.host, f"list pods in {orphan.client.namespace}", message, HTTPStatus.FORBIDDEN)
    claim = _Claim(orphan)
    if not claim.acquire():
        return None

    owned = _select_owned(orphan, listing.objects)
    deletable = [obj for obj in owned if not has_protected_data(obj)]
    _delete_and_await(claim, [obj for obj in deletable if ROLE_LABEL not in obj["metadata"]["labels"]])
    _delete_and_await(claim, deletable)

    owned_uids = {obj["metadata"]["uid"] for obj in owned}
    remaining = _list_orphan_objects(orphan, labels)
    leftovers = _select_owned(orphan, remaining.objects, owned_uids)
    leftover_uids = {obj["metadata"]["uid"] for obj in leftovers}
    leftovers += _read_existing(orphan, [obj for obj in owned if obj["metadata"]["uid"] not in leftover_uids])
    messages = [describe_leftover(obj) for obj in leftovers]
    for kind, reason in remaining.refusals.items():
        if kind not in listing.refusals:  # those count as not searched
            messages.append(describe_unlisted_kind(orphan.client, kind, reason))
    if not messages:
        claim.release()
    for obj in remaining.objects:
        if obj["metadata"]["uid"] not in leftover_uids:
            messages.append(f"{describe_leftover(obj)}: it only carries the run's label, its Lease does not own it")
    return messages


class _Claim:
    """The ownership of an orphaned run by this sweep: its Lease, or the proof that it has none.

    A launcher that resumes meanwhile finds the Lease held. It expires when its holder no longer counts as alive, so the
    next sweep retries what this one cannot remove.
    """

    def __init__(self, orphan: Orphan) -> None:
        self.orphan = orphan
        self._client = orphan.client
        self._lease = orphan.lease  # as this sweep has read or written it last; None if the run has none
        self._holder = f"sweep:{socket.gethostname()}:{os.getpid()}"

    def acquire(self) -> bool:
        """Acquire the Lease; False if it was renewed or deleted while it was observed.

        Raises ClusterError if the API server refuses the change.
        """
        lease = self._lease
        if lease is None:
            return True
        time.sleep(max(self.orphan.listed_at + LEASE_OBSERVATION_S - time.monotonic(), 0.0))
        uid_test = {"op": "test", "path": "/metadata/uid", "value": lease["metadata"]["uid"]}
        return self._renew(lease, [uid_test, lease_record.build_unchanged_test(lease)])

    def confirm(self) -> None:
        """Prove, right before a deletion, that no other process owns the run; the Lease is renewed for that.

        Raises ClusterError if another process owns the run, or if that cannot be read.
        """
        run = self.orphan.run
        if self._lease is None:
            is_confirmed = self._client.get(*_LEASE_KIND, run) is None
        else:
            holder_test = {"op": "test", "path": "/spec/holderIdentity", "value": self._holder}
            is_confirmed = self._renew(self._lease, [holder_test])
        if not is_confirmed:
            message = "another process has taken the run over; nothing more of it is deleted"
            raise ClusterError(self._client.host, f"sweep {run}", message, HTTPStatus.CONFLICT)

    def release(self) -> None:
        """Delete the Lease, unless another process has changed it."""
        if self._lease:
            self._client.delete(self._lease, force=True, is_unchanged=True)

    def _renew(self, lease: KubeObject, tests: list[KubeObject]) -> bool:
        """Write this holder and the current time into the Lease; False if a test fails or the Lease is gone."""
        spec = {
            "holderIdentity": self._holder,
            "renewTime": format_server_time(self._client),
            "leaseDurationSeconds": int(HOLDER_DEAD_AFTER_S),
        }
        try:
            self._lease = self._client.patch(lease, [*tests, *build_spec_patch(spec)])
        except ClusterError as error:
            if error.status not in (HTTPStatus.NOT_FOUND, TEST_FAILED_STATUS):
                raise
            return False
        return True


def _list_orphan_objects(orphan: Orphan, labels: dict[str, str]) -> ListedObjects:
    """All objects with the run's label in its namespace, except its Lease."""
    kinds = dict.fromkeys((_POD_KIND, *list_kinds(orphan.client)))
    listing = list_labelled_objects(orphan.client, kinds, labels)
    return listing._replace(objects=[obj for obj in listing.objects if obj["kind"] != lease_record.LEASE_KIND])


def _read_existing(orphan: Orphan, objects: list[KubeObject]) -> list[KubeObject]:
    """Those of the objects that exist although a list lacks them; of the others it is proven that they do not.

    A user who may not read a kind by name, such as pods, needs a second list of a ready server.
    """
    names: dict[GroupVersionKind, list[str]] = {}
    for obj in objects:
        names.setdefault((obj["apiVersion"], obj["kind"]), []).append(obj["metadata"]["name"])
    client = orphan.client

    def read_kind(kind: GroupVersionKind) -> Iterable[KubeObject]:
        try:
            return client.get_all(*kind, names[kind]).values()
        except ClusterError as error:
            if error.status != HTTPStatus.FORBIDDEN:
                raise
        client.await_confirmation()
        return client.list(*kind, {"labelSelector": f"{RUN_LABEL}={orphan.run}"})

    uids = {obj["metadata"]["uid"] for obj in objects}
    with ThreadPoolExecutor(max(len(names), 1)) as pool:
        existing = [obj for kind_objects in pool.map(read_kind, names) for obj in kind_objects]
    return [obj for obj in existing if obj["metadata"]["uid"] in uids]


def _select_owned(orphan: Orphan, objects: list[KubeObject], known_uids: Set[str] = frozenset()) -> list[KubeObject]:
    """The objects that the Lease owns, directly or through others; all if there is no Lease.

    `known_uids`: of objects that it owned before, whose owners may be gone by now.

    Objects that hold data have no owner, so they are never among those of a Lease.
    """
    if orphan.lease is None:
        return list(objects)
    owned_uids = {orphan.lease["metadata"]["uid"], *known_uids}
    next_uids = owned_uids
    while next_uids:
        next_uids = {obj["metadata"]["uid"] for obj in objects if _get_owner_uids(obj) & owned_uids} - owned_uids
        owned_uids = owned_uids | next_uids
    return [obj for obj in objects if obj["metadata"]["uid"] in owned_uids]


def _get_owner_uids(obj: KubeObject) -> set[str]:
    return {str(owner.get("uid")) for owner in obj["metadata"].get("ownerReferences") or ()}


def _delete_and_await(claim: _Claim, objects: list[KubeObject]) -> None:
    """Delete the objects that no other one owns, and wait until a list lacks all, at most for REMOVAL_TIMEOUT_S.

    Whether they are gone is for the caller to prove.
    """
    orphan = claim.orphan
    labels = {RUN_LABEL: orphan.run}
    deadline = time.monotonic() + REMOVAL_TIMEOUT_S
    uids = {obj["metadata"]["uid"] for obj in objects}
    for obj in objects:
        if not _get_owner_uids(obj) & uids:
            orphan.client.delete(obj, confirm_ownership=claim.confirm)
    kinds = {(obj["apiVersion"], obj["kind"]) for obj in objects}
    while time.monotonic() < deadline:
        remaining = list_labelled_objects(orphan.client, kinds, labels)
        if not remaining.refusals and not any(obj["metadata"]["uid"] in uids for obj in remaining.objects):
            return
        delete_owned_pods(orphan.client, labels, remaining.objects, claim.confirm)
        time.sleep(REMOVAL_POLL_INTERVAL_S)


def has_cluster(context: str | None) -> bool:
    """Whether there is a cluster to search: not without a kubeconfig, except in a pod with a service account.

    Raises ClusterError if a named context does not exist, or the kubeconfig cannot be used.
    """
    try:
        get_cluster_client(Cluster(context=context))
    except ClusterError:
        if context or has_kubeconfig():
            raise
        return False
    return True
