"""Start the job of a plan, or adopt an existing one."""

from torchyard.steps.submit import submit as run

from .flow_run.step import make_task

submit = make_task(run)
