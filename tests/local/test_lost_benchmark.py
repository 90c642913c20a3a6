"""A benchmark whose process is killed or that is cancelled, with a real server and a real worker."""

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
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelling

from flows.benchmark import benchmark
from tests.conftest import Write
from tests.processes.local_runs import WITHOUT_AGENT
from tests.support.waiting import wait_until
from torchyard.assembly import sweep_run
from torchyard.common.project_root import ROOT
from torchyard.model.run import RunEnd
from torchyard.run.folder import list_run_folders
from torchyard.run.resume import LOST_MESSAGE
from torchyard.tasks.recovery import recover_lost_runs

pytestmark = pytest.mark.usefixtures("api")
POOL = "torchyard"
SHAPE = """\
about: a machine with two speeds
source: the test
match: {}
gpus: {resource: nvidia.com/gpu, per_node: 1}
line_rate: null
fabrics:
  fast: {about: the fast one, env: {SPEED: "3"}, expect: {transport: socket}}
  slow: {about: the slow one, env: {SPEED: "1"}, expect: {transport: socket}}
"""
PROGRAM = """
import json, os, time
open(os.environ["TRUTH"] + "/" + os.environ["SPEED"], "a").write("x")
while not os.path.exists(os.environ["TRUTH"] + "/go"):
    time.sleep(0.1)
print(json.dumps({"size": 1024, "algbw": float(os.environ["SPEED"]), "busbw": float(os.environ["SPEED"])}))
"""


class StartedBenchmark(NamedTuple):
    """A benchmark of two fabrics whose program waits for the file `go`.

    truth: the folder with that file, and one file for each fabric in which the program counts its starts.
    """

    client: SyncPrefectClient
    id: UUID
    truth: Path

    def now(self) -> FlowRun:
        return self.client.read_flow_run(self.id)

    def count_resumes(self) -> int:
        """How often torchyard has scheduled the benchmark again."""
        return sum(state.message == LOST_MESSAGE for state in self.client.read_flow_run_states(self.id))

    def kill(self) -> None:
        """Kill the benchmark's own process, whose id is in the lock file of its training."""
        (folder,) = list_run_folders()
        os.kill(int((folder.path / "lock").read_text().split()[-1]), signal.SIGKILL)

    def await_measuring(self) -> None:
        wait_until((self.truth / "3").exists, 240)

    def programs(self) -> dict[str, int]:
        """How often the program was started, by the speed of its fabric."""
        return {starts_file.name: len(starts_file.read_text()) for starts_file in self.truth.glob("[13]")}


def _start_worker(tmp_path: Path) -> "subprocess.Popen[bytes]":
    argv = [str(Path(sys.executable).parent / "prefect"), "worker", "start", "--pool", POOL, "--type", "process"]
    environment = os.environ | {
        "PREFECT_API_URL": PREFECT_API_URL.value() or "",
        "PREFECT_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(ROOT),
    }
    with (tmp_path / "worker.log").open("wb") as log:
        return subprocess.Popen(argv, env=environment, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)


@pytest.fixture
def started_benchmark(write: Write, tmp_path: Path) -> Iterator[StartedBenchmark]:
    """A benchmark that a real worker has started, while it measures its first fabric."""
    shape = tmp_path / "hardware" / "lab" / "two.yaml"
    shape.parent.mkdir(parents=True)
    shape.write_text(SHAPE)
    os.environ["TORCHYARD_PROFILES"] = str(tmp_path)
    truth = tmp_path / "truth"
    truth.mkdir()
    keys = WITHOUT_AGENT | {"hardware": "lab/two", "fabric": "fast"}
    path = write(code=PROGRAM, env={"TRUTH": str(truth)}, **keys)
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"), overwrite=True)
        step = {"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}
        deployment_id = client.create_deployment(
            client.create_flow(benchmark),
            name=path.stem,
            work_pool_name=POOL,
            entrypoint="flows/benchmark.py:benchmark",
            pull_steps=[step],
        )
        run = client.create_flow_run_from_deployment(
            deployment_id, parameters={"profile": str(path), "fabrics": ["fast", "slow"], "overrides": {}}
        )
        worker = _start_worker(tmp_path)
        try:
            started_benchmark = StartedBenchmark(client, run.id, truth)
            try:
                started_benchmark.await_measuring()
            except AssertionError as error:
                error.add_note((tmp_path / "worker.log").read_text())
                error.add_note(f"the flow run is {started_benchmark.now().state}")
                raise
            yield started_benchmark
        finally:
            worker.kill()  # started where SIGINT is ignored, a worker ignores SIGTERM too
            worker.wait(60)
            (truth / "go").touch()
            for folder in list_run_folders():
                sweep_run(folder, "test", RunEnd("swept", "the test is over"), lambda *_: None)


def test_lost_benchmark_is_resumed(started_benchmark: StartedBenchmark) -> None:
    """A benchmark whose process was killed is scheduled again, attaches to its training, and completes.

    Prefect's worker reports a death twice. If its second report comes after the benchmark was scheduled, it sets the
    benchmark to Crashed again, and it is scheduled once more: of two processes one then finds the training in use.
    """
    started_benchmark.kill()
    wait_until(lambda: started_benchmark.now().state_name == "Crashed")
    assert recover_lost_runs().resumed == (started_benchmark.now().name,)
    (started_benchmark.truth / "go").touch()
    wait_until(lambda: started_benchmark.now().state_name == "Completed", 240)
    state = started_benchmark.now().state
    assert state
    assert state.message == "fast: 3 GB/s, slow: 1 GB/s"
    assert started_benchmark.programs() == {"3": 1, "1": 1}
    assert 2 <= started_benchmark.now().run_count <= 1 + started_benchmark.count_resumes()
    assert recover_lost_runs().resumed == ()


@pytest.mark.parametrize("is_killed", [False, True])
def test_cancelled_benchmark_leaves_no_run(started_benchmark: StartedBenchmark, is_killed: bool) -> None:
    """A cancel ends the training over the current fabric too, even if the benchmark's process is killed before that."""
    started_benchmark.client.set_flow_run_state(started_benchmark.id, Cancelling())
    if is_killed:
        started_benchmark.kill()

    def is_cancelled() -> bool:
        recover_lost_runs()
        return started_benchmark.now().state_type == StateType.CANCELLED

    wait_until(is_cancelled)
    assert started_benchmark.programs() == {"3": 1}
    # A process that is killed in its teardown is Cancelled in Prefect before its watchdog has completed the teardown.
    wait_until(
        lambda: all(folder.read_record().find_last("end").get("end") == "cancelled" for folder in list_run_folders())
    )
    assert recover_lost_runs().resumed == ()
