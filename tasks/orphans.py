"""What runs have in a cluster whose launcher is dead: found by their Leases and labels, in all namespaces."""

import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

from tasks import cluster
from tasks.cluster import Api, Object
from tasks.errors import ClusterError
from tasks.launchers import _lease, _pod_facts
from tasks.launchers._pod import ROLE, RUN
from tasks.lease import DEAD
from tasks.removal import GOING, describe, found, kinds
from tasks.spec import Cluster

FORGOTTEN = 600.0  # seconds after which an object of a run without a Lease belongs to nobody
LOOK = 1.0
Alive = Callable[[str], str]  # of a flow run's id: why its run may be alive; empty where it is not


class Orphan(NamedTuple):
    """A run that nobody looks after, and why that is known."""

    server: Api
    run: str
    flow_run: str
    why: str

    def __str__(self) -> str:
        return f"{self.server.namespace}/{self.run}"


def orphans(context: str | None, now: bool, alive: Alive) -> list[Orphan]:
    """Every run that nobody looks after, in all namespaces that this user may see.

    Its Lease has run out (with `now`: is not renewed any more), and Prefect does not take it for alive. ClusterError
    where the cluster cannot be asked.
    """
    server = cluster.api(Cluster(context=context))
    leases = {key(each): each for each in seen(server, [(_lease.API, _lease.KIND)])}
    due = [each for each in leases.values() if (_lease.age(each) > DEAD if now else _lease.left(each) < 0)]
    why = "its Lease is not renewed" if now else "its Lease has run out"
    known = [(each, _lease.said(each, _lease.FLOW_RUN), why) for each in due]
    rest = {key(each): each for each in seen(server, kinds(server)) if key(each) not in leases and is_forgotten(each)}
    known += [(each, "", "it has no Lease") for each in rest.values()]
    return [
        Orphan(cluster.api(Cluster(context=context, namespace=key(each)[0])), key(each)[1], flow_run, why)
        for each, flow_run, why in known
        if not (flow_run and alive(flow_run))
    ]


def silent(context: str | None) -> list[str]:
    """The flow runs whose Lease lasts, and that nobody renews: their launchers are lost."""
    leases = seen(cluster.api(Cluster(context=context)), [(_lease.API, _lease.KIND)])
    lost = [each for each in leases if _lease.age(each) > DEAD and _lease.left(each) >= 0]
    return [flow_run for each in lost if (flow_run := _lease.said(each, _lease.FLOW_RUN))]


def seen(server: Api, which: Iterable[tuple[str, str]]) -> list[Object]:
    """What carries our label, everywhere, or where that may not be looked at in the user's own namespace."""
    which = tuple(which)
    return found(server, which, {RUN: ""}, everywhere=True) or found(server, which, {RUN: ""})


def key(thing: Object) -> tuple[str, str]:
    """The namespace and the run of an object."""
    return thing["metadata"]["namespace"], thing["metadata"]["labels"][RUN]


def is_forgotten(thing: Object) -> bool:
    return time.time() - _pod_facts.seconds(thing["metadata"].get("creationTimestamp")) > FORGOTTEN


# --- removing one


def objects(orphan: Orphan) -> list[Object]:
    """Everything of the run but its Lease."""
    everything = found(orphan.server, kinds(orphan.server), {RUN: orphan.run})
    return [each for each in everything if each["kind"] != _lease.KIND]


def remove(orphan: Orphan) -> list[str]:
    """Delete the run's jobs, then its stores, then its Lease; what is left."""
    server = orphan.server
    clear(orphan, [each for each in objects(orphan) if not is_store(each)])
    clear(orphan, objects(orphan))
    left = [describe(each) for each in objects(orphan)]
    if not left:
        server.delete(_lease.API, _lease.KIND, orphan.run, force=True)
    return left


def is_store(thing: Object) -> bool:
    return ROLE in thing["metadata"]["labels"]


def clear(orphan: Orphan, things: list[Object]) -> None:
    """Delete what nothing else owns, and wait until it is gone with all that it owns."""
    for each in things:
        owners = each["metadata"].get("ownerReferences") or ()
        if all(owner["kind"] == _lease.KIND for owner in owners):
            orphan.server.delete(each["apiVersion"], each["kind"], each["metadata"]["name"])
    which = {(each["apiVersion"], each["kind"]) for each in things}
    names = {each["metadata"]["uid"] for each in things}
    until = time.monotonic() + GOING
    while time.monotonic() < until:
        if not any(each["metadata"]["uid"] in names for each in found(orphan.server, which, {RUN: orphan.run})):
            return
        time.sleep(LOOK)


def has_cluster(context: str | None) -> bool:
    """Whether there is a cluster to look through; a context that is named must be there."""
    try:
        cluster.api(Cluster(context=context))
    except ClusterError:
        if context:
            raise
        return False
    return True
