"""The Prefect task that starts a job."""

from torchyard.host.processes import find_labelled
from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Deadlines
from torchyard.tasks.submit import submit


def test_task_adopts_what_it_has_started(plan: CommandPlan) -> None:
    """The task `submit` can run again: Prefect may repeat a step whose result it has lost."""
    assert submit.name == "submit"
    first, second = (submit.fn(plan, Deadlines()) for _ in range(2))
    assert (first.created, second.created, second.submitted_at) == (True, False, first.submitted_at)
    assert len(find_labelled(f"{plan.label}node-0")) <= 1
