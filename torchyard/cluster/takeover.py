"""Takes over a cluster's run from another machine, with what its Lease records.

Order. The Lease is read first, then acquired, and only the acquired Lease is believed about the attempt's outcome and
the run's ending: the earlier holder cannot change it any more. Both count only with the seal of a launcher of this run,
because any user with access to the namespace may write annotations.
"""

import time
from collections.abc import Callable, Sequence
from http import HTTPStatus

from torchyard.cluster import lease
from torchyard.cluster.create import drop_forbidden_objects, resolve_cluster
from torchyard.cluster.lease_renewal import get_renewer, hold_lease
from torchyard.common.local_errors import OUTAGE_TIMEOUT_S, retry_step
from torchyard.common.log import get_log
from torchyard.diagnosis.pod_facts import is_being_deleted, parse_timestamp
from torchyard.interfaces import RemoteAttempt
from torchyard.kube.client import get_cluster_client
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan, Plan
from torchyard.model.run import End, Outcome
from torchyard.pods import lease_record
from torchyard.pods.template import ATTEMPT_KEY


@retry_step(OUTAGE_TIMEOUT_S)
def take_over_run(
    first_plan: ManifestPlan, build_plan: Callable[[int], Plan], started_attempts: Sequence[int]
) -> RemoteAttempt | None:
    """Acquire the run's Lease and return the attempt that it records.

    first_plan: the plan of attempt 1, which has the Lease's name and place.
    build_plan: returns the plan of an attempt, by its number.
    started_attempts: the numbers of the attempts that this machine has recorded.

    Returns None if there is no Lease, or if this machine holds it and it records no later attempt.

    Raises ClusterError if the Lease does not record the current attempt: a guess could submit a second job beside the
    first. Raises RunInUseError if a living process holds it.
    """
    first_plan = resolve_cluster(first_plan)
    client = get_cluster_client(first_plan.cluster)
    existing = lease.read_lease(client, first_plan)
    if existing is None:
        return None
    number = lease_record.read_attempt(existing)
    holder = lease_record.read_holder(existing)
    is_latest_here = bool(started_attempts) and number in (started_attempts[-1], None)
    if is_latest_here and lease.is_held_here(first_plan, existing):
        get_renewer().add(first_plan)
        return None
    if number is None:
        raise _unreadable_attempt_error(first_plan, existing, client.host)
    plan = build_plan(number).model_copy(update={"cluster": first_plan.cluster})
    assert isinstance(plan, ManifestPlan)
    plan = drop_forbidden_objects(plan)
    age_s = lease_record.measure_lease_age(existing, client.now()) or 0.0
    journal_fields = {
        "at": parse_timestamp(existing["metadata"].get("creationTimestamp")) or time.time(),
        "seen_at": time.time() - age_s,
        "holder": holder,
        "handed_over": lease_record.is_handed_over(existing),
    }
    acquired = hold_lease(plan)
    get_log().info("attempt %d of this run is taken over from %s", number, holder)
    return RemoteAttempt(
        number, plan, journal_fields, _read_outcome(plan, acquired, holder), _read_ending(plan, acquired)
    )


def _unreadable_attempt_error(plan: ManifestPlan, existing: lease_record.LeaseObject, host: str) -> ClusterError:
    """The error for a Lease without a valid attempt, with what the user can do."""
    value = lease_record.read_annotation(existing, ATTEMPT_KEY)[:80]
    message = f"annotation {ATTEMPT_KEY} is {value!r}, and not a number from 1 to {lease_record.MAX_ATTEMPT}"
    remedy = f"set it (kubectl annotate --overwrite lease {plan.run} {ATTEMPT_KEY}=N), then retry this run"
    status = HTTPStatus.UNPROCESSABLE_ENTITY
    return ClusterError(host, f"read Lease {plan.run}", f"{message}; the job is not changed; {remedy}", status)


def _read_outcome(plan: ManifestPlan, acquired: lease_record.LeaseObject, holder: str) -> Outcome | None:
    """The outcome that the earlier `holder` has recorded; None if it has recorded none, or it is not sealed.

    Also None if the job still exists: it is then watched to its end again, and its pods' logs are read here.
    """
    job = get_cluster_client(plan.cluster).get(plan.main["apiVersion"], plan.main["kind"], plan.job)
    if job is not None and not is_being_deleted(job):
        return None
    outcome = lease_record.read_outcome(acquired, lease_record.get_lease_key(plan.lease))
    if outcome:
        lost = f"all of it here: what was read of it is on {holder}"
        return outcome.model_copy(update={"lost": dict.fromkeys(plan.nodes, lost)})
    if lease_record.read_annotation(acquired, lease_record.OUTCOME_ANNOTATION):
        number = plan.labels[ATTEMPT_KEY]
        get_log().warning("the outcome of attempt %s on the Lease is ignored: no launcher has sealed it", number)
    return None


def _read_ending(plan: ManifestPlan, acquired: lease_record.LeaseObject) -> tuple[End, str] | None:
    """The recorded end that the run was coming to, and its sentence; None if there is none with a valid seal."""
    ending = lease_record.read_ending(acquired, lease_record.get_lease_key(plan.lease))
    return (ending.end, ending.sentence) if ending else None
