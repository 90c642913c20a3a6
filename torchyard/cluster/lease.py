"""Holds a run's Lease: acquired before anything is created, renewed while the run lasts, deleted last."""

import time
from datetime import UTC, datetime
from pathlib import Path

from torchyard.common.identity import holder_identity, is_holder
from torchyard.common.log import get_log
from torchyard.kube.client import Client, KubeObject, get_cluster_client
from torchyard.model.errors import ClusterError, RunInUseError
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import End, Outcome
from torchyard.pods import lease_record
from torchyard.pods.template import ATTEMPT_KEY

RENEW_INTERVAL_S = 40.0
HOLDER_DEAD_AFTER_S = 3 * RENEW_INTERVAL_S + 10.0  # without a renewal for so long, the holder is dead
_HOLDER_POLL_INTERVAL_S = 5.0  # seconds between two checks whether a holder is alive
_SUCCESSOR = "another process, which has taken it over"
TEST_FAILED_STATUS = 422  # the API server's answer if a test in a JSON patch fails


def _holder_identity(plan: ManifestPlan) -> str:
    """The place from which this process owns the run. The lock in the run's folder allows one process per place."""
    return holder_identity(str(Path(plan.folder).parent))


def is_held_here(plan: ManifestPlan, lease: KubeObject) -> bool:
    """Whether the Lease is held from here, also under the name that the previous version gave to this place."""
    return not lease_record.is_handed_over(lease) and is_holder(
        lease_record.read_holder(lease), str(Path(plan.folder).parent)
    )


# --- acquiring it


def acquire_lease(plan: ManifestPlan) -> KubeObject:
    """The run's Lease, held from here: created, found, or taken over from a dead holder.

    Raises RunInUseError if another living process holds it.
    """
    server = get_cluster_client(plan.cluster)
    fresh = _fill_lease(plan, server)
    try:
        return server.create(fresh)
    except ClusterError as error:
        if error.status != 409:
            raise
    there = _await_holder(server, plan)
    if there is None:
        return server.create(fresh)
    if not is_held_here(plan, there):
        why = "has handed it over" if lease_record.is_handed_over(there) else "no longer renews its Lease"
        get_log().info("%s is taken over from %s, which %s", plan.run, lease_record.read_holder(there), why)
    for fault in lease_record.list_lease_faults(there, server.now()):
        get_log().warning("Lease %s: %s; this is corrected", plan.run, fault)
    found = (
        _patch_lease(
            plan,
            "another process, which was faster",
            lease_record.build_unchanged_test(there),
            *spec_patch(fresh["spec"]),
        )
        or fresh
    )
    return _update_metadata(server, found, fresh)


def _update_metadata(server: Client, found: KubeObject, fresh: KubeObject) -> KubeObject:
    """The Lease with this process's annotations and labels; a new attempt clears the recorded ending."""
    about = fresh["metadata"]
    told = (
        {**about["annotations"], lease_record.ENDING_ANNOTATION: ""}
        if lease_record.read_attempt(found) != lease_record.read_attempt(fresh)
        else {}
    )
    if any(lease_record.read_annotation(found, key) != value for key, value in about["annotations"].items()):
        told = {**about["annotations"], **told}
    labels = {} if about["labels"].items() <= (found["metadata"].get("labels") or {}).items() else about["labels"]
    if not told and not labels:
        return found
    return server.patch(fresh, {"metadata": {"annotations": told, "labels": labels}})


def _fill_lease(plan: ManifestPlan, server: Client) -> KubeObject:
    """The Lease as this process acquires it."""
    now = format_server_time(server)
    spec = {**plan.lease["spec"], "holderIdentity": _holder_identity(plan), "acquireTime": now, "renewTime": now}
    about = dict(plan.lease["metadata"])
    if seal := lease_record.seal_lease(plan.lease, server.namespace, lease_record.get_lease_key(plan.lease)):
        about["annotations"] = {**about["annotations"], lease_record.SEAL_ANNOTATION: seal}
    return {**plan.lease, "metadata": about, "spec": spec}


