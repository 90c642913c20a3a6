"""What runs have in a cluster whose launcher is dead: found by their Leases, in all namespaces.

A Lease is what others may have written as well. It stands for nothing but what it owns, in its own namespace, and it is
taken over before anything of it is deleted: whoever comes back in that moment finds it held.
"""

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from torchyard.cluster.delete import GOING, Kind, Seen, describe, keep_data, kinds, look
from torchyard.cluster.lease import DEAD, TESTED, entries, stamp
from torchyard.common.log import log
from torchyard.diagnosis import pod_facts
from torchyard.kube import client
from torchyard.kube.client import Api, Object
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster
from torchyard.pods import lease_record
from torchyard.pods.template import ROLE, RUN
from torchyard.pods.user_manifest import holds_data

FORGOTTEN = 600.0  # seconds after which an object of a run without a Lease belongs to nobody
OBSERVED_S = 60.0  # that a Lease is watched before it is believed that nobody renews it: longer than between renewals
LOOK = 1.0
LEASES: Kind = (lease_record.API, lease_record.KIND)
PODS: Kind = ("v1", "Pod")
ROLES = "docs/rbac.yaml has it in role torchyard-sweep"
Alive = Callable[[str], str]  # why a run may be alive; empty where it is not


class Terms(NamedTuple):
    """What a sweep may take: what has ended its Lease, or of `runs` alone also what is not renewed any more."""

    alive: Alive  # of a flow run's id
    alive_by_name: Alive = lambda _: "nobody has been asked"  # of a run's name
    runs: frozenset[str] | None = None
    without_lease: bool = False

    def counts(self, run: str) -> bool:
        return self.runs is None or run in self.runs


class Orphan(NamedTuple):
    """A run that nobody looks after, and why that is known; `kept` says why it stays nevertheless."""

    server: Api
    run: str
    why: str
    kept: str = ""
    lease: Object | None = None  # as it was `at` that moment; None where there is none
    at: float = 0.0

    def __str__(self) -> str:
        return f"{self.server.namespace}/{self.run}"


def orphans(context: str | None, terms: Terms) -> Iterator[Orphan]:
    """Every run that nobody looks after, in all namespaces that this user may see.

    ClusterError where the cluster cannot be asked, or its Leases may not be listed.
    """
    server = client.api(Cluster(context=context))
    leases, now = list_leases(server), server.now()
    for each in leases:
        here = _in(server, each)
        if terms.counts(lease_record.name(each)) and (found := _judge(here, each, now, terms)):
            yield found
    known = {(each["metadata"]["namespace"], lease_record.name(each)) for each in leases}
    rest = [each for each in _list_labelled(server) if _key(each) not in known and each["kind"] != lease_record.KIND]
    for (_, run), things in _by_run(rest).items():
        if terms.counts(run):
            yield from _judge_bare(_in(server, things[0]), run, things, terms)


def silent(context: str | None) -> list[Object]:
    """The Leases that last, and that nobody renews: the launchers of their runs are lost."""
    server = client.api(Cluster(context=context))
    now = server.now()
    sound = [each for each in list_leases(server) if not lease_record.faults(each, now)]
    return [
        each
        for each in sound
        if (lease_record.age(each, now) or 0.0) > DEAD and (lease_record.left(each, now) or 0.0) >= 0
    ]


def list_leases(server: Api) -> list[Object]:
    """The Leases of runs everywhere, or where that is refused in the user's own namespace.

    ClusterError where both are: without them no run can be told from one that is left.
    """
    query = {"labelSelector": RUN}
    try:
        return server.items(*LEASES, query, everywhere=True)
    except ClusterError as error:
        if error.status != 403:
            raise
    try:
        found = server.items(*LEASES, query)
    except ClusterError as error:
        if error.status != 403:
            raise
        said = f"{error.said}; without `list leases` nothing can be swept, and nothing was: {ROLES}"
        raise ClusterError(error.host, error.what, said, error.status) from error
    log().warning("only namespace %s is looked through: Leases of all need `list leases`; %s", server.namespace, ROLES)
    return found


def _judge(server: Api, lease: Object, now: float, terms: Terms) -> Orphan | None:
    """The run of a Lease, if it is left, or is asked for by name."""
    run, named = lease_record.name(lease), terms.runs is not None
    found = Orphan(server, run, "its Lease has run out", "", lease, time.monotonic())
    if wrong := lease_record.faults(lease, now):
        remedy = f"kubectl delete lease -n {server.namespace} {run} removes what it owns"
        return found._replace(why="its Lease cannot be judged", kept=f"{'; '.join(wrong)}; {remedy}")
    left, age = lease_record.left(lease, now) or 0.0, lease_record.age(lease, now) or 0.0
    if left >= 0 and not named:
        return None
    if left >= 0:
        found = found._replace(why="it is named, and its Lease is not renewed")
        if age < DEAD:
            kept = (
                f"{lease_record.holder(lease)} renewed its Lease {age:.0f} s ago: cancel the run, or end that process"
            )
            return found._replace(kept=kept)
    if why := terms.alive(lease_record.flow_run(lease)):
        return found._replace(kept=f"{why}: cancel it in Prefect first") if named else None
    return found


