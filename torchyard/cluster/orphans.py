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
    keep_data,
    list_kinds,
    list_labelled_objects,
)
from torchyard.cluster.lease import (
    HOLDER_DEAD_AFTER_S,
    RENEW_INTERVAL_S,
    TEST_FAILED_STATUS,
    format_server_time,
    spec_patch,
)
from torchyard.common.log import get_log
from torchyard.diagnosis import pod_facts
from torchyard.kube import client
from torchyard.kube.client import Client, KubeObject
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster
from torchyard.pods import lease_record
from torchyard.pods.template import ROLE_LABEL, RUN_LABEL
from torchyard.pods.user_manifest import has_protected_data

_FORGOTTEN_AFTER_S = 600.0  # seconds after which an object of a run without a Lease is an orphan
_LEASE_OBSERVATION_S = 1.5 * RENEW_INTERVAL_S  # a living holder renews its Lease within it
_REMOVAL_POLL_INTERVAL_S = 1.0
_LEASE_KIND: GroupVersionKind = (lease_record.LEASE_API, lease_record.LEASE_KIND)
_POD_KIND: GroupVersionKind = ("v1", "Pod")
_SWEEP_ROLE_HINT = "deploy/kubernetes/rbac.yaml has it in role torchyard-sweep"
LivenessCheck = Callable[[str], str]  # why a run may be alive; empty if it is not


class SweepScope(NamedTuple):
    """What a sweep may remove: runs whose Lease has expired; or `runs` alone, whose Lease is at least not renewed."""

    alive: LivenessCheck  # of a flow run's id
    alive_by_name: LivenessCheck = lambda _: "whether it is alive was not checked"  # of a run's name
    runs: frozenset[str] | None = None
    without_lease: bool = False

    def covers(self, run: str) -> bool:
        return self.runs is None or run in self.runs


class Orphan(NamedTuple):
    """A run that no process owns, and the proof; `kept` says why it is not removed nevertheless."""

    server: Client
    run: str
    why: str
    kept: str = ""
    lease: KubeObject | None = None  # as it was `at` that moment; None if there is none
    at: float = 0.0

    def __str__(self) -> str:
        return f"{self.server.namespace}/{self.run}"


def find_orphans(context: str | None, terms: SweepScope) -> Iterator[Orphan]:
    """Every run that no process owns, in all namespaces that this user may see.

    Raises ClusterError if the cluster does not answer, or its Leases may not be listed.
    """
    server = client.get_cluster_client(Cluster(context=context))
    leases, now = _list_leases(server), server.now()
    for each in leases:
        here = _get_namespace_client(server, each)
        if terms.covers(lease_record.read_lease_name(each)) and (found := _judge_lease(here, each, now, terms)):
            yield found
    known = {(each["metadata"]["namespace"], lease_record.read_lease_name(each)) for each in leases}
    rest = [
        each
        for each in _list_run_objects(server)
        if _run_key(each) not in known and each["kind"] != lease_record.LEASE_KIND
    ]
    for (_, run), things in _group_by_run(rest).items():
        if terms.covers(run):
            yield from _judge_unleased(_get_namespace_client(server, things[0]), run, things, terms)


def find_unrenewed_leases(context: str | None) -> list[KubeObject]:
    """The unexpired Leases that no process renews: the launchers of their runs are lost."""
    server = client.get_cluster_client(Cluster(context=context))
    now = server.now()
    sound = [each for each in _list_leases(server) if not lease_record.list_lease_faults(each, now)]
    return [
        each
        for each in sound
        if (lease_record.measure_lease_age(each, now) or 0.0) > HOLDER_DEAD_AFTER_S
        and (lease_record.measure_time_left(each, now) or 0.0) >= 0
    ]


