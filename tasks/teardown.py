"""Remove everything of a plan, and prove it."""

from tasks.step import make_task
from torchyard.steps.teardown import teardown as run

teardown = make_task(run)
