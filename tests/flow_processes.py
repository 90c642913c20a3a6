"""Real flow processes of one run, which a test can kill, and what the run has left."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import Any

from prefect import get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateName,
)
from prefect.client.schemas.objects import State, StateType
from prefect.settings import PREFECT_API_URL

from flows.train import train
from torchyard.common.project_root import ROOT
from torchyard.host.processes import _has_variable
from torchyard.host.state import read_state
from torchyard.run.folder import RunFolder, list_run_folders

TICK = str(ROOT / "tests" / "programs" / "tick.py")
# What a worker's flow process does: execute the run with a given id.
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
    """One flow run, and the processes that execute it."""

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
        """Start a process and kill it as soon as a condition holds."""
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


@contextmanager
def serving_runs(deployment: str) -> Iterator[list[str]]:
    """Start a process for each scheduled run of a deployment, as a worker does; yields the ids of the runs."""
    started, over = list[str](), threading.Event()
    mine = DeploymentFilter(name=DeploymentFilterName(any_=[deployment]))
    states = FlowRunFilter(state=FlowRunFilterState(name=FlowRunFilterStateName(any_=["Scheduled"])))

    def serve() -> None:
        environment = {**os.environ, "PREFECT_API_URL": PREFECT_API_URL.value() or "", "PYTHONPATH": str(ROOT)}
        while not over.is_set():
            with get_client(sync_client=True) as client:
                runs = client.read_flow_runs(deployment_filter=mine, flow_run_filter=states)
            for run in runs:
                if str(run.id) not in started:
                    started.append(str(run.id))
                    subprocess.run([sys.executable, "-c", CARRY, str(run.id)], env=environment, cwd=ROOT, check=False)
            time.sleep(0.2)

    thread = threading.Thread(target=copy_context().run, args=(serve,))
    thread.start()
    try:
        yield started
    finally:
        over.set()
        thread.join()


def until(found: Callable[[], Any], seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if something := found():
            return something
        time.sleep(0.05)
    raise AssertionError("it did not come to that")


def ticking(tmp_path: Path) -> bool:
    """Whether both ranks have written something."""
    return len([path for path in (tmp_path / "truth").glob("*") if path.stat().st_size]) == 2
