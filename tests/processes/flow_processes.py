"""Real flow processes of one run, which a test can kill, and the processes of its job."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import get_client
from prefect.client.schemas.objects import State, StateType
from prefect.settings import PREFECT_API_URL

from flows.train import train
from tests.support.waiting import wait_until
from torchyard.common.project_root import ROOT
from torchyard.host.processes import has_variable
from torchyard.host.state import read_state
from torchyard.run.folder import RunFolder, list_run_folders

TICK_PROGRAM = str(ROOT / "tests" / "programs" / "tick.py")
# The program of a worker's flow process: execute the run with a given id.
FLOW_SCRIPT = """
import sys
from uuid import UUID
from prefect import get_client
from prefect.flow_engine import run_flow
from flows.train import train
with get_client(sync_client=True) as client:
    run = client.read_flow_run(UUID(sys.argv[1]))
run_flow(train, flow_run=run, parameters=run.parameters, return_type="state")
"""


class FlowRunProcesses:
    """One flow run, and the processes that execute it. A process that a test starts is killed by the test."""

    def __init__(self, path: Path) -> None:
        with get_client(sync_client=True) as client:
            self.id = client.create_flow_run(train, parameters={"profile": str(path), "overrides": None}).id

    def start_process(self) -> subprocess.Popen[str]:
        environment = os.environ | {"PREFECT_API_URL": PREFECT_API_URL.value() or "", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", FLOW_SCRIPT, str(self.id)]
        return subprocess.Popen(command, env=environment, cwd=ROOT, text=True, stderr=subprocess.PIPE)

    def read_state(self) -> State[Any]:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(self.id).state
        assert state
        return state

    def cancel(self) -> bool:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(self.id, State(type=StateType.CANCELLING))
        return True

    @property
    def folder(self) -> RunFolder:
        (run_folder,) = list_run_folders()
        return run_folder

    def kill_when(self, ready: Callable[[], Any]) -> None:
        """Start a process and kill it as soon as a condition holds."""
        process = self.start_process()
        wait_until(ready)
        process.kill()
        process.communicate()

    def read_agent_pids(self) -> list[int]:
        states = [read_state(str(self.folder.attempt(1) / f"node-{node}")) for node in (0, 1)]
        return [state["agent"] for state in states if state]

    def list_running_pids(self) -> list[str]:
        variable_prefix = f"TORCHYARD_JOB={self.folder.name}/1/".encode()
        pids = [pid for pid in os.listdir("/proc") if pid.isdigit()]
        return [
            pid for pid in pids if any(has_variable(pid, variable_prefix + node) for node in (b"node-0", b"node-1"))
        ]


def have_ranks_ticked(tmp_path: Path) -> bool:
    """Whether both ranks have written to their files."""
    return len([path for path in (tmp_path / "truth").glob("*") if path.stat().st_size]) == 2
