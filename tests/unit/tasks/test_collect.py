"""The Prefect task that reads the logs of an ended job."""

from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Deadlines
from torchyard.steps.submit import submit
from torchyard.steps.wait import wait
from torchyard.tasks.collect import collect


def test_task_returns_the_logs(plan: CommandPlan) -> None:
    """The task `collect` returns each log with its lines and its missing lines, and no cause after a success."""
    assert collect.name == "collect"
    collected = collect.fn(plan, wait(submit(plan, Deadlines())), "none")
    assert [(log.node, log.lines, log.lost) for log in collected.logs] == [("node-0", 1, "")]
    assert collected.failure is None
