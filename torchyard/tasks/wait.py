"""Watch a job until it has ended."""

from torchyard.steps.wait import wait as run

from .flow_run.step import make_task

wait = make_task(run)
