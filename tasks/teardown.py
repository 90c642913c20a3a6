"""Stop what the plan started and prove that nothing is left. Tearing down nothing is a success."""

from typing import Any, assert_never

from tasks.step import step
from torchyard.common.log import log
from torchyard.machines import processes
from torchyard.machines.staging import end_unplaced, things_left, vacate
from torchyard.model.plan import Block, CommandPlan, ManifestPlan, Plan


@step
def teardown(plan: Plan, end_run: bool = True) -> tuple[str, ...]:
    """What could not be removed, as `host: process 123` or `Pod namespace/name`; empty is the proof.

    With `end_run` nobody need look after the run any more: its Lease goes as well.
    """
    left = remove(plan)
    if end_run and not left:
        release(plan)
    for thing in left:
        log().error("left behind: %s", thing)
    return tuple(left)


def remove(plan: Plan) -> list[str]:
    """Everything of the plan, the store last."""
    match plan:
        case CommandPlan():
            said = {**stop_blocks(plan.on), **stop_blocks((plan.store,) if plan.store else ())}
            left = {block.name: left_by(block, said[block.name]) for block in plan.blocks if block.name in said}
            left |= end_unplaced(plan, [block for block in plan.blocks if unplaced(said.get(block.name))])
            # What cannot be stopped keeps its folder; what never had one needs no more asking.
            sites = {block.host for block in plan.blocks if block.site and not left[block.name]}
            held = {block.host for block in plan.blocks if left.get(block.name) or unplaced(said.get(block.name))}
            return [*(thing for things in left.values() for thing in things), *vacate(plan, sites - held)]
        case ManifestPlan():
            from torchyard.cluster import delete

            return delete.remove(plan)
        case _:
            assert_never(plan)


def release(plan: Plan) -> None:
    """Let go of a run of which nothing is left."""
    if isinstance(plan, ManifestPlan):
        from torchyard.cluster import lease
        from torchyard.cluster.lease_renewal import renewer

        renewer().drop(plan)
        lease.release(plan)


def stop(plan: Plan) -> None:
    """Stop the job alone: what it leaves is read before the rest goes."""
    match plan:
        case CommandPlan():
            stop_blocks(plan.on)
        case ManifestPlan():
            from torchyard.cluster import delete

            delete.delete(plan, plan.main)
        case _:
            assert_never(plan)


def stop_blocks(blocks: tuple[Block, ...]) -> dict[str, Any]:
    """Stop blocks, all at once: what each of them answers, or the HostError in its place."""
    told = [(block, block.cancel) for block in blocks if block.cancel]
    answers = processes.call_each([(block.host, command) for block, command in told], timeout=120)
    return {block.name: answer for (block, _), answer in zip(told, answers, strict=True)}


def left_by(block: Block, answer: Any) -> list[str]:
    """What a block leaves behind. A host that cannot be asked counts as that."""
    return things_left(block.host, answer)


def unplaced(answer: Any) -> bool:
    """Whether a host says that no folder of the run is there."""
    return isinstance(answer, dict) and answer.get("site") is False
