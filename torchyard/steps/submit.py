"""Starts the job, or adopts an existing one: names come from the run, so it can be called again at any time."""

from torchyard.backend import backend_of
from torchyard.model.plan import Plan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Handle


def submit(plan: Plan, deadlines: Deadlines, submitted_at: float | None = None) -> Handle:
    """Start or adopt the job. HostError if a host refused, ClusterError if the API server did.

    `since`: when an earlier process completed the submit. The job is only attached to then, however long hosts or the
    API server are unreachable.
    """
    return backend_of(plan).submit(deadlines, submitted_at)
