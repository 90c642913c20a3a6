"""Remove everything of a plan, and prove it."""

from torchyard.steps.teardown import teardown as run

from .flow_run.step import make_task

teardown = make_task(run)
