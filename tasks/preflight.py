"""Check everything that a plan needs."""

from tasks.step import make_task
from torchyard.steps.preflight import preflight as run

preflight = make_task(run)
