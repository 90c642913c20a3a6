"""Remove everything that a plan has created, and verify that nothing remains."""

from torchyard.steps.teardown import teardown as run

from .flow_run.step import make_task

teardown = make_task(run)
