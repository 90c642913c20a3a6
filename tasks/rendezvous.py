"""Make sure that the rendezvous store of a plan serves, where it has one."""

from tasks.step import make_task
from torchyard.steps.rendezvous import ensure_rendezvous as run

ensure_rendezvous = make_task(run)
