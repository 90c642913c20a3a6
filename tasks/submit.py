"""Start the job of a plan, or adopt what is there."""

from tasks.step import step
from torchyard.steps.submit import submit as run

submit = step(run)
