"""Holds a run's Lease: acquired before anything is created, renewed while the run lasts, deleted last.

The Lease owns the run's objects, and names the place (machine and folder) that owns the run. Only its holder changes
it: each patch contains a test of the holder, or of the version that was read, and fails if another process was faster.

All ages are by the API server's clock, so a machine whose clock is wrong neither loses a run nor takes one.
"""

import math
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path

from torchyard.common.identity import get_user_name, identify_holder
from torchyard.common.log import get_log
from torchyard.host.identity import read_uptime
from torchyard.kube.client import Client, KubeObject, get_cluster_client
from torchyard.kube.per_client import PerClient
from torchyard.model.errors import ClusterError, NotFoundError, RunInUseError
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import End, Outcome
from torchyard.pods import lease_record
from torchyard.pods.template import ATTEMPT_KEY

RENEW_INTERVAL_S = 40.0
HOLDER_DEAD_AFTER_S = 3 * RENEW_INTERVAL_S + 10.0  # without a renewal for so long, the holder is dead
MAX_PROOF_AGE_S = 1.0  # of a renewal that proves the ownership: nobody takes the run over before HOLDER_DEAD_AFTER_S
HOLDER_POLL_INTERVAL_S = 5.0  # seconds between two checks whether a holder is alive
_MAX_RELEASE_TRIES = 5
_MAX_LOST_LEASES = 3  # that another user deletes while this process takes them over
_NEW_HOLDER = "another process, which has taken it over"
TEST_FAILED_STATUS = 422  # the API server's response if a test in a JSON patch fails


def build_holder_identity(plan: ManifestPlan) -> str:
    """The place (machine and folder) that owns the run; the lock in the run's folder allows one process per place."""
    return identify_holder(str(Path(plan.folder).parent))


def is_held_here(plan: ManifestPlan, lease: KubeObject) -> bool:
    """Whether the Lease is held from here."""
    return not lease_record.is_handed_over(lease) and lease_record.read_holder(lease) == build_holder_identity(plan)


# --- acquiring it


def acquire_lease(plan: ManifestPlan) -> KubeObject:
    """Create the run's Lease, or take it over from a holder that is dead or has handed it over; return it.

    Raises RunInUseError if another living process holds it.
    """
    client = get_cluster_client(plan.cluster)
    for _ in range(_MAX_LOST_LEASES):
        desired = build_lease(plan, client)
        try:
            return client.create(desired)
        except ClusterError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise
        existing = _wait_until_takeover_is_safe(client, plan)
        lease = None if existing is None else _take_lease_over(client, plan, existing, desired)
        if lease is not None:
            return lease
        # It was deleted in the meantime. Another process may create it before this one does.
    return client.create(build_lease(plan, client))


def _take_lease_over(
    client: Client, plan: ManifestPlan, existing: KubeObject, desired: KubeObject
) -> KubeObject | None:
    """Make this process the holder of an existing Lease, and return it; None if it was deleted in the meantime.

    Raises RunInUseError if the Lease has been renewed since it was read.
    """
    if not is_held_here(plan, existing):
        reason = "has handed it over" if lease_record.is_handed_over(existing) else "no longer renews its Lease"
        get_log().info("%s is taken over from %s, which %s", plan.run, lease_record.read_holder(existing), reason)
    for fault in lease_record.list_lease_faults(existing, client.now()):
        get_log().warning("Lease %s: %s; correcting it", plan.run, fault)

    unchanged_test = lease_record.build_unchanged_test(existing)  # the patch fails if the Lease was renewed since
    updated = _patch_lease(
        plan, "another process, which was faster", unchanged_test, *build_spec_patch(desired["spec"])
    )
    return None if updated is None else _update_metadata(client, updated, desired)


