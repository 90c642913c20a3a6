"""Look after a job until it has ended."""

from tasks.step import step
from torchyard.steps.wait import wait as run

wait = step(run)
