"""A run that comes back on another machine: what its Lease knows goes into the folder here."""

import time

from tasks.folder import Intent, RunFolder
from tasks.launchers import _lease, registry
from tasks.launchers._pod_facts import leaving
from tasks.model import Outcome, Run
from tasks.outlasting import outlasting
from tasks.plan import ManifestPlan, Plan
from tasks.sites import latest
from tasks.spec import Profile
from tasks.step import log


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
    from tasks import lease
    from tasks.cluster import api
    from tasks.objects import located

    first = located(first)
    held = lease.read(api(first.cluster), first)
    here = folder.attempts()
    if held is None or (_lease.holder(held) == lease.place(first) and here[-1:] == [_lease.attempt(held)]):
        return
    number, was = _lease.attempt(held), _lease.holder(held)
    plan = planned(folder, profile, run_id, number).model_copy(update={"cluster": first.cluster})
    assert isinstance(plan, ManifestPlan)
    held = lease.take(plan)
    log().info("attempt %d of this run was carried by %s; it goes on here", number, was)
    if number not in here:
        folder.save_intent(number, Intent(plan=plan, deadlines=profile.deadlines))
    server, outcome = api(first.cluster), _lease.outcome(held)
    job = server.read(plan.main["apiVersion"], plan.main["kind"], plan.job)
    # A job that is still there is seen to its end again, and the logs of its pods are read here.
    if outcome and not folder.outcome(number) and (job is None or leaving(job)):
        folder.save_outcome(number, elsewhere(outcome, plan, was))
    begin(folder, profile, run_id, number)
    if ending := _lease.ending(held):
        folder.note("ending", **ending)


def begin(folder: RunFolder, profile: Profile, run_id: str, number: int) -> None:
    """Journal what began on another machine."""
    if not folder.events():
        budget = max(number - profile.attempts + 1, 1)
        folder.note("start", entry="moved", run=run_id, first=budget, at=time.time())


def elsewhere(outcome: Outcome, plan: ManifestPlan, was: str) -> Outcome:
    """An end that another machine has seen, which has the logs as well."""
    return outcome.model_copy(update={"lost": dict.fromkeys(plan.nodes, f"what there is of it is on {was}")})
