"""Check all requirements of a plan."""

from torchyard.steps.preflight import preflight as run

from .flow_run.step import make_task

preflight = make_task(run)
