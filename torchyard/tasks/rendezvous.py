"""Ensure that the rendezvous store of a plan responds, if it has one."""

from torchyard.steps.rendezvous import ensure_rendezvous as run

from .flow_run.step import make_task

ensure_rendezvous = make_task(run)