def _update_metadata(client: Client, existing: KubeObject, desired: KubeObject) -> KubeObject:
    """Give the Lease this process's labels and annotations; a new attempt also clears the ending of the last one."""
    desired_annotations = desired["metadata"]["annotations"]
    desired_labels = desired["metadata"]["labels"]
    existing_labels = existing["metadata"].get("labels") or {}
    is_new_attempt = lease_record.read_attempt(existing) != lease_record.read_attempt(desired)
    annotations_differ = any(
        lease_record.read_annotation(existing, key) != value for key, value in desired_annotations.items()
    )
    labels_differ = not desired_labels.items() <= existing_labels.items()
    if not (is_new_attempt or annotations_differ or labels_differ):
        return existing

    annotations = dict(desired_annotations) if is_new_attempt or annotations_differ else {}
    if is_new_attempt:
        annotations[lease_record.ENDING_ANNOTATION] = ""
    labels = desired_labels if labels_differ else {}
    return client.patch(desired, {"metadata": {"annotations": annotations, "labels": labels}})


def build_lease(plan: ManifestPlan, client: Client) -> KubeObject:
    """The Lease as this process acquires it, sealed if the run has a key."""
    now = format_server_time(client)
    spec = plan.lease["spec"] | {
        "holderIdentity": build_holder_identity(plan),
        "acquireTime": now,
        "renewTime": now,
    }
    metadata = dict(plan.lease["metadata"])
    metadata["annotations"] = metadata["annotations"] | {
        lease_record.USER_ANNOTATION: get_user_name(),
        lease_record.LAUNCHER_ANNOTATION: plan.launcher,
    }
    seal = lease_record.seal_lease(plan.lease, client.namespace, lease_record.get_lease_key(plan.lease))
    if seal:
        metadata["annotations"] = metadata["annotations"] | {lease_record.SEAL_ANNOTATION: seal}
    return plan.lease | {"metadata": metadata, "spec": spec}