def _list_leases(server: Client) -> list[KubeObject]:
    """The Leases of runs in all namespaces or, if that is refused, in the user's own.

    Raises ClusterError if both are refused: without Leases a live run looks like an abandoned one.
    """
    query = {"labelSelector": RUN_LABEL}
    try:
        return server.list(*_LEASE_KIND, query, everywhere=True)
    except ClusterError as error:
        if error.status != 403:
            raise
    try:
        found = server.list(*_LEASE_KIND, query)
    except ClusterError as error:
        if error.status != 403:
            raise
        said = f"{error.message}; without `list leases` nothing can be swept, and nothing was: {_SWEEP_ROLE_HINT}"
        raise ClusterError(error.host, error.action, said, error.status) from error
    get_log().warning(
        "only namespace %s is searched: the Leases of all need `list leases`; %s", server.namespace, _SWEEP_ROLE_HINT
    )
    return found


def _judge_lease(server: Client, lease: KubeObject, now: float, terms: SweepScope) -> Orphan | None:
    """The run of a Lease, if it is abandoned or was named."""
    run, named = lease_record.read_lease_name(lease), terms.runs is not None
    found = Orphan(server, run, "its Lease has expired", "", lease, time.monotonic())
    if wrong := lease_record.list_lease_faults(lease, now):
        remedy = f"kubectl delete lease -n {server.namespace} {run} removes what it owns"
        return found._replace(why="its Lease cannot be judged", kept=f"{'; '.join(wrong)}; {remedy}")
    left, age = lease_record.measure_time_left(lease, now) or 0.0, lease_record.measure_lease_age(lease, now) or 0.0
    if left >= 0 and not named:
        return None
    if left >= 0:
        found = found._replace(why="it was named, and its Lease is not renewed")
        if age < HOLDER_DEAD_AFTER_S:
            who = lease_record.read_holder(lease)
            kept = f"{who} renewed its Lease {age:.0f} s ago: cancel the run, or end that process"
            return found._replace(kept=kept)
    if why := terms.alive(lease_record.read_flow_run_id(lease)):
        return found._replace(kept=f"{why}: cancel it in Prefect first") if named else None
    return found


def _judge_unleased(server: Client, run: str, things: list[KubeObject], terms: SweepScope) -> Iterator[Orphan]:
    """The run of objects with its label but without a Lease among those listed, if it is abandoned."""
    now = server.now()
    if any(
        now - pod_facts.parse_timestamp(each["metadata"].get("creationTimestamp")) < _FORGOTTEN_AFTER_S
        for each in things
    ):
        return
    found = Orphan(server, run, "it has no Lease")
    lease = server.get(*_LEASE_KIND, run)  # the proof: 404 by name
    if lease:
        yield found._replace(why="its Lease cannot be judged", kept=f"it lacks the label {RUN_LABEL}")
    elif not terms.without_lease:
        yield found._replace(kept="`--without-lease` removes it")
    elif why := terms.alive_by_name(run):
        yield found._replace(kept=why)
    else:
        yield found


def _list_run_objects(server: Client) -> list[KubeObject]:
    """Objects with a run's label in all namespaces; kinds that may not be listed there, in the user's own."""
    seen = list_labelled_objects(server, list_kinds(server), {RUN_LABEL: ""}, everywhere=True)
    return [*seen.things, *list_labelled_objects(server, list(seen.unseen), {RUN_LABEL: ""}).things]


def _get_namespace_client(server: Client, thing: KubeObject) -> Client:
    """A client for the same cluster and an object's namespace."""
    return client.get_cluster_client(Cluster(context=server.context, namespace=thing["metadata"]["namespace"]))


def _run_key(thing: KubeObject) -> tuple[str, str]:
    """The namespace and the run of an object."""
    return thing["metadata"]["namespace"], thing["metadata"]["labels"][RUN_LABEL]


def _group_by_run(things: Iterable[KubeObject]) -> dict[tuple[str, str], list[KubeObject]]:
    groups: dict[tuple[str, str], list[KubeObject]] = {}
    for each in things:
        groups.setdefault(_run_key(each), []).append(each)
    return groups


# --- removing one


