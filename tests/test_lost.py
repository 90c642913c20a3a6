"""The launcher is lost: real flow processes, killed, on a real Prefect API."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.settings import PREFECT_API_URL

from flows.sweep import sweep
from flows.train import train
from tests.conftest import Write
from torchyard.host.processes import _has_variable
from torchyard.host.state import read_state
from torchyard.loading.profile import ROOT
from torchyard.run.folder import RunFolder, list_run_folders

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]
TICK = str(ROOT / "tests" / "programs" / "tick.py")
# What a worker's flow process does: carry the run of a given id.
CARRY = """
import sys
from uuid import UUID
from prefect import get_client
from prefect.flow_engine import run_flow
from flows.train import train
with get_client(sync_client=True) as client:
    run = client.read_flow_run(UUID(sys.argv[1]))
run_flow(train, flow_run=run, parameters=run.parameters, return_type="state")
"""


class Carried:
    """One flow run, and the processes that carry it."""

    def __init__(self, path: Path) -> None:
        with get_client(sync_client=True) as client:
            self.id = client.create_flow_run(train, parameters={"profile": str(path), "overrides": None}).id

    def process(self) -> subprocess.Popen[str]:
        environment = {**os.environ, "PREFECT_API_URL": PREFECT_API_URL.value() or "", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", CARRY, str(self.id)]
        return subprocess.Popen(command, env=environment, cwd=ROOT, text=True, stderr=subprocess.PIPE)

    def state(self) -> State[Any]:
        with get_client(sync_client=True) as client:
            found = client.read_flow_run(self.id).state
        assert found
        return found

    def cancel(self) -> bool:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(self.id, State(type=StateType.CANCELLING))
        return True

    @property
    def folder(self) -> RunFolder:
        (found,) = list_run_folders()
        return found

    def lose(self, ready: Callable[[], Any]) -> None:
        """A process that is killed as soon as something is so."""
        process = self.process()
        until(ready)
        process.kill()
        process.communicate()

    def agents(self) -> list[int]:
        return [
            state["agent"] for node in (0, 1) if (state := read_state(str(self.folder.attempt(1) / f"node-{node}")))
        ]

    def living(self) -> list[str]:
        mark = f"TORCHYARD_JOB={self.folder.name}/1/".encode()
        pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
        return [pid for pid in pids if any(_has_variable(pid, mark + node) for node in (b"node-0", b"node-1"))]


@pytest.fixture
def carried(write: Write, tmp_path: Path) -> Iterator[Callable[..., Carried]]:
    """Make a flow run of two ticking agents; whatever happens, its processes do not outlive the test."""

    def make(**keys: Any) -> Carried:
        (tmp_path / "truth").mkdir()
        args = [f"--truth={tmp_path}/truth", f"--ticks={keys.pop('ticks', 50)}"]
        return Carried(write(program=TICK, args=args, nodes=2, metrics="json-lines", **keys))

    yield make
    sweep(runs=[folder.name for folder in list_run_folders()], return_state=True)


def until(found: Callable[[], Any], seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if something := found():
            return something
        time.sleep(0.05)
    raise AssertionError("it did not come to that")


def ticking(tmp_path: Path) -> bool:
    """Both ranks have spoken, and the run waits for them."""
    return len([path for path in (tmp_path / "truth").glob("*") if path.stat().st_size]) == 2


def test_lost_run_is_attached_to(carried: Callable[..., Carried], tmp_path: Path) -> None:
    """After a SIGKILL the same run, carried again, finds its job, starts nothing twice and keeps every line."""
    run = carried()
    run.lose(lambda: ticking(tmp_path))
    before = run.agents()
    assert run.process().wait() == 0
    assert (run.state().is_completed(), run.agents()) == (True, before)
    logs = "".join(path.read_text() for path in run.folder.path.glob("attempt-1/node-*/log"))
    for truth in (tmp_path / "truth").glob("*"):
        assert all(logs.count(line) == 1 for line in truth.read_text().splitlines())


def test_second_process_leaves_the_run_to_its_owner(carried: Callable[..., Carried], tmp_path: Path) -> None:
    """The same id started twice at once: the second process names the owner and ends, the first one ends the run."""
    run = carried(ticks=150)
    owner = run.process()
    until(lambda: ticking(tmp_path))
    second = run.process()
    _, said = second.communicate()
    assert (second.returncode, owner.poll()) == (0, None)
    assert f"is carried by process {owner.pid}; this process ends" in said
    owner.communicate()
    assert run.state().is_completed()


def test_run_lost_three_times_is_given_up(carried: Callable[..., Carried], tmp_path: Path) -> None:
    """Three losses in a row at the same step end as GaveUp, of type Crashed, with a sentence."""
    run = carried(ticks=600)
    for losses in (1, 2, 3):
        run.lose(lambda: ticking(tmp_path) and len(steps(run, "wait")) == losses)  # noqa: B023
    run.process().communicate()
    state = run.state()
    assert (state.type.value, state.name) == ("CRASHED", "GaveUp")
    assert "3 processes that carried this run were lost in a row at the same step" in str(state.message)
    assert run.living()


def steps(run: Carried, name: str) -> list[Any]:
    return [event for event in run.folder.events() if event.get("name") == name]


def test_job_dies_with_its_launcher_where_the_profile_says_so(carried: Callable[..., Carried], tmp_path: Path) -> None:
    """With on_launcher_lost: stop the guard takes the job away at once, and tells Prefect."""
    run = carried(on_launcher_lost="stop")
    run.lose(lambda: ticking(tmp_path))
    until(lambda: run.state().name == "Swept")
    assert run.living() == []


def test_cancel_without_a_signal_is_heeded(carried: Callable[..., Carried], tmp_path: Path) -> None:
    """A run whose worker is gone can still be cancelled: it looks for itself."""
    run = carried(ticks=600)
    process = run.process()
    until(lambda: ticking(tmp_path))
    run.cancel()
    process.communicate(timeout=30)
    assert (run.state().name, run.living()) == ("Cancelled", [])


def test_cancelled_run_does_not_come_back(carried: Callable[..., Carried], tmp_path: Path) -> None:
    """A launcher that dies while its run is being cancelled leaves the end to its guard."""
    run = carried(ticks=600)

    def cancelled() -> bool:
        return ticking(tmp_path) and run.cancel()

    run.lose(cancelled)
    until(lambda: run.state().is_cancelled())
    assert run.living() == []


def test_sweep_takes_what_nobody_carries(carried: Callable[..., Carried], tmp_path: Path) -> None:
    """A job is left alone while its lease lasts or its launcher lives, and taken away once both are over."""
    run = carried(deadlines={"lease": "4s"})
    process = run.process()
    until(lambda: ticking(tmp_path))
    time.sleep(4.5)
    sweep(return_state=True)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert run.living()
    sweep(return_state=True)
    assert run.living()
    until(lambda: run.folder.lease_left() < 0)
    assert "looked after 1" in str(sweep(return_state=True).message)
    assert (run.living(), run.state().name) == ([], "Swept")
