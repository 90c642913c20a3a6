"""Lost launchers: real flow processes that are killed, with a real Prefect API."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.sweep import sweep
from tests.processes.flow_processes import FlowRunProcesses, have_ranks_ticked
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("api")


@pytest.mark.parametrize("agent", ["none", "torchrun"])
def test_lost_run_is_attached_to(create_run: Callable[..., FlowRunProcesses], tmp_path: Path, agent: str) -> None:
    """After a SIGKILL the restarted run attaches to its job, starts no agent again and has every line once."""
    run = create_run(agent=agent, rendezvous="env" if agent == "none" else "c10d")
    run.kill_when(lambda: have_ranks_ticked(tmp_path))
    agents = run.read_agent_pids()
    assert run.start_process().wait() == 0
    assert (run.read_state().is_completed(), run.read_agent_pids()) == (True, agents)
    logs = "".join(path.read_text() for path in run.folder.path.glob("attempt-1/node-*/log"))
    for truth in (tmp_path / "truth").glob("*"):
        assert all(logs.count(line) == 1 for line in truth.read_text().splitlines())


def test_second_process_leaves_the_run_to_its_owner(
    create_run: Callable[..., FlowRunProcesses], tmp_path: Path
) -> None:
    """If two processes start one run, the second one names the owner and exits, and the first one completes the run."""
    run = create_run(ticks=6000)
    owner = run.start_process()
    wait_until(lambda: have_ranks_ticked(tmp_path))
    second = run.start_process()
    _, stderr = second.communicate()
    assert (second.returncode, owner.poll()) == (0, None)
    assert f"is owned by process {owner.pid}; this process exits" in stderr
    (tmp_path / "end").touch()
    owner.communicate()
    assert run.read_state().is_completed()


def test_run_lost_three_times_is_given_up(create_run: Callable[..., FlowRunProcesses], tmp_path: Path) -> None:
    """Three losses in a row at the same step end as GaveUp, of type Crashed, with the reason as the message."""
    run = create_run(ticks=6000)
    for losses in (1, 2, 3):
        run.kill_when(lambda: have_ranks_ticked(tmp_path) and len(list_steps(run, "wait")) == losses)  # noqa: B023
    run.start_process().communicate()
    state = run.read_state()
    assert (state.type.value, state.name) == ("CRASHED", "GaveUp")
    assert "3 processes of this run were lost in a row at the same step" in str(state.message)
    assert run.list_running_pids()


def list_steps(run: FlowRunProcesses, name: str) -> list[Any]:
    return [event for event in run.folder.events() if event.get("name") == name]


def test_on_launcher_lost_stop_ends_the_job(create_run: Callable[..., FlowRunProcesses], tmp_path: Path) -> None:
    """With `on_launcher_lost: stop` the watchdog removes the job immediately, and reports that to Prefect."""
    run = create_run(on_launcher_lost="stop")
    run.kill_when(lambda: have_ranks_ticked(tmp_path))
    wait_until(lambda: run.read_state().name == "Swept")
    assert run.list_running_pids() == []


def test_run_can_be_cancelled_without_a_signal(create_run: Callable[..., FlowRunProcesses], tmp_path: Path) -> None:
    """A run without a worker can be cancelled, because it polls Prefect for its state."""
    run = create_run(ticks=6000)
    process = run.start_process()
    wait_until(lambda: have_ranks_ticked(tmp_path))
    run.cancel()
    process.communicate(timeout=30)
    assert (run.read_state().name, run.list_running_pids()) == ("Cancelled", [])


def test_cancelled_run_is_not_resumed(create_run: Callable[..., FlowRunProcesses], tmp_path: Path) -> None:
    """If a launcher is killed while its run is being cancelled, its watchdog completes the cancel."""
    run = create_run(ticks=6000)

    def cancel_once_ticking() -> bool:
        return have_ranks_ticked(tmp_path) and run.cancel()

    run.kill_when(cancel_once_ticking)
    wait_until(lambda: run.read_state().is_cancelled())
    assert run.list_running_pids() == []


def test_sweep_removes_only_abandoned_jobs(create_run: Callable[..., FlowRunProcesses], tmp_path: Path) -> None:
    """A sweep removes a job once its launcher is dead and its lease has expired, and not before."""
    lease_s = 20  # a loaded machine needs seconds for the second sweep
    run = create_run(ticks=6000, deadlines={"lease": f"{lease_s}s"})
    process = run.start_process()
    wait_until(lambda: have_ranks_ticked(tmp_path))
    time.sleep(lease_s + 0.5)
    sweep(return_state=True)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert run.list_running_pids()
    sweep(return_state=True)
    assert run.list_running_pids()
    wait_until(lambda: run.folder.remaining_lease_s() < 0)
    assert "swept 1" in str(sweep(return_state=True).message)
    assert (run.list_running_pids(), run.read_state().name) == ([], "Swept")
