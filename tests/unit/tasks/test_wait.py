"""The Prefect task that watches a job."""

from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Deadlines
from torchyard.steps.submit import submit
from torchyard.tasks.wait import wait


def test_task_returns_how_the_job_ended(plan: CommandPlan) -> None:
    """The task `wait` returns the state and the exit code of each process, also if it is called after the end."""
    assert wait.name == "wait"
    handle = submit(plan, Deadlines())
    for outcome in (wait.fn(handle), wait.fn(handle)):
        assert (outcome.status.state, outcome.exit_codes) == ("succeeded", {"node-0": 0})
