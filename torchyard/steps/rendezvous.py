"""The rendezvous store, if the run brings its own or names one: started if needed, and proven to serve."""

import time

from torchyard.backend import backend_of
from torchyard.common.log import get_log
from torchyard.model.plan import Plan


def ensure_rendezvous(plan: Plan) -> str | None:
    """The URL that serves the v2 API, after it has answered 200; None if the plan needs no store.

    RendezvousError if it answers something else, dies, or does not answer in time.
    """
    if plan.probe is None:
        return None
    started = time.monotonic()
    backend_of(plan).start_store()
    get_log().info("rendezvous store: %s answers after %.1f s", plan.probe, time.monotonic() - started)
    return plan.probe
