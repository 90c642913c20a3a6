"""Stops what the plan started and proves that nothing is left. Tearing down nothing is a success."""

from torchyard.backend import backend_of
from torchyard.common.log import get_log
from torchyard.model.plan import Plan


def teardown(plan: Plan, end_run: bool = True) -> tuple[str, ...]:
    """What could not be removed, as `host: process 123` or `Pod namespace/name`; empty is the proof.

    With `end_run` the run itself is over: its Lease is deleted as well.
    """
    backend = backend_of(plan)
    leftovers = backend.remove()
    if end_run and not leftovers:
        backend.release()
    for leftover in leftovers:
        get_log().error("left behind: %s", leftover)
    return tuple(leftovers)
