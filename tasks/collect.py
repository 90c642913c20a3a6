"""Read the logs of an ended job: metrics and root cause."""

from tasks.step import make_task
from torchyard.steps.collect import collect as run

collect = make_task(run)
