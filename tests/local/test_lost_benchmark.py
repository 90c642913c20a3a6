"""A benchmark loses its process, or is cancelled: a real server, a real worker, and a benchmark in the middle."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterParentFlowRunId
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelling

from flows.benchmark import benchmark
from flows.train import train
from tests.conftest import Write
from tests.flow_processes import until
from torchyard.common.project_root import ROOT
from torchyard.run.folder import list_benchmark_folders, list_run_folders
from torchyard.run.sweep import sweep_run
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
WAITS = """
import json, os, time
open(os.environ["TRUTH"] + "/" + os.environ["SPEED"], "a").write("x")
while not os.path.exists(os.environ["TRUTH"] + "/go"):
    time.sleep(0.1)
print(json.dumps({"size": 1024, "algbw": float(os.environ["SPEED"]), "busbw": float(os.environ["SPEED"])}))
"""


class Played(NamedTuple):
    """A benchmark of two fabrics whose program waits for the file `go`."""

    client: SyncPrefectClient
    id: UUID
    truth: Path

    def now(self) -> FlowRun:
        return self.client.read_flow_run(self.id)

    def children(self) -> list[FlowRun]:
        mine = FlowRunFilterParentFlowRunId(any_=[self.id])
        return self.client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_flow_run_id=mine))

    def kill(self) -> None:
        """Kill the benchmark's own process; its lock names it."""
        (folder,) = list_benchmark_folders()
        os.kill(int((folder.path / "lock").read_text().split()[-1]), signal.SIGKILL)

    def await_measuring(self) -> None:
        until((self.truth / "3").exists, 240)

    def programs(self) -> dict[str, int]:
        """How often the program was started over each fabric."""
        return {each.name: len(each.read_text()) for each in self.truth.glob("[13]")}


def _start_worker(tmp_path: Path) -> "subprocess.Popen[bytes]":
    words = [str(Path(sys.executable).parent / "prefect"), "worker", "start", "--pool", POOL, "--type", "process"]
    environment = {
        **os.environ,
        "PREFECT_API_URL": PREFECT_API_URL.value() or "",
        "PREFECT_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(ROOT),
    }
    with (tmp_path / "worker.log").open("wb") as log:
        return subprocess.Popen(words, env=environment, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)


def _deploy(client: SyncPrefectClient, flow: Any, name: str, entrypoint: str) -> UUID:
    step = {"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}
    return client.create_deployment(
        client.create_flow(flow), name=name, work_pool_name=POOL, entrypoint=entrypoint, pull_steps=[step]
    )


@pytest.fixture
def played(write: Write, tmp_path: Path) -> Iterator[Played]:
    """A benchmark that a real worker has started, measuring its first fabric."""
    shape = tmp_path / "hardware" / "lab" / "two.yaml"
    shape.parent.mkdir(parents=True)
    shape.write_text(SHAPE)
    os.environ["TORCHYARD_PROFILES"] = str(tmp_path)
    truth = tmp_path / "truth"
    truth.mkdir()
    keys = {"agent": "none", "rendezvous": "env", "metrics": "json-lines", "hardware": "lab/two", "fabric": "fast"}
    path = write(code=WAITS, env={"TRUTH": str(truth)}, **keys)
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"), overwrite=True)
        _deploy(client, train, path.stem, "flows/train.py:train")
        mine = _deploy(client, benchmark, path.stem, "flows/benchmark.py:benchmark")
        run = client.create_flow_run_from_deployment(
            mine, parameters={"profile": str(path), "fabrics": ["fast", "slow"], "overrides": {}}
        )
        worker = _start_worker(tmp_path)
        try:
            made = Played(client, run.id, truth)
            made.await_measuring()
            yield made
        finally:
            worker.kill()  # started where SIGINT is ignored, a worker ignores SIGTERM too
            worker.wait(60)
            (truth / "go").touch()
            for folder in list_run_folders():
                sweep_run(folder, "test", "the test is over", lambda *_: None)


def test_lost_benchmark_comes_back(played: Played) -> None:
    """A benchmark whose process is killed is scheduled again, keeps the run that it has started, and completes."""
    played.kill()
    until(lambda: played.now().state_name == "Crashed")
    assert recover_lost_runs().resumed == (played.now().name,)
    (played.truth / "go").touch()
    until(lambda: played.now().state_name == "Completed", 240)
    state = played.now().state
    assert state
    assert state.message == "fast: 3 GB/s, slow: 1 GB/s"
    assert (played.now().run_count, len(played.children()), played.programs()) == (2, 2, {"3": 1, "1": 1})
    assert recover_lost_runs().resumed == ()


@pytest.mark.parametrize("killed", [False, True])
def test_cancelled_benchmark_leaves_no_run(played: Played, killed: bool) -> None:
    """A cancel ends the run that is being measured too, also if the benchmark's process dies before it does that."""
    played.client.set_flow_run_state(played.id, Cancelling())
    if killed:
        played.kill()
    ends = [StateType.CANCELLED, StateType.CANCELLED]

    def ended() -> bool:
        recover_lost_runs()
        return [each.state_type for each in (played.now(), *played.children())] == ends

    until(ended)
    assert played.programs() == {"3": 1}
    # A process that is killed in its teardown is Cancelled in Prefect before its watchdog has finished it.
    until(lambda: all(folder.last("end").get("end") == "cancelled" for folder in list_run_folders()))
    assert recover_lost_runs().resumed == ()
