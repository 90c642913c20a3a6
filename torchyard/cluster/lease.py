"""Holding a run's Lease: taken before anything is made, renewed while a job is waited for, deleted last."""

import time
from datetime import UTC, datetime
from pathlib import Path

from torchyard.common.identity import holds, identity
from torchyard.common.log import log
from torchyard.kube.client import Api, Object, api
from torchyard.model.errors import ClusterError, OwnedError
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import End, Outcome
from torchyard.pods import lease_record
from torchyard.pods.template import ATTEMPT

DEAD = 130.0  # seconds without a renewal after which the holder is dead: it renews every 40 s
LOOK = 5.0  # seconds between two looks whether a holder lives
TESTED = 422  # the API server's answer where a JSON patch tests in vain


def place(plan: ManifestPlan) -> str:
    """Where this process carries the run. One process a place: there is a lock in the run's folder."""
    return identity(str(Path(plan.folder).parent))


def is_here(plan: ManifestPlan, lease: Object) -> bool:
    """Whether the Lease is held from here, also under the name that the version before gave to this place."""
    return holds(lease_record.holder(lease), str(Path(plan.folder).parent))


# --- taking it


def take(plan: ManifestPlan) -> Object:
    """The run's Lease, held from here: made, found, or taken over from a holder that is dead.

    OwnedError where another living process holds it.
    """
    server = api(plan.cluster)
    fresh = fill(plan, server)
    try:
        return server.create(fresh)
    except ClusterError as error:
        if error.status != 409:
            raise
    there = await_holder(server, plan)
    if there is None:
        return server.create(fresh)
    if not is_here(plan, there):
        log().info("%s is taken over from %s, which renews its Lease no more", plan.run, lease_record.holder(there))
    for fault in lease_record.faults(there, server.now()):
        log().warning("Lease %s: %s; it is set right", plan.run, fault)
    found = (
        change(plan, "another process, which was quicker", lease_record.unchanged(there), *entries(fresh["spec"]))
        or fresh
    )
    return update_told(server, found, fresh)


def update_told(server: Api, found: Object, fresh: Object) -> Object:
    """The Lease with what this process says on it: of a new attempt nothing is known so far."""
    about = fresh["metadata"]
    told = (
        {**about["annotations"], lease_record.ENDING: ""}
        if lease_record.attempt(found) != lease_record.attempt(fresh)
        else {}
    )
    if any(lease_record.said(found, key) != value for key, value in about["annotations"].items()):
        told = {**about["annotations"], **told}
    labels = {} if about["labels"].items() <= (found["metadata"].get("labels") or {}).items() else about["labels"]
    if not told and not labels:
        return found
    return server.patch(fresh, {"metadata": {"annotations": told, "labels": labels}})


def fill(plan: ManifestPlan, server: Api) -> Object:
    """The Lease as it is when this process takes it."""
    now = stamp(server)
    spec = {**plan.lease["spec"], "holderIdentity": place(plan), "acquireTime": now, "renewTime": now}
    about = dict(plan.lease["metadata"])
    if seal := lease_record.sealed(plan.lease, server.namespace, lease_record.key_of(plan.lease)):
        about["annotations"] = {**about["annotations"], lease_record.SEAL: seal}
    return {**plan.lease, "metadata": about, "spec": spec}


def stamp(server: Api) -> str:
    """Now by the API server's clock, as it writes the times of Leases."""
    return datetime.fromtimestamp(server.now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def entries(spec: Object) -> list[Object]:
    return [{"op": "add", "path": f"/spec/{key}", "value": value} for key, value in spec.items()]


def await_holder(server: Api, plan: ManifestPlan) -> Object | None:
    """The Lease once its holder is this place, or dead; None where there is none. A holder that renews is alive.

    Dead is who has not renewed for DEAD seconds by the API server's clock, or for as long as was watched here.
    """
    there = first = read(server, plan)
    told, began = False, time.monotonic()
    while there and first and is_held(server, plan, there) and time.monotonic() - began < DEAD:
        if lease_record.renewed(there) != lease_record.renewed(first):
            raise OwnedError(plan.run, lease_record.holder(there))
        if not told:
            told = True
            log().info(
                "%s is held by %s: waiting to see whether it is still alive", plan.run, lease_record.holder(there)
            )
        time.sleep(LOOK)
        there = read(server, plan)
    return there


def is_held(server: Api, plan: ManifestPlan, there: Object) -> bool:
    """Whether another place holds the Lease, and may be alive."""
    age = lease_record.age(there, server.now())
    return not is_here(plan, there) and (age is None or age < DEAD)


def refuse_carried(plan: ManifestPlan) -> None:
    """OwnedError where another machine holds the Lease: while it lasts, that one may come back."""
    server = api(plan.cluster)
    there = read(server, plan)
    if not there or is_here(plan, there):
        return
    left = lease_record.left(there, server.now())
    if is_held(server, plan, there) or left is None or left >= 0:
        raise OwnedError(plan.run, lease_record.holder(there))


def read(server: Api, plan: ManifestPlan) -> Object | None:
    """The run's Lease as it is now."""
    return server.read(lease_record.API, lease_record.KIND, plan.run)


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
    if there and not is_here(plan, there):
        raise OwnedError(plan.run, who)
    return there  # done before: the answer was lost


def mine(plan: ManifestPlan) -> Object:
    return {"op": "test", "path": "/spec/holderIdentity", "value": place(plan)}


def renew(plan: ManifestPlan) -> None:
    """Say that the run is looked after. OwnedError where another process has taken it over."""
    change(
        plan, "another process, which has taken it over", mine(plan), *entries({"renewTime": stamp(api(plan.cluster))})
    )


def tell(plan: ManifestPlan, key: str, text: str) -> None:
    """Write a fact down. OwnedError where another process has taken the run over."""
    path = f"/metadata/annotations/{key.replace('/', '~1')}"
    change(plan, "another process, which has taken it over", mine(plan), {"op": "add", "path": path, "value": text})


def tell_submitted(plan: ManifestPlan) -> None:
    tell(plan, lease_record.SUBMITTED, plan.labels[ATTEMPT])


def tell_outcome(plan: ManifestPlan, outcome: Outcome) -> None:
    secret = lease_record.key_of(plan.lease)
    tell(plan, lease_record.OUTCOME, lease_record.write_outcome(plan.run, plan.labels[ATTEMPT], outcome, secret))


def tell_ending(plan: ManifestPlan, end: End, sentence: str) -> None:
    ending = lease_record.Ending(end=end, sentence=sentence[: lease_record.MAX_CHARS])
    tell(
        plan,
        lease_record.ENDING,
        lease_record.write_ending(plan.run, plan.labels[ATTEMPT], ending, lease_record.key_of(plan.lease)),
    )


def release(plan: ManifestPlan) -> None:
    """The run is over: nothing of it is left, and nobody need look after it."""
    server = api(plan.cluster)
    there = read(server, plan)
    if there and is_here(plan, there):
        server.delete(lease_record.API, lease_record.KIND, plan.run, force=True)
