"""Start the job, or adopt what is there: names come from the run, so it can be called again at any moment."""

import time
from typing import assert_never

from tasks.step import step
from torchyard.common.log import log
from torchyard.common.own_trouble import lasting
from torchyard.machines import processes
from torchyard.machines.staging import place
from torchyard.model.errors import HostError
from torchyard.model.plan import CommandPlan, ManifestPlan, Plan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Handle


@step
def submit(plan: Plan, deadlines: Deadlines, since: float | None = None) -> Handle:
    """The job, started or adopted. HostError where a host refused, ClusterError where the API server did.

    `since`: when an earlier process did this to its end. The job is only attached to then, however long hosts or the
    API server are away.
    """
    match plan:
        case CommandPlan():
            return start(plan, deadlines) if since is None else attach(plan, deadlines, since)
        case ManifestPlan():
            return create(plan, deadlines, since)
        case _:
            assert_never(plan)


def attach(plan: CommandPlan, deadlines: Deadlines, since: float) -> Handle:
    """Its hosts are asked by whoever waits for it: one that is away now does not hold up the others."""
    log().info("attached to %s: %d agents", plan.job, len(plan.on))
    return Handle(plan=plan, deadlines=deadlines, created=False, submitted_at=since, age=age(since))


def age(since: float) -> float:
    return max(time.time() - since, 0.0)


def start(plan: CommandPlan, deadlines: Deadlines) -> Handle:
    place(plan.sites)
    begun = [(block, block.submit) for block in plan.on if block.submit]
    answers = processes.call_each([(block.host, command) for block, command in begun])
    for (block, _), said in zip(begun, answers, strict=True):
        if isinstance(said, HostError):
            raise said
        if said["phase"] in ("failed", "starting"):
            raise HostError(block.host, f"start {block.name}", said.get("error") or "the keeper does not answer")
    created = all(said["created"] for said in answers)
    submitted_at = min((said["started"] for said in answers if "started" in said), default=time.time())
    log().info("%s %s: %d agents", "started" if created else "attached to", plan.job, len(plan.on))
    old = 0.0 if created else age(submitted_at)
    return Handle(plan=plan, deadlines=deadlines, created=created, submitted_at=submitted_at, age=old)


def create(plan: ManifestPlan, deadlines: Deadlines, since: float | None = None) -> Handle:
    from torchyard.cluster import create as objects
    from torchyard.diagnosis.pod_facts import seconds

    job, created = objects.create(plan) if since is None else lasting(lambda: objects.create(plan))
    kind, where = plan.main["kind"], plan.cluster.namespace
    log().info("%s %s %s/%s: %d pods", "created" if created else "attached to", kind, where, plan.job, len(plan.nodes))
    made = seconds(job["metadata"].get("creationTimestamp")) or time.time()  # of one that is gone nobody knows it
    old = 0.0 if created else age(since or made)
    return Handle(plan=plan, deadlines=deadlines, created=created, submitted_at=made, age=old)