def remove_orphan(orphan: Orphan) -> list[str] | None:
    """Delete the run's jobs, then its stores, then its Lease; return what is left, None if its Lease was renewed."""
    labels = {RUN_LABEL: orphan.run}
    seen = _list_orphan_objects(orphan, labels)
    if _POD_KIND in seen.unseen:
        remedy = "deploy/kubernetes/rbac.yaml has it in role torchyard"
        said = f"{seen.unseen[_POD_KIND]}; what cannot be seen is not removed: {remedy}"
        raise ClusterError(orphan.server.host, f"list pods in {orphan.server.namespace}", said, 403)
    if orphan.lease and not _claim_lease(orphan, orphan.lease):
        return None
    mine = _select_owned(orphan, seen.things)
    for thing in mine:
        keep_data(orphan.server, thing, labels)
    gone = [each for each in mine if not has_protected_data(each)]
    _delete_and_await(orphan, [each for each in gone if ROLE_LABEL not in each["metadata"]["labels"]])
    _delete_and_await(orphan, gone)
    rest = _list_orphan_objects(orphan, labels).things
    left = _select_owned(orphan, rest)
    if orphan.lease and not left:
        orphan.server.delete_exact(orphan.lease, force=True)
    ids = {each["metadata"]["uid"] for each in left}
    strange = [each for each in rest if each["metadata"]["uid"] not in ids]
    return [
        *map(describe_leftover, left),
        *(f"{describe_leftover(each)}: it only carries the run's label, its Lease does not own it" for each in strange),
    ]


def _claim_lease(orphan: Orphan, lease: KubeObject) -> bool:
    """Acquire the Lease; False if it was renewed while it was watched. A launcher that resumes now finds it held.

    It lasts no longer than its holder counts as alive: the next sweep retries what this one cannot remove.
    """
    time.sleep(max(orphan.at + _LEASE_OBSERVATION_S - time.monotonic(), 0.0))
    here = {
        "holderIdentity": f"sweep:{socket.gethostname()}:{os.getpid()}",
        "renewTime": format_server_time(orphan.server),
    }
    same = {"op": "test", "path": "/metadata/uid", "value": lease["metadata"]["uid"]}
    change = spec_patch({**here, "leaseDurationSeconds": int(HOLDER_DEAD_AFTER_S)})
    try:
        orphan.server.patch(lease, [same, lease_record.build_unchanged_test(lease), *change])
    except ClusterError as error:
        if error.status not in (404, TEST_FAILED_STATUS):
            raise
        return False
    return True


def _list_orphan_objects(orphan: Orphan, labels: dict[str, str]) -> ListedObjects:
    """Everything that carries the run's label, except its Lease."""
    seen = list_labelled_objects(orphan.server, dict.fromkeys((_POD_KIND, *list_kinds(orphan.server))), labels)
    return seen._replace(things=[each for each in seen.things if each["kind"] != lease_record.LEASE_KIND])


def _select_owned(orphan: Orphan, things: list[KubeObject]) -> list[KubeObject]:
    """What the Lease owns, directly or through others; without a Lease, all. What holds data has no owner."""
    mine = {orphan.lease["metadata"]["uid"]} if orphan.lease else {each["metadata"]["uid"] for each in things}
    while more := {each["metadata"]["uid"] for each in things if _owner_uids(each) & mine} - mine:
        mine |= more
    return [each for each in things if each["metadata"]["uid"] in mine]


def _owner_uids(thing: KubeObject) -> set[str]:
    return {str(each.get("uid")) for each in thing["metadata"].get("ownerReferences") or ()}


def _delete_and_await(orphan: Orphan, things: list[KubeObject]) -> None:
    """Delete the objects that no other one owns, and wait until all are gone."""
    labels, until = {RUN_LABEL: orphan.run}, time.monotonic() + REMOVAL_TIMEOUT_S
    ids = {each["metadata"]["uid"] for each in things}
    for each in things:
        if not _owner_uids(each) & ids:
            orphan.server.delete_exact(each)
    which = {(each["apiVersion"], each["kind"]) for each in things}
    while time.monotonic() < until:
        if not any(
            each["metadata"]["uid"] in ids for each in list_labelled_objects(orphan.server, which, labels).things
        ):
            return
        time.sleep(_REMOVAL_POLL_INTERVAL_S)


def has_cluster(context: str | None) -> bool:
    """Whether there is a cluster to search; a context that is named must exist."""
    try:
        client.get_cluster_client(Cluster(context=context))
    except ClusterError:
        if context:
            raise
        return False
    return True
