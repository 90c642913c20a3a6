"""Read the logs of an ended job: metrics and root cause."""

from tasks.step import step
from torchyard.steps.collect import collect as run

collect = step(run)
