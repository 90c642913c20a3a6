"""Finds what dead launchers left in a cluster, by their runs' Leases in all namespaces, and removes it.

Others may have written a Lease as well. It counts only for what it owns in its own namespace, and it is taken over
before anything that it owns is deleted: a launcher that resumes at that moment finds it held.
"""

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from torchyard.cluster.delete import (
    REMOVAL_TIMEOUT_S,
    GroupVersionKind,
    ListedObjects,
    describe_leftover,
    disown_protected_data,
    list_kinds,
    list_labelled_objects,
)
from torchyard.cluster.lease import (
    HOLDER_DEAD_AFTER_S,
    RENEW_INTERVAL_S,
    TEST_FAILED_STATUS,
    build_spec_patch,
    format_server_time,
)
from torchyard.common.log import get_log
from torchyard.diagnosis import pod_facts
from torchyard.kube.client import Client, KubeObject, get_cluster_client
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster
from torchyard.pods import lease_record
from torchyard.pods.template import ROLE_LABEL, RUN_LABEL
from torchyard.pods.user_manifest import has_protected_data

_UNLEASED_ORPHAN_AFTER_S = 600.0  # seconds after which an object of a run without a Lease is an orphan
_LEASE_OBSERVATION_S = 1.5 * RENEW_INTERVAL_S  # a living holder renews its Lease within it
_REMOVAL_POLL_INTERVAL_S = 1.0
_LEASE_KIND: GroupVersionKind = (lease_record.LEASE_API, lease_record.LEASE_KIND)
_POD_KIND: GroupVersionKind = ("v1", "Pod")
_SWEEP_ROLE_HINT = "deploy/kubernetes/rbac.yaml has it in role torchyard-sweep"
LivenessCheck = Callable[[str], str]  # why a run may be alive; empty if it is not


class SweepScope(NamedTuple):
    """What a sweep may remove: runs whose Lease has expired; or `runs` alone, whose Lease is at least not renewed."""

    check_alive: LivenessCheck  # of a flow run's id
    check_alive_by_name: LivenessCheck = lambda _: "whether it is alive was not checked"  # of a run's name
    runs: frozenset[str] | None = None
    without_lease: bool = False

    def covers(self, run: str) -> bool:
        return self.runs is None or run in self.runs


class Orphan(NamedTuple):
    """A run that no process owns, and the proof; `kept` says why it is not removed nevertheless."""

    client: Client
    run: str
    reason: str
    kept_reason: str = ""
    lease: KubeObject | None = None  # as it was `at` that moment; None if there is none
    listed_at: float = 0.0

    def __str__(self) -> str:
        return f"{self.client.namespace}/{self.run}"


def find_orphans(context: str | None, scope: SweepScope) -> Iterator[Orphan]:
    """Every run that no process owns, in all namespaces that this user may see.

    Raises ClusterError if the cluster does not answer, or its Leases may not be listed.
    """
    client = get_cluster_client(Cluster(context=context))
    leases, now = _list_leases(client), client.now()
    for lease in leases:
        namespace_client = _get_namespace_client(client, lease)
        if scope.covers(lease_record.read_lease_name(lease)) and (
            orphan := _check_lease(namespace_client, lease, now, scope)
        ):
            yield orphan
    leased_runs = {(lease["metadata"]["namespace"], lease_record.read_lease_name(lease)) for lease in leases}
    unleased_objects = [
        obj
        for obj in _list_run_objects(client)
        if _get_run_key(obj) not in leased_runs and obj["kind"] != lease_record.LEASE_KIND
    ]
    for (_, run), objects in _group_by_run(unleased_objects).items():
        if scope.covers(run):
            yield from _check_unleased_run(_get_namespace_client(client, objects[0]), run, objects, scope)


def find_unrenewed_leases(context: str | None) -> list[KubeObject]:
    """The unexpired Leases that no process renews: the launchers of their runs are lost."""
    client = get_cluster_client(Cluster(context=context))
    now = client.now()
    valid_leases = [lease for lease in _list_leases(client) if not lease_record.list_lease_faults(lease, now)]
    return [
        lease
        for lease in valid_leases
        if (lease_record.measure_lease_age(lease, now) or 0.0) > HOLDER_DEAD_AFTER_S
        and (lease_record.measure_time_left(lease, now) or 0.0) >= 0
    ]


