"""A run that another machine has carried in a cluster, taken over by what its Lease knows."""

import time
from collections.abc import Callable, Sequence

from torchyard.backend import Elsewhere
from torchyard.cluster import lease
from torchyard.cluster.create import located, permitted
from torchyard.cluster.lease_renewal import hold, renewer
from torchyard.common.log import log
from torchyard.diagnosis.pod_facts import leaving, seconds
from torchyard.kube.client import api
from torchyard.kube.outlasting import outlasting
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan, Plan
from torchyard.model.run import End, Outcome
from torchyard.pods import lease_record
from torchyard.pods.template import ATTEMPT


@outlasting
def take_over(first: ManifestPlan, plan_of: Callable[[int], Plan], begun: Sequence[int]) -> Elsewhere | None:
    """What the Lease knows, which is held from here then; None where it says no more than is known here.

    ClusterError where it does not say which attempt goes on: a guess could submit a second job beside the first.
    OwnedError where a living process holds it.
    """
    first = located(first)
    server = api(first.cluster)
    held = lease.read(server, first)
    if held is None:
        return None
    number, was = lease_record.attempt(held), lease_record.holder(held)
    if lease.is_here(first, held) and begun and number in (begun[-1], None):
        renewer().add(first)
        return None
    if number is None:
        raise _unreadable(first, held, server.host)
    plan = plan_of(number).model_copy(update={"cluster": first.cluster})
    assert isinstance(plan, ManifestPlan)
    plan = permitted(plan)
    made = seconds(held["metadata"].get("creationTimestamp")) or time.time()
    facts = {"at": made, "seen_at": time.time() - (lease_record.age(held, server.now()) or 0.0), "holder": was}
    held = hold(plan)
    log().info("attempt %d of this run was carried by %s; it goes on here", number, was)
    return Elsewhere(number, plan, facts, _outcome(plan, held, was), _ending(plan, held))


def _unreadable(plan: ManifestPlan, held: lease_record.Lease, host: str) -> ClusterError:
    """Why a run cannot be taken over, and what a person can do."""
    found = lease_record.said(held, ATTEMPT)[:80]
    said = f"annotation {ATTEMPT} is {found!r}: a number from 1 to {lease_record.MAX_ATTEMPT} is needed"
    remedy = f"write it there (kubectl annotate --overwrite lease {plan.run} {ATTEMPT}=N), then retry this run"
    return ClusterError(host, f"read Lease {plan.run}", f"{said}; the job is left alone; {remedy}", 422)


def _outcome(plan: ManifestPlan, held: lease_record.Lease, was: str) -> Outcome | None:
    """The end that another machine has seen, where its job is not there any more to be asked itself.

    A job that is still there is seen to its end again, and the logs of its pods are read here.
    """
    job = api(plan.cluster).read(plan.main["apiVersion"], plan.main["kind"], plan.job)
    if job is not None and not leaving(job):
        return None
    outcome = lease_record.outcome(held, lease_record.key_of(plan.lease))
    if outcome:
        return outcome.model_copy(update={"lost": dict.fromkeys(plan.nodes, f"what there is of it is on {was}")})
    if lease_record.said(held, lease_record.OUTCOME):
        number = plan.labels[ATTEMPT]
        log().warning("the Lease's word about the end of attempt %s is not believed: no launcher has sealed it", number)
    return None


def _ending(plan: ManifestPlan, held: lease_record.Lease) -> tuple[End, str] | None:
    """The end that the run was coming to, where a launcher has sealed it."""
    found = lease_record.ending(held, lease_record.key_of(plan.lease))
    return (found.end, found.sentence) if found else None