def _judge_bare(server: Api, run: str, things: list[Object], terms: Terms) -> Iterator[Orphan]:
    """Objects with a run's label, and no Lease of its name among those that were listed."""
    now = server.now()
    if any(now - pod_facts.seconds(each["metadata"].get("creationTimestamp")) < FORGOTTEN for each in things):
        return
    found = Orphan(server, run, "it has no Lease")
    lease = server.read(*LEASES, run)  # the proof: 404 by name
    if lease:
        yield found._replace(why="its Lease cannot be judged", kept=f"it lacks the label {RUN}")
    elif not terms.without_lease:
        yield found._replace(kept="`--without-lease` removes it")
    elif why := terms.alive_by_name(run):
        yield found._replace(kept=why)
    else:
        yield found


def _list_labelled(server: Api) -> list[Object]:
    """What carries a run's label, everywhere, or where that may not be looked at in the user's own namespace."""
    seen = look(server, kinds(server), {RUN: ""}, everywhere=True)
    return [*seen.things, *look(server, list(seen.unseen), {RUN: ""}).things]


def _in(server: Api, thing: Object) -> Api:
    """The same cluster, and the namespace of an object."""
    return client.api(Cluster(context=server.context, namespace=thing["metadata"]["namespace"]))


def _key(thing: Object) -> tuple[str, str]:
    """The namespace and the run of an object."""
    return thing["metadata"]["namespace"], thing["metadata"]["labels"][RUN]


def _by_run(things: Iterable[Object]) -> dict[tuple[str, str], list[Object]]:
    groups: dict[tuple[str, str], list[Object]] = {}
    for each in things:
        groups.setdefault(_key(each), []).append(each)
    return groups


# --- removing one


def remove(orphan: Orphan) -> list[str] | None:
    """Delete the run's jobs, then its stores, then its Lease; what is left. None where somebody renewed the Lease."""
    labels = {RUN: orphan.run}
    seen = _look(orphan, labels)
    if PODS in seen.unseen:
        said = f"{seen.unseen[PODS]}; what cannot be seen is not removed: docs/rbac.yaml has it in role torchyard"
        raise ClusterError(orphan.server.host, f"list pods in {orphan.server.namespace}", said, 403)
    if orphan.lease and not _claim(orphan, orphan.lease):
        return None
    mine = _owned(orphan, seen.things)
    for thing in mine:
        keep_data(orphan.server, thing, labels)
    gone = [each for each in mine if not holds_data(each)]
    _clear(orphan, [each for each in gone if ROLE not in each["metadata"]["labels"]])
    _clear(orphan, gone)
    rest = _look(orphan, labels).things
    left = _owned(orphan, rest)
    if orphan.lease and not left:
        orphan.server.delete_same(orphan.lease, force=True)
    ids = {each["metadata"]["uid"] for each in left}
    strange = [each for each in rest if each["metadata"]["uid"] not in ids]
    return [
        *map(describe, left),
        *(f"{describe(each)}: it only carries the run's label, and is not its Lease's" for each in strange),
    ]


def _claim(orphan: Orphan, lease: Object) -> bool:
    """Hold the Lease, if nobody has renewed it while it was watched: who comes back now finds it held.

    It lasts no longer than its holder counts as alive: what a sweep cannot remove the next one tries again.
    """
    time.sleep(max(orphan.at + OBSERVED_S - time.monotonic(), 0.0))
    here = {"holderIdentity": f"sweep:{socket.gethostname()}:{os.getpid()}", "renewTime": stamp(orphan.server)}
    same = {"op": "test", "path": "/metadata/uid", "value": lease["metadata"]["uid"]}
    change = entries({**here, "leaseDurationSeconds": int(DEAD)})
    try:
        orphan.server.patch(lease, [same, lease_record.unchanged(lease), *change])
    except ClusterError as error:
        if error.status not in (404, TESTED):
            raise
        return False
    return True


def _look(orphan: Orphan, labels: dict[str, str]) -> Seen:
    """Everything that carries the run's label, but its Lease."""
    seen = look(orphan.server, dict.fromkeys((PODS, *kinds(orphan.server))), labels)
    return seen._replace(things=[each for each in seen.things if each["kind"] != lease_record.KIND])


def _owned(orphan: Orphan, things: list[Object]) -> list[Object]:
    """What the Lease owns, or something that it owns; without a Lease, all. What holds data is nobody's."""
    mine = {orphan.lease["metadata"]["uid"]} if orphan.lease else {each["metadata"]["uid"] for each in things}
    while more := {each["metadata"]["uid"] for each in things if _owners(each) & mine} - mine:
        mine |= more
    return [each for each in things if each["metadata"]["uid"] in mine]


def _owners(thing: Object) -> set[str]:
    return {str(each.get("uid")) for each in thing["metadata"].get("ownerReferences") or ()}


def _clear(orphan: Orphan, things: list[Object]) -> None:
    """Delete what none of the others owns, and wait until all are gone."""
    labels, until = {RUN: orphan.run}, time.monotonic() + GOING
    ids = {each["metadata"]["uid"] for each in things}
    for each in things:
        if not _owners(each) & ids:
            orphan.server.delete_same(each)
    which = {(each["apiVersion"], each["kind"]) for each in things}
    while time.monotonic() < until:
        if not any(each["metadata"]["uid"] in ids for each in look(orphan.server, which, labels).things):
            return
        time.sleep(LOOK)


def has_cluster(context: str | None) -> bool:
    """Whether there is a cluster to look through; a context that is named must be there."""
    try:
        client.api(Cluster(context=context))
    except ClusterError:
        if context:
            raise
        return False
    return True
