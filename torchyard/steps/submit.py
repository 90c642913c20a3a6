"""Start the job, or adopt what is there: names come from the run, so it can be called again at any moment."""

from torchyard.backend import backend_of
from torchyard.model.plan import Plan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Handle


def submit(plan: Plan, deadlines: Deadlines, since: float | None = None) -> Handle:
    """The job, started or adopted. HostError where a host refused, ClusterError where the API server did.

    `since`: when an earlier process did this to its end. The job is only attached to then, however long hosts or the
    API server are away.
    """
    return backend_of(plan).submit(deadlines, since)