def _list_leases(client: Client) -> list[KubeObject]:
    """The Leases of runs in all namespaces or, if that is refused, in the user's own.

    Raises ClusterError if both are refused: without Leases a live run looks like an abandoned one.
    """
    params = {"labelSelector": RUN_LABEL}
    try:
        return client.list(*_LEASE_KIND, params, everywhere=True)
    except ClusterError as error:
        if error.status != 403:
            raise
    try:
        leases = client.list(*_LEASE_KIND, params)
    except ClusterError as error:
        if error.status != 403:
            raise
        message = f"{error.message}; without `list leases` nothing can be swept, and nothing was: {_SWEEP_ROLE_HINT}"
        raise ClusterError(error.host, error.action, message, error.status) from error
    get_log().warning(
        "only namespace %s is searched: the Leases of all need `list leases`; %s", client.namespace, _SWEEP_ROLE_HINT
    )
    return leases


def _check_lease(client: Client, lease: KubeObject, now: float, scope: SweepScope) -> Orphan | None:
    """The run of a Lease, if it is abandoned or was named."""
    run, is_named = lease_record.read_lease_name(lease), scope.runs is not None
    orphan = Orphan(client, run, "its Lease has expired", "", lease, time.monotonic())
    if faults := lease_record.list_lease_faults(lease, now):
        remedy = f"kubectl delete lease -n {client.namespace} {run} removes what it owns"
        return orphan._replace(reason="its Lease cannot be judged", kept_reason=f"{'; '.join(faults)}; {remedy}")
    remaining_s, age_s = (
        lease_record.measure_time_left(lease, now) or 0.0,
        lease_record.measure_lease_age(lease, now) or 0.0,
    )
    if remaining_s >= 0 and not is_named:
        return None
    if remaining_s >= 0:
        orphan = orphan._replace(reason="it was named, and its Lease is not renewed")
        if age_s < HOLDER_DEAD_AFTER_S:
            holder = lease_record.read_holder(lease)
            kept_reason = f"{holder} renewed its Lease {age_s:.0f} s ago: cancel the run, or end that process"
            return orphan._replace(kept_reason=kept_reason)
    if liveness := scope.check_alive(lease_record.read_flow_run_id(lease)):
        return orphan._replace(kept_reason=f"{liveness}: cancel it in Prefect first") if is_named else None
    return orphan


def _check_unleased_run(client: Client, run: str, objects: list[KubeObject], scope: SweepScope) -> Iterator[Orphan]:
    """The run of objects with its label but without a Lease among those listed, if it is abandoned."""
    now = client.now()
    if any(
        now - pod_facts.parse_timestamp(obj["metadata"].get("creationTimestamp")) < _UNLEASED_ORPHAN_AFTER_S
        for obj in objects
    ):
        return
    orphan = Orphan(client, run, "it has no Lease")
    lease = client.get(*_LEASE_KIND, run)  # the proof: 404 by name
    if lease:
        yield orphan._replace(reason="its Lease cannot be judged", kept_reason=f"it lacks the label {RUN_LABEL}")
    elif not scope.without_lease:
        yield orphan._replace(kept_reason="`--without-lease` removes it")
    elif liveness := scope.check_alive_by_name(run):
        yield orphan._replace(kept_reason=liveness)
    else:
        yield orphan


def _list_run_objects(client: Client) -> list[KubeObject]:
    """Objects with a run's label in all namespaces; kinds that may not be listed there, in the user's own."""
    listing = list_labelled_objects(client, list_kinds(client), {RUN_LABEL: ""}, everywhere=True)
    return [*listing.objects, *list_labelled_objects(client, list(listing.refusals), {RUN_LABEL: ""}).objects]


def _get_namespace_client(client: Client, obj: KubeObject) -> Client:
    """A client for the same cluster and an object's namespace."""
    return get_cluster_client(Cluster(context=client.context, namespace=obj["metadata"]["namespace"]))


def _get_run_key(obj: KubeObject) -> tuple[str, str]:
    """The namespace and the run of an object."""
    return obj["metadata"]["namespace"], obj["metadata"]["labels"][RUN_LABEL]


def _group_by_run(objects: Iterable[KubeObject]) -> dict[tuple[str, str], list[KubeObject]]:
    groups: dict[tuple[str, str], list[KubeObject]] = {}
    for obj in objects:
        groups.setdefault(_get_run_key(obj), []).append(obj)
    return groups


# --- removing one


