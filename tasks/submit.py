"""Start the job, or adopt what is there: names come from the run, so it can be called again at any moment."""

import time

from tasks import shell
from tasks.errors import HostError
from tasks.model import Handle, Plan
from tasks.spec import Deadlines
from tasks.step import log, step


@step
def submit(plan: Plan, deadlines: Deadlines) -> Handle:
    """Every block of the job, started or adopted. HostError where a host refused."""
    answers = shell.call_each([(block.host, block.submit) for block in plan.on])
    for block, said in zip(plan.on, answers, strict=True):
        if isinstance(said, HostError):
            raise said
        if said["phase"] in ("failed", "starting"):
            raise HostError(block.host, f"start {block.name}", said.get("error") or "the keeper does not answer")
    created = all(said["created"] for said in answers)
    submitted_at = min((said["started"] for said in answers if "started" in said), default=time.time())
    log().info("%s %s: %d agents", "started" if created else "attached to", plan.job, len(answers))
    return Handle(plan=plan, deadlines=deadlines, created=created, submitted_at=submitted_at)