def format_server_time(client: Client) -> str:
    """The time by the API server's clock, in the format of a Lease's times."""
    return datetime.fromtimestamp(client.now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def build_spec_patch(spec: KubeObject) -> list[KubeObject]:
    """JSON patch operations that set these fields of a Lease's spec."""
    return [{"op": "add", "path": f"/spec/{key}", "value": value} for key, value in spec.items()]


def _wait_until_takeover_is_safe(client: Client, plan: ManifestPlan) -> KubeObject | None:
    """Wait until the Lease's holder is this place, or dead; return the Lease, None if there is none.

    A holder is dead if it has not renewed for HOLDER_DEAD_AFTER_S, by the API server's clock or while watched here.
    Raises RunInUseError if it renews.
    """
    first = read_lease(client, plan)
    existing = first
    is_reported = False
    started_at = time.monotonic()
    while existing is not None and first is not None and is_held_elsewhere(client, plan, existing):
        holder = lease_record.read_holder(existing)
        if lease_record.read_renew_time(existing) != lease_record.read_renew_time(first):
            raise RunInUseError(plan.run, holder)
        if time.monotonic() - started_at >= HOLDER_DEAD_AFTER_S:
            break
        if not is_reported:
            is_reported = True
            get_log().info(
                "%s is held by %s: waiting until that one renews its Lease or counts as dead", plan.run, holder
            )
        time.sleep(HOLDER_POLL_INTERVAL_S)
        existing = read_lease(client, plan)
    return existing


def is_held_elsewhere(client: Client, plan: ManifestPlan, existing: KubeObject) -> bool:
    """Whether another place, which may be alive, holds the Lease."""
    if lease_record.is_handed_over(existing):
        return False
    age_s = lease_record.measure_lease_age(existing, client.now())
    return not is_held_here(plan, existing) and (age_s is None or age_s < HOLDER_DEAD_AFTER_S)


def check_not_held_elsewhere(plan: ManifestPlan) -> None:
    """Raise RunInUseError if another machine holds the Lease, which may resume the run until the Lease expires."""
    client = get_cluster_client(plan.cluster)
    existing = read_lease(client, plan)
    if existing is None or is_held_here(plan, existing):
        return
    remaining_s = lease_record.measure_time_left(existing, client.now())
    if is_held_elsewhere(client, plan, existing) or remaining_s is None or remaining_s >= 0:
        raise RunInUseError(plan.run, lease_record.read_holder(existing))


def read_lease(client: Client, plan: ManifestPlan) -> KubeObject | None:
    """The run's Lease as it is now; None if it is proven that there is none."""
    return client.get(lease_record.LEASE_API, lease_record.LEASE_KIND, plan.run)


# --- recording what a successor needs to continue


def _patch_lease(
    plan: ManifestPlan,
    other_holder: str,
    *changes: KubeObject,
    is_applied: Callable[[KubeObject], bool] | None = None,
) -> KubeObject | None:
    """Change the Lease in one patch; None if the API server reports, once, that there is none.

    A patch whose response was lost is repeated, and its tests may fail then because it was applied: the Lease is
    returned as it is, if it is held from here and `is_applied` returns True (None: its holder is all that matters).

    Raises RunInUseError with the name `other_holder` if another place holds the Lease by now, ClusterError if the API
    server refuses the patch for another reason. A deleted Lease is not an error here: the garbage collector deletes the
    job with it, and the job's watch reports that.
    """
    try:
        return get_cluster_client(plan.cluster).patch(plan.lease, list(changes))
    except NotFoundError:
        return None
    except ClusterError as error:
        if error.status != TEST_FAILED_STATUS:
            raise
        existing = read_lease(get_cluster_client(plan.cluster), plan)
        if existing is not None and not is_held_here(plan, existing):
            raise RunInUseError(plan.run, other_holder) from None
        # The API server uses this status for other refusals too, such as that of a policy.
        if existing is not None and is_applied and not is_applied(existing):
            raise
        return existing


def _build_holder_test(plan: ManifestPlan) -> KubeObject:
    return {"op": "test", "path": "/spec/holderIdentity", "value": build_holder_identity(plan)}


def renew_lease(plan: ManifestPlan) -> KubeObject | None:
    """Renew the run's Lease, and return it; None if the API server reports, once, that there is none.

    Raises RunInUseError if another process has taken the run over, ClusterError if the Lease is not renewed.
    """
    now = format_server_time(get_cluster_client(plan.cluster))
    steps = build_spec_patch({"renewTime": now})

    def is_renewed(lease: KubeObject) -> bool:
        return lease_record.read_renew_time(lease) >= now

    return _patch_lease(plan, _NEW_HOLDER, _build_holder_test(plan), *steps, is_applied=is_renewed)


class _Proof:
    """When a renewal has last proved the ownership of a run. Threads that need a proof at the same time share one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.renewed_at = -math.inf  # seconds since boot, also suspended ones; read before the request


_PROOFS = PerClient(lambda _: dict[tuple[str, str], _Proof]())  # by the run's name and its holder


def _get_proof(plan: ManifestPlan) -> _Proof:
    proofs = _PROOFS.get(get_cluster_client(plan.cluster))
    return proofs.setdefault((plan.run, build_holder_identity(plan)), _Proof())


def confirm_ownership(plan: ManifestPlan) -> None:
    """Prove that no other process owns the run, with the API server, right before something of it is deleted.

    A renewal of the last second is the proof, because an older one may have been followed by an outage longer than the
    Lease, in which another process has taken the run over. Without a Lease no process owns the run.

    Raises RunInUseError if another process does, ClusterError if that cannot be read.
    """
    proof = _get_proof(plan)
    with proof.lock:
        requested_at = read_uptime()
        if requested_at - proof.renewed_at < MAX_PROOF_AGE_S:
            return
        if renew_lease(plan) is not None:
            proof.renewed_at = requested_at
            return
    client = get_cluster_client(plan.cluster)
    if read_lease(client, plan) is not None:
        raise ClusterError(client.host, f"renew Lease {plan.run}", "it was not found, and exists", 0)


def _annotate_lease(plan: ManifestPlan, annotations: Mapping[str, str], *other_steps: KubeObject) -> None:
    """Set annotations of the Lease, in one JSON patch with `other_steps` of it; nothing if the Lease was deleted.

    A JSON patch cannot add an annotation to a Lease without any. If a user has removed all of them, those with which
    this process created the Lease are written again, with the new ones.

    Raises RunInUseError if another process has taken the run over, ClusterError if the annotations are not set.
    """
    steps = [_build_holder_test(plan)]
    for key, text in annotations.items():
        steps.append({"op": "add", "path": f"/metadata/annotations/{key.replace('/', '~1')}", "value": text})

    def is_recorded(lease: KubeObject) -> bool:
        return all(lease_record.read_annotation(lease, key) == text for key, text in annotations.items())

    client = get_cluster_client(plan.cluster)
    try:
        _patch_lease(plan, _NEW_HOLDER, *steps, *other_steps, is_applied=is_recorded)
        return
    except ClusterError as error:
        lease = read_lease(client, plan) if error.status == TEST_FAILED_STATUS else None
        if lease is None or lease["metadata"].get("annotations"):
            raise
    get_log().warning("Lease %s has lost all of its annotations: they are restored", plan.run)
    restored = build_lease(plan, client)["metadata"]["annotations"] | annotations
    restoring_steps = [_build_holder_test(plan), {"op": "add", "path": "/metadata/annotations", "value": restored}]
    _patch_lease(plan, _NEW_HOLDER, *restoring_steps, *other_steps, is_applied=is_recorded)


def record_submission(plan: ManifestPlan) -> None:
    """Record that the attempt's job was created: a process that resumes the run must not create it again."""
    _annotate_lease(plan, {lease_record.SUBMITTED_ANNOTATION: plan.labels[ATTEMPT_KEY]})


def record_outcome(plan: ManifestPlan, outcome: Outcome | None) -> None:
    """Record the attempt's outcome, sealed with the run's key; None: the attempt continues, whatever was recorded."""
    secret = lease_record.get_lease_key(plan.lease)
    number = plan.labels[ATTEMPT_KEY]
    sealed_outcome = lease_record.seal_outcome(plan.run, number, outcome, secret) if outcome else ""
    annotations = {
        lease_record.OUTCOME_ANNOTATION: sealed_outcome,
        lease_record.SUBMITTED_ANNOTATION: number,  # an outcome implies it, and it may have been lost
    }
    _annotate_lease(plan, annotations)


def record_ending(plan: ManifestPlan, end: End, sentence: str) -> None:
    """Record the end that the run is coming to, sealed with the run's key."""
    ending = lease_record.RecordedEnding(end=end, sentence=sentence[: lease_record.MAX_TEXT_CHARS])
    secret = lease_record.get_lease_key(plan.lease)
    sealed = lease_record.seal_ending(plan.run, plan.labels[ATTEMPT_KEY], ending, secret)
    _annotate_lease(plan, {lease_record.ENDING_ANNOTATION: sealed})


def hand_lease_over(plan: ManifestPlan) -> None:
    """Give up the Lease for the next process of the run, which then need not wait until this one counts as dead."""
    handed_over = {lease_record.HANDED_OVER_ANNOTATION: build_holder_identity(plan)}
    proof = _get_proof(plan)
    with proof.lock:
        proof.renewed_at = -math.inf  # the next process may own the run at once
        _annotate_lease(plan, handed_over, *build_spec_patch({"holderIdentity": ""}))


def release_lease(plan: ManifestPlan) -> None:
    """Delete the Lease if it is held from here. The run has ended and has no leftovers, which it would own.

    A renewal that is under way may change it between its reading and its deletion, which is then tried again.
    """
    client = get_cluster_client(plan.cluster)
    for _ in range(_MAX_RELEASE_TRIES):
        existing = read_lease(client, plan)
        if existing is None or not is_held_here(plan, existing):
            return
        if client.delete(existing, force=True, is_unchanged=True):
            return
    get_log().warning("Lease %s is left, because it changes again and again; a sweep removes it", plan.run)
