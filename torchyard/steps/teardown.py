"""Removes everything that a plan started, and verifies that nothing remains. Tearing down nothing is a success."""

from torchyard.backends import job_of, owner_of
from torchyard.common.log import get_log
from torchyard.model.plan import Plan


def teardown(plan: Plan, *, end_run: bool = True) -> tuple[str, ...]:
    """Remove everything of a plan; return what could not be removed, as `host: process 123` or `Pod namespace/name`.

    An empty result proves that nothing remains. With `end_run` the run itself has ended, and its Lease is deleted too.
    """
    leftovers = job_of(plan).remove()
    if end_run and not leftovers:
        owner_of(plan).release()
    for leftover in leftovers:
        get_log().error("left behind: %s", leftover)
    return tuple(leftovers)
