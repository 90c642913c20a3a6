"""Make sure that the rendezvous store of a plan serves, where it has one."""

from tasks.step import step
from torchyard.steps.rendezvous import ensure_rendezvous as run

ensure_rendezvous = step(run)
