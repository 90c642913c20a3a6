"""Remove everything of a plan, and prove it."""

from tasks.step import step
from torchyard.steps.teardown import teardown as run

teardown = step(run)
