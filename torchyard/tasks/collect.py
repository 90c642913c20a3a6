"""Read the logs of an ended job: metrics and root cause."""

from torchyard.steps.collect import collect as run

from .flow_run.step import make_task

collect = make_task(run)
