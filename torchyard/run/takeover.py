"""A run that comes back on another machine: what its Lease knows goes into the folder here."""

import time
from typing import Any

from torchyard.common.log import log
from torchyard.diagnosis.pod_facts import leaving, seconds
from torchyard.kube.outlasting import outlasting
from torchyard.launchers import registry
from torchyard.machines.staging import latest
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan, Plan
from torchyard.model.profile import Profile
from torchyard.model.run import Outcome, Run
from torchyard.pods import lease_record
from torchyard.pods.template import ATTEMPT
from torchyard.run.folder import Intent, RunFolder


def adopt(folder: RunFolder, profile: Profile, run_id: str) -> None:
    """Go on where another machine was. OwnedError where a living process carries the run there."""
    first = planned(folder, profile, run_id, 1)
    if isinstance(first, ManifestPlan):
        take_over(folder, profile, run_id, first)
    elif first.sites and not folder.attempts() and (number := latest(first)):
        plan = planned(folder, profile, run_id, number)  # each host's site says which machine carries the run
        folder.save_intent(number, Intent(plan=plan, deadlines=profile.deadlines))
        begin(folder, profile, run_id, number)


def planned(folder: RunFolder, profile: Profile, run_id: str, number: int) -> Plan:
    run = Run(id=run_id, attempt=number, folder=str(folder.path))
    return registry.launcher(profile.launcher).plan(profile, run)


@outlasting
def take_over(folder: RunFolder, profile: Profile, run_id: str, first: ManifestPlan) -> None:
    """Attach to what the Lease knows; nothing where it says no more than the folder here.

    ClusterError where it does not say which attempt goes on: a guess could submit a second job beside the first.
    """
    from torchyard.cluster import lease
    from torchyard.cluster.create import located, permitted
    from torchyard.cluster.lease_renewal import hold, renewer
    from torchyard.kube.client import api

    first = located(first)
    held = lease.read(api(first.cluster), first)
    here = folder.attempts()
    if held is None:
        return
    number, was = lease_record.attempt(held), lease_record.holder(held)
    if lease.is_here(first, held) and here and number in (here[-1], None):
        renewer().add(first)
        return
    if number is None:
        raise unreadable(first, held, api(first.cluster).host)
    plan = planned(folder, profile, run_id, number).model_copy(update={"cluster": first.cluster})
    assert isinstance(plan, ManifestPlan)
    plan = permitted(plan)
    server = api(first.cluster)
    made = seconds(held["metadata"].get("creationTimestamp")) or time.time()
    past = {"at": made, "seen_at": time.time() - (lease_record.age(held, server.now()) or 0.0), "holder": was}
    held = hold(plan)
    log().info("attempt %d of this run was carried by %s; it goes on here", number, was)
    if number not in here:
        folder.save_intent(number, Intent(plan=plan, deadlines=profile.deadlines))
    bring_in(folder, plan, held, was)
    begin(folder, profile, run_id, number, **past)
    if ending := lease_record.ending(held, lease_record.key_of(plan.lease)):
        folder.note("ending", end=ending.end, sentence=ending.sentence)


def unreadable(plan: ManifestPlan, held: lease_record.Lease, host: str) -> ClusterError:
    """Why a run cannot be taken over, and what a person can do."""
    found = lease_record.said(held, ATTEMPT)[:80]
    said = f"annotation {ATTEMPT} is {found!r}: a number from 1 to {lease_record.MAX_ATTEMPT} is needed"
    remedy = f"write it there (kubectl annotate --overwrite lease {plan.run} {ATTEMPT}=N), then retry this run"
    return ClusterError(host, f"read Lease {plan.run}", f"{said}; the job is left alone; {remedy}", 422)


def bring_in(folder: RunFolder, plan: ManifestPlan, held: lease_record.Lease, was: str) -> None:
    """Keep the outcome that another machine has seen, where its job is not there any more to be asked itself.

    A job that is still there is seen to its end again, and the logs of its pods are read here.
    """
    from torchyard.kube.client import api

    number, outcome = int(plan.labels[ATTEMPT]), lease_record.outcome(held, lease_record.key_of(plan.lease))
    job = api(plan.cluster).read(plan.main["apiVersion"], plan.main["kind"], plan.job)
    if outcome and not folder.outcome(number) and (job is None or leaving(job)):
        folder.save_outcome(number, elsewhere(outcome, plan, was))
    elif lease_record.said(held, lease_record.OUTCOME) and not outcome and (job is None or leaving(job)):
        log().warning("the Lease's word about the end of attempt %d is not believed: no launcher has sealed it", number)


def begin(folder: RunFolder, profile: Profile, run_id: str, number: int, **past: Any) -> None:
    """Journal what began on another machine, and what is known of it there."""
    if not folder.events():
        budget = max(number - profile.attempts + 1, 1)
        folder.note("start", entry="moved", run=run_id, first=budget, **past)


def elsewhere(outcome: Outcome, plan: ManifestPlan, was: str) -> Outcome:
    """An end that another machine has seen, which has the logs as well."""
    return outcome.model_copy(update={"lost": dict.fromkeys(plan.nodes, f"what there is of it is on {was}")})
