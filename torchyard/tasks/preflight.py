"""Check everything that a plan needs."""

from torchyard.steps.preflight import preflight as run

from .flow_run.step import make_task

preflight = make_task(run)
