"""Check everything that a plan needs."""

from tasks.step import step
from torchyard.steps.preflight import preflight as run

preflight = step(run)
