"""The Prefect tasks of the six steps."""

from pathlib import Path

import pytest

from tests.conftest import Write, load
from tests.processes.lone_processes import build_lone_plan
from torchyard.host.processes import find_labelled
from torchyard.model.errors import PreflightError, RendezvousError
from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Deadlines
from torchyard.tasks.steps import collect, ensure_rendezvous, preflight, submit, teardown, wait


def test_task_reports_every_check(plan: CommandPlan, tmp_path: Path) -> None:
    """The task `preflight` returns one check per requirement, and raises if one of them fails."""
    assert (preflight.name, len(preflight.fn(plan))) == ("preflight", len(plan.requires))
    (tmp_path / "sample.py").unlink()
    with pytest.raises(PreflightError, match="there is no such file"):
        preflight.fn(plan)


def test_task_asks_for_a_store_only_if_there_is_one(plan: CommandPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task `ensure_rendezvous` returns immediately without a store, and fails if the store does not respond."""
    monkeypatch.setattr("torchyard.machines.store.wait_for_store.retry.stop", lambda _: True)
    assert (ensure_rendezvous.name, ensure_rendezvous.fn(plan)) == ("ensure_rendezvous", None)
    with pytest.raises(RendezvousError, match="is it running there"):
        ensure_rendezvous.fn(plan.model_copy(update={"probe": "http://127.0.0.1:9/v2/keys"}))


def test_task_adopts_what_it_has_started(plan: CommandPlan) -> None:
    """The task `submit` can run again: Prefect may repeat a step whose result it has lost."""
    assert submit.name == "submit"
    first, second = (submit.fn(plan, Deadlines()) for _ in range(2))
    assert (first.created, second.created, second.submitted_at) == (True, False, first.submitted_at)
    assert len(find_labelled(f"{plan.label}node-0")) <= 1


def test_task_returns_how_the_job_ended(plan: CommandPlan) -> None:
    """The task `wait` returns the state and the exit code of each process, also if it is called after the end."""
    assert wait.name == "wait"
    handle = submit.fn(plan, Deadlines())
    for outcome in (wait.fn(handle), wait.fn(handle)):
        assert (outcome.status.state, outcome.exit_codes) == ("succeeded", {"node-0": 0})


def test_task_returns_the_logs(plan: CommandPlan) -> None:
    """The task `collect` returns each log with its lines and its missing lines, and no cause after a success."""
    assert collect.name == "collect"
    collected = collect.fn(plan, wait.fn(submit.fn(plan, Deadlines())))
    assert [(log.node, log.lines, log.lost) for log in collected.logs] == [("node-0", 1, "")]
    assert collected.failure is None


def test_task_can_run_again(write: Write, tmp_path: Path) -> None:
    """The task `teardown` ends the job, and succeeds again when nothing is left."""
    code = "import time; time.sleep(60)"
    plan = build_lone_plan(load(write(code=code, agent="none", rendezvous="env")), tmp_path / "run")
    submit.fn(plan, Deadlines())
    assert find_labelled(plan.label)
    assert (teardown.name, teardown.fn(plan), teardown.fn(plan)) == ("teardown", (), ())
    assert find_labelled(plan.label) == []
