"""Two machines share a work pool: one machine loses its launcher, and the other one's worker takes the run."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import State, StateType
from prefect.settings import PREFECT_API_URL
from prefect.states import Scheduled

from flows.train import train
from tests.chaos.world import find_processes, kill_all
from tests.conftest import Write
from tests.processes.local_runs import WITHOUT_AGENT
from tests.support.waiting import wait_until
from torchyard.common.project_root import ROOT
from torchyard.run.folder import RunFolder
from torchyard.tasks.recovery import recover_lost_runs

pytestmark = pytest.mark.usefixtures("api")
POOL = "torchyard"
# Starts are counted in a file; the program ends once the test lets it.
PROGRAM = """
import os, time
open(os.environ["TRUTH"] + "/starts", "a").write("x")
while not os.path.exists(os.environ["TRUTH"] + "/go"):
    time.sleep(0.1)
"""
SILENT = State[None](type=StateType.CRASHED, name="Crashed", message="no heartbeat for 120 s")


class Machine(NamedTuple):
    """A machine: a runs folder, and the processes that use it.

    is_apart: its processes are in a separate PID namespace, so that they cannot find those of the other machine.
    """

    runs: Path
    is_apart: bool = False

    @property
    def runs_variable(self) -> str:
        """The variable in the environment of all processes of this machine."""
        return f"TORCHYARD_RUNS={self.runs}"

    def start_worker(self) -> None:
        worker = f"{Path(sys.executable).parent / 'prefect'} worker start --pool {POOL} --type process"
        # Restarted as `make up` does, because a server whose SQLite is locked may refuse it.
        command = ["sh", "-c", f"while :; do {worker}; sleep 1; done"]
        if self.is_apart and not os.getuid():  # else it would find the other machine's processes in /proc
            command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *command]
        overrides = {"PREFECT_API_URL": PREFECT_API_URL.value() or "", "TORCHYARD_RUNS": str(self.runs)}
        environment = os.environ | overrides | {"PREFECT_HOME": f"{self.runs}-home", "PYTHONPATH": str(ROOT)}
        self.runs.mkdir(exist_ok=True)
        with (self.runs.parent / f"{self.runs.name}.log").open("ab") as log:
            subprocess.Popen(
                command, env=environment, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def lose_launcher(self) -> None:
        """Kill all processes but the supervisors and their agents, which keep training under their lease."""
        kept_pids = {*find_processes("TORCHYARD_JOB="), *find_processes("host/supervisor.py")}
        for pid in set(find_processes(self.runs_variable)) - kept_pids - {os.getpid()}:
            os.kill(pid, signal.SIGKILL)

    def folder(self) -> RunFolder:
        (journal,) = self.runs.glob("*/journal")
        return RunFolder(journal.parent)


class LostRun(NamedTuple):
    """A run whose launcher on the first of two machines was killed, and that the second one's worker takes.

    truth: the folder in which the program counts its starts, and waits for the file `go`.
    """

    client: SyncPrefectClient
    id: UUID
    machines: tuple[Machine, Machine]
    truth: Path

    def state(self) -> State[None]:
        """The state of the flow run in Prefect."""
        state = self.client.read_flow_run(self.id).state
        assert state
        return state

    def starts(self) -> int:
        """How often the program was started, on both machines together."""
        starts_file = self.truth / "starts"
        return len(starts_file.read_text()) if starts_file.exists() else 0

    def is_handed_back(self) -> bool:
        """Whether the second machine has given the run back; recover the run if it was lost in between."""
        if self.state().name == "Crashed":
            recover_lost_runs()
        return str(self.state().message).startswith("its processes are on ")

    def take_elsewhere(self) -> None:
        """Kill the first machine's launcher, report the run as lost, and start the second machine's worker."""
        first, second = self.machines
        first.lose_launcher()
        self.client.set_flow_run_state(self.id, SILENT, force=True)
        assert recover_lost_runs().resumed
        second.start_worker()


@pytest.fixture
def lost_run(write: Write, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LostRun]:
    truth = tmp_path / "truth"
    truth.mkdir()
    deadlines = {"lease": request.param, "grace": "2s"}
    path = write(code=PROGRAM, env={"TRUTH": str(truth)}, deadlines=deadlines, **WITHOUT_AGENT)
    machines = (Machine(tmp_path / "first"), Machine(tmp_path / "second", is_apart=True))
    step = {"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"), overwrite=True)
        deployment = client.create_deployment(
            client.create_flow(train),
            name=path.stem,
            work_pool_name=POOL,
            pull_steps=[step],
            entrypoint="flows/train.py:train",
        )
        run = client.create_flow_run_from_deployment(deployment, parameters={"profile": str(path)})
        lost_run = LostRun(client, run.id, machines, truth)
        machines[0].start_worker()
        try:
            wait_until(lambda: lost_run.starts() == 1, 240)
            lost_run.take_elsewhere()
            yield lost_run
        finally:
            kill_all(*(machine.runs_variable for machine in machines), str(truth))


@pytest.mark.parametrize("lost_run", ["3m"], indirect=True)
def test_run_returns_to_the_machine_that_holds_it(lost_run: LostRun) -> None:
    """A machine without the run's processes gives the run back, and it completes on the machine that started it."""
    wait_until(lost_run.is_handed_back, 120)
    assert not list(lost_run.machines[1].runs.glob("*/journal"))
    kill_all(lost_run.machines[1].runs_variable)
    (lost_run.truth / "go").touch()
    lost_run.machines[0].start_worker()
    wait_until(lambda: lost_run.state().is_final() and lost_run.state().name != "Crashed", 240)
    assert (lost_run.state().name, lost_run.starts()) == ("Completed", 1)


@pytest.mark.parametrize("lost_run", ["15s"], indirect=True)
def test_lost_machine_holds_a_run_until_its_lease_expires(lost_run: LostRun) -> None:
    """After its lease the run fails, because only a user can check that the machine is lost; a retry starts anew."""
    wait_until(lambda: lost_run.state().is_final() and lost_run.state().name != "Crashed", 240)
    assert (lost_run.state().name, lost_run.starts()) == ("Failed", 1)
    assert "retry this run" in str(lost_run.state().message)
    assert not find_processes(f"TORCHYARD_JOB={lost_run.machines[0].folder().name}/")
    lost_run.client.set_flow_run_state(lost_run.id, Scheduled(message="Retry from the UI"), force=True)
    wait_until(lambda: lost_run.starts() == 2, 240)
