"""Stop what the plan started and prove that nothing is left. Tearing down nothing is a success."""

from typing import assert_never

from tasks import shell
from tasks.errors import HostError
from tasks.model import Block, CommandPlan, ManifestPlan, Plan
from tasks.step import log, step


@step
def teardown(plan: Plan) -> tuple[str, ...]:
    """What could not be removed, as `host: process 123` or `Pod namespace/name`; empty is the proof."""
    left = remove(plan)
    for thing in left:
        log().error("left behind: %s", thing)
    return tuple(left)


def remove(plan: Plan) -> list[str]:
    """Everything of the plan, the store last."""
    match plan:
        case CommandPlan():
            return [*stop_blocks(plan.on), *stop_blocks((plan.store,) if plan.store else ())]
        case ManifestPlan():
            from tasks import objects

            return objects.remove(plan)
        case _:
            assert_never(plan)


def stop(plan: Plan) -> None:
    """Stop the job alone: what it leaves is read before the rest goes."""
    match plan:
        case CommandPlan():
            stop_blocks(plan.on)
        case ManifestPlan():
            from tasks import objects

            objects.delete_job(plan)
        case _:
            assert_never(plan)


def stop_blocks(blocks: tuple[Block, ...]) -> list[str]:
    """Stop blocks, all at once. A host that cannot be asked counts as left behind."""
    answers = shell.call_each([(block.host, block.cancel) for block in blocks], timeout=120)
    said = zip(blocks, answers, strict=True)
    return [
        f"{block.host}: {thing}"
        for block, answer in said
        for thing in ([answer] if isinstance(answer, HostError) else answer["left"])
    ]
