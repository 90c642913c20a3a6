"""Takes over a cluster's run from another machine, by what its Lease records."""

import time
from collections.abc import Callable, Sequence

from torchyard.backend import RemoteAttempt
from torchyard.cluster import lease
from torchyard.cluster.create import drop_forbidden_objects, resolve_cluster
from torchyard.cluster.lease_renewal import get_renewer, hold_lease
from torchyard.common.local_errors import OUTAGE_TIMEOUT_S, retry_step
from torchyard.common.log import get_log
from torchyard.diagnosis.pod_facts import is_being_deleted, parse_timestamp
from torchyard.kube.client import get_cluster_client
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan, Plan
from torchyard.model.run import End, Outcome
from torchyard.pods import lease_record
from torchyard.pods.template import ATTEMPT_KEY


@retry_step(OUTAGE_TIMEOUT_S)
def take_over_run(first: ManifestPlan, plan_of: Callable[[int], Plan], begun: Sequence[int]) -> RemoteAttempt | None:
    """Acquire the run's Lease and return what it records; None if it records no more than is known here.

    Raises ClusterError if it does not say which attempt goes on: a guess could submit a second job beside the first.
    Raises RunInUseError if a living process holds it.
    """
    first = resolve_cluster(first)
    server = get_cluster_client(first.cluster)
    held = lease.read_lease(server, first)
    if held is None:
        return None
    number, was = lease_record.read_attempt(held), lease_record.read_holder(held)
    if lease.is_held_here(first, held) and begun and number in (begun[-1], None):
        get_renewer().add(first)
        return None
    if number is None:
        raise _unreadable_error(first, held, server.host)
    plan = plan_of(number).model_copy(update={"cluster": first.cluster})
    assert isinstance(plan, ManifestPlan)
    plan = drop_forbidden_objects(plan)
    made = parse_timestamp(held["metadata"].get("creationTimestamp")) or time.time()
    facts = {
        "at": made,
        "seen_at": time.time() - (lease_record.measure_lease_age(held, server.now()) or 0.0),
        "holder": was,
        "handed_over": lease_record.is_handed_over(held),
    }
    held = hold_lease(plan)
    get_log().info("attempt %d of this run was owned by %s; it continues here", number, was)
    return RemoteAttempt(number, plan, facts, _read_outcome(plan, held, was), _read_ending(plan, held))


def _unreadable_error(plan: ManifestPlan, held: lease_record.LeaseObject, host: str) -> ClusterError:
    """Why a run cannot be taken over, and what the user can do."""
    found = lease_record.read_annotation(held, ATTEMPT_KEY)[:80]
    said = f"annotation {ATTEMPT_KEY} is {found!r}: a number from 1 to {lease_record.MAX_ATTEMPT} is needed"
    remedy = f"write it there (kubectl annotate --overwrite lease {plan.run} {ATTEMPT_KEY}=N), then retry this run"
    return ClusterError(host, f"read Lease {plan.run}", f"{said}; the job is left alone; {remedy}", 422)


def _read_outcome(plan: ManifestPlan, held: lease_record.LeaseObject, was: str) -> Outcome | None:
    """The outcome that another machine has seen, if the job itself is gone.

    A job that still exists is watched to its end again, and its pods' logs are read here.
    """
    job = get_cluster_client(plan.cluster).get(plan.main["apiVersion"], plan.main["kind"], plan.job)
    if job is not None and not is_being_deleted(job):
        return None
    outcome = lease_record.read_outcome(held, lease_record.get_lease_key(plan.lease))
    if outcome:
        return outcome.model_copy(update={"lost": dict.fromkeys(plan.nodes, f"what there is of it is on {was}")})
    if lease_record.read_annotation(held, lease_record.OUTCOME_ANNOTATION):
        number = plan.labels[ATTEMPT_KEY]
        get_log().warning("the outcome of attempt %s on the Lease is not believed: no launcher has sealed it", number)
    return None


def _read_ending(plan: ManifestPlan, held: lease_record.LeaseObject) -> tuple[End, str] | None:
    """The end that the run was coming to, if a launcher has sealed it."""
    found = lease_record.read_ending(held, lease_record.get_lease_key(plan.lease))
    return (found.end, found.sentence) if found else None
