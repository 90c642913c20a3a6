"""Starts the job, or adopts an existing one: names come from the run, so it can be called again at any time."""

from torchyard.backends import job_of
from torchyard.model.plan import Plan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Handle


def submit(plan: Plan, deadlines: Deadlines, submitted_at: float | None = None) -> Handle:
    """Start or adopt the job. HostError if a host refused, ClusterError if the API server did.

    `submitted_at`: when an earlier process submitted the job, in seconds since the epoch. Then this process only
    attaches to the job, and hosts or an API server that cannot be reached are waited for by `wait`.
    """
    return job_of(plan).submit(deadlines, submitted_at)
