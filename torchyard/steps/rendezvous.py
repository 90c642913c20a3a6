"""What must exist before the job: the rendezvous store that a run brings or names, or a manifest's companions."""

import time

from torchyard.backends import job_of
from torchyard.common.log import get_log
from torchyard.model.causes.rendezvous import RendezvousCause
from torchyard.model.errors import RendezvousError
from torchyard.model.plan import Plan
from torchyard.model.run import Failure, Outcome, Status


def ensure_rendezvous(plan: Plan) -> str | None:
    """Start what the job needs; return the URL that serves the v2 API, after it has answered 200; None without a store.

    RendezvousError if it does not answer 200 in time, or dies.
    """
    if not plan.has_store:
        return None
    started_at = time.monotonic()
    job_of(plan).start_store()
    if plan.probe:
        get_log().info("rendezvous store: %s answers after %.1f s", plan.probe, time.monotonic() - started_at)
    return plan.probe


def describe_dead_store(error: RendezvousError) -> Outcome:
    """The outcome of an attempt whose rendezvous store does not answer."""
    failure = Failure(cause=RendezvousCause.RENDEZVOUS_STORE, sentence=str(error), retry=error.retry)
    return Outcome(status=Status(state="failed", reason=str(error), failure=failure), exit_codes={})
