"""The Prefect task that removes everything of a plan."""

from pathlib import Path

from tests.conftest import Write, load
from tests.lone_processes import build_lone_plan
from torchyard.host.processes import find_labelled
from torchyard.model.profile import Deadlines
from torchyard.steps.submit import submit
from torchyard.tasks.teardown import teardown


def test_task_can_run_again(write: Write, tmp_path: Path) -> None:
    """The task `teardown` ends the job, and succeeds again when nothing is left."""
    code = "import time; time.sleep(60)"
    plan = build_lone_plan(load(write(code=code, agent="none", rendezvous="env")), tmp_path / "run")
    submit(plan, Deadlines())
    assert find_labelled(plan.label)
    assert (teardown.name, teardown.fn(plan), teardown.fn(plan)) == ("teardown", (), ())
    assert find_labelled(plan.label) == []
