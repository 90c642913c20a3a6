"""Stop what the plan started and prove that nothing is left. Tearing down nothing is a success."""

from tasks import shell
from tasks.errors import HostError
from tasks.model import Block, Plan
from tasks.step import log, step


@step
def teardown(plan: Plan) -> tuple[str, ...]:
    """What could not be removed, as `host: process 123`; empty is the proof that nothing is left."""
    left = [*stop(plan.on), *stop((plan.store,) if plan.store else ())]
    for thing in left:
        log().error("left behind: %s", thing)
    return tuple(left)


def stop(blocks: tuple[Block, ...]) -> list[str]:
    """Stop blocks, all at once. A host that cannot be asked counts as left behind."""
    answers = shell.call_each([(block.host, block.cancel) for block in blocks], timeout=120)
    said = zip(blocks, answers, strict=True)
    return [
        f"{block.host}: {thing}"
        for block, answer in said
        for thing in ([answer] if isinstance(answer, HostError) else answer["left"])
    ]
