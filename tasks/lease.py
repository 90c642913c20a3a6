"""Holding a run's Lease: taken before anything is made, renewed while a job is waited for, deleted last."""

import json
import socket
import time
from datetime import UTC, datetime
from pathlib import Path

from tasks.cluster import Api, Object, api
from tasks.errors import ClusterError, OwnedError
from tasks.launchers import _lease
from tasks.launchers._pod import ATTEMPT
from tasks.model import Outcome
from tasks.plan import ManifestPlan
from tasks.step import log

DEAD = 130.0  # seconds without a renewal after which the holder is dead: it renews every 40 s
LOOK = 5.0  # seconds between two looks whether a holder lives
TESTED = 422  # the API server's answer where a JSON patch tests in vain


def place(plan: ManifestPlan) -> str:
    """Where this process carries the run. One process a place: there is a lock in the run's folder."""
    return f"{socket.gethostname()}:{Path(plan.folder).parent}"


# --- taking it


def take(plan: ManifestPlan) -> Object:
    """The run's Lease, held from here: made, found, or taken over from a holder that is dead.

    OwnedError where another living process holds it.
    """
    server, fresh = api(plan.cluster), fill(plan)
    try:
        return server.create(fresh)
    except ClusterError as error:
        if error.status != 409:
            raise
    there = await_holder(server, plan)
    if there is None:
        return server.create(fresh)
    if _lease.holder(there) != place(plan):
        log().info("%s is taken over from %s, which renews its Lease no more", plan.run, _lease.holder(there))
    test = {"op": "test", "path": "/spec/renewTime", "value": _lease.renewed(there)}
    found = change(plan, "another process, which was quicker", test, *entries(fresh["spec"])) or fresh
    if _lease.attempt(found) != _lease.attempt(fresh):
        told = {**fresh["metadata"]["annotations"], _lease.ENDING: ""}
        found = server.patch(fresh, {"metadata": {"annotations": told}})
    return found


def fill(plan: ManifestPlan) -> Object:
    """The Lease as it is when this process takes it."""
    now = stamp()
    spec = {**plan.lease["spec"], "holderIdentity": place(plan), "acquireTime": now, "renewTime": now}
    return {**plan.lease, "spec": spec}


def stamp() -> str:
    """Now, as the API server writes the times of Leases."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def entries(spec: Object) -> list[Object]:
    return [{"op": "add", "path": f"/spec/{key}", "value": value} for key, value in spec.items()]


def await_holder(server: Api, plan: ManifestPlan) -> Object | None:
    """The Lease once its holder is this place, or dead; None where there is none. A holder that renews is alive."""
    there = first = read(server, plan)
    told = False
    while there and first and _lease.holder(there) != place(plan) and _lease.age(there) < DEAD:
        if _lease.renewed(there) != _lease.renewed(first):
            raise OwnedError(plan.run, _lease.holder(there))
        if not told:
            told = True
            log().info("%s is held by %s: waiting whether that is alive", plan.run, _lease.holder(there))
        time.sleep(LOOK)
        there = read(server, plan)
    return there


def refuse_carried(plan: ManifestPlan) -> None:
    """OwnedError where a living process on another machine holds the Lease."""
    there = read(api(plan.cluster), plan)
    if there and _lease.holder(there) != place(plan) and _lease.age(there) < DEAD:
        raise OwnedError(plan.run, _lease.holder(there))


def read(server: Api, plan: ManifestPlan) -> Object | None:
    """The run's Lease as it is now."""
    return server.read(_lease.API, _lease.KIND, plan.run)


# --- saying what whoever takes over must know


def change(plan: ManifestPlan, who: str, *changes: Object) -> Object | None:
    """Change it as one; None where it is gone, OwnedError where a test in it fails.

    A Lease that somebody deleted takes the job with it: the job's own watch tells that.
    """
    try:
        return api(plan.cluster).patch(plan.lease, list(changes))
    except ClusterError as error:
        if error.status == 404:
            return None
        if error.status != TESTED:
            raise
    there = read(api(plan.cluster), plan)
    if there and _lease.holder(there) != place(plan):
        raise OwnedError(plan.run, who)
    return there  # done before: the answer was lost


def mine(plan: ManifestPlan) -> Object:
    return {"op": "test", "path": "/spec/holderIdentity", "value": place(plan)}


def renew(plan: ManifestPlan) -> None:
    """Say that the run is looked after. OwnedError where another process has taken it over."""
    change(plan, "another process, which has taken it over", mine(plan), *entries({"renewTime": stamp()}))


def tell(plan: ManifestPlan, key: str, text: str) -> None:
    """Write a fact down. OwnedError where another process has taken the run over."""
    path = f"/metadata/annotations/{key.replace('/', '~1')}"
    change(plan, "another process, which has taken it over", mine(plan), {"op": "add", "path": path, "value": text})


def tell_submitted(plan: ManifestPlan) -> None:
    tell(plan, _lease.SUBMITTED, plan.labels[ATTEMPT])


def tell_outcome(plan: ManifestPlan, outcome: Outcome) -> None:
    tell(plan, _lease.OUTCOME, _lease.write_outcome(plan.labels[ATTEMPT], outcome))


def tell_ending(plan: ManifestPlan, end: str, sentence: str) -> None:
    tell(plan, _lease.ENDING, json.dumps({"end": end, "sentence": sentence}))


def release(plan: ManifestPlan) -> None:
    """The run is over: nothing of it is left, and nobody need look after it."""
    server = api(plan.cluster)
    there = read(server, plan)
    if there and _lease.holder(there) == place(plan):
        server.delete(_lease.API, _lease.KIND, plan.run, force=True)
