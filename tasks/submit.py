"""Start the job of a plan, or adopt what is there."""

from tasks.step import make_task
from torchyard.steps.submit import submit as run

submit = make_task(run)
