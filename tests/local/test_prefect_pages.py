"""Prefect's states and the report of a run that was lost or suspended."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.states import Suspended

from flows.train import train
from tests.processes.flow_processes import FlowRunProcesses, have_ranks_ticked
from tests.support.waiting import wait_until
from torchyard.pages.report import render_text

pytestmark = pytest.mark.usefixtures("api")


def task_states(run: FlowRunProcesses) -> dict[str, list[str]]:
    """The states of a run's task runs in Prefect, oldest first, by the name of the step."""
    run_filter = FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
    states: dict[str, list[str]] = {}
    with get_client(sync_client=True) as client:
        for task_run in sorted(
            client.read_task_runs(flow_run_filter=run_filter), key=lambda task_run: str(task_run.start_time)
        ):
            states.setdefault(task_run.name.partition(":")[0], []).append(task_run.state_name or "")
    return states


def test_resume_is_reported_with_all_its_steps(create_run: Callable[..., FlowRunProcesses], tmp_path: Path) -> None:
    """A lost wait becomes Crashed in Prefect, and the report has every step, the gap and the total time."""
    run = create_run(ticks=6000)
    started_at = time.time()
    run.kill_when(lambda: have_ranks_ticked(tmp_path) and "Running" in task_states(run).get("wait", ()))
    lost_at = time.time()
    second = run.start_process()
    wait_until(lambda: task_states(run).get("wait", [""])[0] == "Crashed")
    (tmp_path / "end").touch()
    second.communicate()
    report = run.folder.report()
    assert report
    names = ["preflight", "submit", "wait", "resume", "submit", "wait", "collect", "teardown"]
    assert [step.name for step in report.steps] == names
    assert (
        lost_at - started_at - 15
        < report.seconds - sum(step.seconds for step in report.steps[3:])
        < lost_at - started_at
    )
    assert "was lost in wait at" in render_text(report)
    assert "after its submit" in report.steps[5].detail
    wait_until(lambda: "Running" not in str(task_states(run)))
    states = str(task_states(run))
    assert "'wait': ['Crashed', 'Completed']" in states


class Deployed(FlowRunProcesses):
    """A flow run of a deployment; Prefect can suspend only such a run."""

    def __init__(self, run: FlowRunProcesses) -> None:
        with get_client(sync_client=True) as client:
            parameters = client.read_flow_run(run.id).parameters
            deployment = client.create_deployment(client.create_flow(train), name="to-suspend")
            self.id = client.create_flow_run_from_deployment(deployment, parameters=parameters).id


def test_suspended_run_continues_and_reports_that(create_run: Callable[..., FlowRunProcesses], tmp_path: Path) -> None:
    """A suspended run is Running again within seconds, with the reason in its message, and completes."""
    run = Deployed(create_run(ticks=6000))
    process = run.start_process()
    wait_until(lambda: have_ranks_ticked(tmp_path))
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run.id, Suspended(timeout_seconds=3600))
    assert run.read_state().name == "Suspended"
    wait_until(lambda: run.read_state().name == "Running", 15)
    assert "a run cannot be suspended" in str(run.read_state().message)
    (tmp_path / "end").touch()
    _, stderr = process.communicate()
    assert "a run cannot be suspended" in stderr
    assert (run.read_state().name, run.list_running_pids()) == ("Completed", [])
    report: Any = run.folder.report()
    assert [step.name for step in report.steps] == ["preflight", "submit", "wait", "collect", "teardown"]
