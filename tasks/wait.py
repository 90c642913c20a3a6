"""Look after a job until it has ended."""

from tasks.step import make_task
from torchyard.steps.wait import wait as run

wait = make_task(run)