def format_server_time(server: Client) -> str:
    """The time by the API server's clock, in the format of a Lease's times."""
    return datetime.fromtimestamp(server.now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def spec_patch(spec: KubeObject) -> list[KubeObject]:
    return [{"op": "add", "path": f"/spec/{key}", "value": value} for key, value in spec.items()]


def _await_holder(server: Client, plan: ManifestPlan) -> KubeObject | None:
    """Wait until the Lease's holder is this place, or dead; None if there is no Lease.

    A holder is dead if it has not renewed for HOLDER_DEAD_AFTER_S, by the API server's clock or while watched here.
    Raises RunInUseError if it renews.
    """
    there = first = read_lease(server, plan)
    told, began = False, time.monotonic()
    while (
        there and first and _is_held_elsewhere(server, plan, there) and time.monotonic() - began < HOLDER_DEAD_AFTER_S
    ):
        if lease_record.read_renew_time(there) != lease_record.read_renew_time(first):
            raise RunInUseError(plan.run, lease_record.read_holder(there))
        if not told:
            told = True
            get_log().info(
                "%s is held by %s: waiting to see whether it is still alive", plan.run, lease_record.read_holder(there)
            )
        time.sleep(_HOLDER_POLL_INTERVAL_S)
        there = read_lease(server, plan)
    return there


def _is_held_elsewhere(server: Client, plan: ManifestPlan, there: KubeObject) -> bool:
    """Whether another place, which may be alive, holds the Lease."""
    if lease_record.is_handed_over(there):
        return False
    age = lease_record.measure_lease_age(there, server.now())
    return not is_held_here(plan, there) and (age is None or age < HOLDER_DEAD_AFTER_S)


def refuse_held_lease(plan: ManifestPlan) -> None:
    """Raise RunInUseError if another machine holds the Lease: until it expires, that one may resume the run."""
    server = get_cluster_client(plan.cluster)
    there = read_lease(server, plan)
    if not there or is_held_here(plan, there):
        return
    left = lease_record.measure_time_left(there, server.now())
    if _is_held_elsewhere(server, plan, there) or left is None or left >= 0:
        raise RunInUseError(plan.run, lease_record.read_holder(there))


def read_lease(server: Client, plan: ManifestPlan) -> KubeObject | None:
    """The run's Lease as it is now."""
    return server.get(lease_record.LEASE_API, lease_record.LEASE_KIND, plan.run)


# --- recording what a successor must know


def _patch_lease(plan: ManifestPlan, who: str, *changes: KubeObject) -> KubeObject | None:
    """Change the Lease in one patch; None if it is gone. Raises RunInUseError if another place holds it by now.

    Deleting a Lease deletes the job with it: the job's own watch reports that.
    """
    try:
        return get_cluster_client(plan.cluster).patch(plan.lease, list(changes))
    except ClusterError as error:
        if error.status == 404:
            return None
        if error.status != TEST_FAILED_STATUS:
            raise
    there = read_lease(get_cluster_client(plan.cluster), plan)
    if there and not is_held_here(plan, there):
        raise RunInUseError(plan.run, who)
    return there  # done before: the answer was lost


def _holder_test(plan: ManifestPlan) -> KubeObject:
    return {"op": "test", "path": "/spec/holderIdentity", "value": _holder_identity(plan)}


def renew_lease(plan: ManifestPlan) -> None:
    """Renew the run's Lease. Raises RunInUseError if another process has taken the run over."""
    _patch_lease(
        plan,
        _SUCCESSOR,
        _holder_test(plan),
        *spec_patch({"renewTime": format_server_time(get_cluster_client(plan.cluster))}),
    )


def _annotate_lease(plan: ManifestPlan, key: str, text: str) -> None:
    """Record a fact on the Lease. Raises RunInUseError if another process has taken the run over."""
    path = f"/metadata/annotations/{key.replace('/', '~1')}"
    _patch_lease(plan, _SUCCESSOR, _holder_test(plan), {"op": "add", "path": path, "value": text})


def record_submission(plan: ManifestPlan) -> None:
    _annotate_lease(plan, lease_record.SUBMITTED_ANNOTATION, plan.labels[ATTEMPT_KEY])


def record_outcome(plan: ManifestPlan, outcome: Outcome) -> None:
    secret = lease_record.get_lease_key(plan.lease)
    _annotate_lease(
        plan,
        lease_record.OUTCOME_ANNOTATION,
        lease_record.seal_outcome(plan.run, plan.labels[ATTEMPT_KEY], outcome, secret),
    )


def record_ending(plan: ManifestPlan, end: End, sentence: str) -> None:
    ending = lease_record.RecordedEnding(end=end, sentence=sentence[: lease_record.MAX_TEXT_CHARS])
    _annotate_lease(
        plan,
        lease_record.ENDING_ANNOTATION,
        lease_record.seal_ending(plan.run, plan.labels[ATTEMPT_KEY], ending, lease_record.get_lease_key(plan.lease)),
    )


def hand_lease_over(plan: ManifestPlan) -> None:
    """Leave the Lease to the next process of the run, which need not wait to see whether this one is dead."""
    path = f"/metadata/annotations/{lease_record.HANDED_OVER_ANNOTATION.replace('/', '~1')}"
    left_by = {"op": "add", "path": path, "value": _holder_identity(plan)}
    _patch_lease(plan, _SUCCESSOR, _holder_test(plan), *spec_patch({"holderIdentity": ""}), left_by)


def release_lease(plan: ManifestPlan) -> None:
    """Delete the Lease if it is held from here: the run is over, and nothing of it is left."""
    server = get_cluster_client(plan.cluster)
    there = read_lease(server, plan)
    if there and is_held_here(plan, there):
        server.delete(lease_record.LEASE_API, lease_record.LEASE_KIND, plan.run, force=True)