def remove_orphan(orphan: Orphan) -> list[str] | None:
    """Delete the run's jobs, then its stores, then its Lease; return what is left, None if its Lease was renewed."""
    labels = {RUN_LABEL: orphan.run}
    listing = _list_orphan_objects(orphan, labels)
    if _POD_KIND in listing.refusals:
        remedy = "deploy/kubernetes/rbac.yaml has it in role torchyard"
        message = f"{listing.refusals[_POD_KIND]}; what cannot be seen is not removed: {remedy}"
        raise ClusterError(orphan.client.host, f"list pods in {orphan.client.namespace}", message, 403)
    if orphan.lease and not _claim_lease(orphan, orphan.lease):
        return None
    owned = _select_owned(orphan, listing.objects)
    for obj in owned:
        disown_protected_data(orphan.client, obj, labels)
    deletable = [obj for obj in owned if not has_protected_data(obj)]
    _delete_and_await(orphan, [obj for obj in deletable if ROLE_LABEL not in obj["metadata"]["labels"]])
    _delete_and_await(orphan, deletable)
    remaining = _list_orphan_objects(orphan, labels).objects
    leftovers = _select_owned(orphan, remaining)
    if orphan.lease and not leftovers:
        orphan.client.delete_exact(orphan.lease, force=True)
    leftover_uids = {obj["metadata"]["uid"] for obj in leftovers}
    foreign_objects = [obj for obj in remaining if obj["metadata"]["uid"] not in leftover_uids]
    return [
        *map(describe_leftover, leftovers),
        *(
            f"{describe_leftover(obj)}: it only carries the run's label, its Lease does not own it"
            for obj in foreign_objects
        ),
    ]


def _claim_lease(orphan: Orphan, lease: KubeObject) -> bool:
    """Acquire the Lease; False if it was renewed while it was watched. A launcher that resumes now finds it held.

    It lasts no longer than its holder counts as alive: the next sweep retries what this one cannot remove.
    """
    time.sleep(max(orphan.listed_at + _LEASE_OBSERVATION_S - time.monotonic(), 0.0))
    spec = {
        "holderIdentity": f"sweep:{socket.gethostname()}:{os.getpid()}",
        "renewTime": format_server_time(orphan.client),
    }
    uid_test = {"op": "test", "path": "/metadata/uid", "value": lease["metadata"]["uid"]}
    changes = build_spec_patch({**spec, "leaseDurationSeconds": int(HOLDER_DEAD_AFTER_S)})
    try:
        orphan.client.patch(lease, [uid_test, lease_record.build_unchanged_test(lease), *changes])
    except ClusterError as error:
        if error.status not in (404, TEST_FAILED_STATUS):
            raise
        return False
    return True


def _list_orphan_objects(orphan: Orphan, labels: dict[str, str]) -> ListedObjects:
    """Everything that carries the run's label, except its Lease."""
    listing = list_labelled_objects(orphan.client, dict.fromkeys((_POD_KIND, *list_kinds(orphan.client))), labels)
    return listing._replace(objects=[obj for obj in listing.objects if obj["kind"] != lease_record.LEASE_KIND])


def _select_owned(orphan: Orphan, objects: list[KubeObject]) -> list[KubeObject]:
    """What the Lease owns, directly or through others; without a Lease, all. What holds data has no owner."""
    owned_uids = {orphan.lease["metadata"]["uid"]} if orphan.lease else {obj["metadata"]["uid"] for obj in objects}
    while next_uids := {obj["metadata"]["uid"] for obj in objects if _get_owner_uids(obj) & owned_uids} - owned_uids:
        owned_uids |= next_uids
    return [obj for obj in objects if obj["metadata"]["uid"] in owned_uids]


def _get_owner_uids(obj: KubeObject) -> set[str]:
    return {str(owner.get("uid")) for owner in obj["metadata"].get("ownerReferences") or ()}


def _delete_and_await(orphan: Orphan, objects: list[KubeObject]) -> None:
    """Delete the objects that no other one owns, and wait until all are gone."""
    labels, deadline = {RUN_LABEL: orphan.run}, time.monotonic() + REMOVAL_TIMEOUT_S
    uids = {obj["metadata"]["uid"] for obj in objects}
    for obj in objects:
        if not _get_owner_uids(obj) & uids:
            orphan.client.delete_exact(obj)
    kinds = {(obj["apiVersion"], obj["kind"]) for obj in objects}
    while time.monotonic() < deadline:
        if not any(
            obj["metadata"]["uid"] in uids for obj in list_labelled_objects(orphan.client, kinds, labels).objects
        ):
            return
        time.sleep(_REMOVAL_POLL_INTERVAL_S)


def has_cluster(context: str | None) -> bool:
    """Whether there is a cluster to search; a context that is named must exist."""
    try:
        get_cluster_client(Cluster(context=context))
    except ClusterError:
        if context:
            raise
        return False
    return True
