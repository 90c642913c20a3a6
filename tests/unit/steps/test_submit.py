"""Starting a job, and attaching to one that an earlier process has started."""

import time
from pathlib import Path

import pytest

from tests.conftest import Write, command_plan_of, load
from torchyard.host.processes import find_labelled
from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Deadlines
from torchyard.steps.submit import submit


def test_attaching_starts_nothing_on_any_host(write: Write, tmp_path: Path) -> None:
    """A host that cannot be reached when a run resumes does not fail the run, and gets no second job."""
    options = {"hosts": ["nowhere.invalid"], "python": "python3"}
    plan = command_plan_of(load(write(agent="none", rendezvous="env", options=options)), tmp_path)
    handle = submit(plan, load(write()).deadlines, submitted_at=1.0)
    assert (handle.created, handle.submitted_at, handle.age_s) == (False, 1.0, 0.0)


def test_job_is_submitted_once(process: CommandPlan) -> None:
    """A second submit, as after a crash between submit and journal, adopts the job and starts no process."""
    first = submit(process, Deadlines())
    processes = find_labelled(process.label)
    second = submit(process, Deadlines())
    assert (first.created, second.created, second.submitted_at) == (True, False, first.submitted_at)
    assert (find_labelled(process.label), len(processes) > 0) == (processes, True)


def test_age_of_an_adopted_job_is_measured_on_its_host(process: CommandPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher whose clock is a day ahead adopts a new job as a new one."""
    submit(process, Deadlines())
    real_time = time.time
    monkeypatch.setattr(time, "time", lambda: real_time() + 86400)
    assert submit(process, Deadlines()).age_s < 3600
