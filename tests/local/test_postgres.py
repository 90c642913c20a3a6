"""A Prefect server on PostgreSQL: a lost run is resumed there too, and no process shows the database's password."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import StateType

from flows.train import train
from scripts.processes import DATABASE_VARIABLE
from tests.chaos.world import kill_all
from tests.conftest import Write
from tests.processes.local_runs import WITHOUT_AGENT
from tests.processes.postgres import PASSWORD, create_database, run_postgres
from tests.processes.prefect_servers import prefect_server, use_prefect_server
from tests.support.waiting import wait_until
from tests.tools.skips import find_postgres
from torchyard.common.project_root import ROOT
from torchyard.run.folder import RunFolder, list_run_folders

POOL = "torchyard"
# Starts are counted in a file; the program ends once the test has killed its launcher.
WAITS = """
import os, time
open(os.environ["TRUTH"] + "/starts", "a").write("x")
while not os.path.exists(os.environ["TRUTH"] + "/go"):
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server that stores its data in PostgreSQL."""
    if not find_postgres():
        pytest.skip("there is no PostgreSQL")
    with run_postgres() as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATABASE_VARIABLE, create_database(address, "prefect"))
        with prefect_server(tmp_path_factory.mktemp("prefect")) as environment:
            patch.delenv(DATABASE_VARIABLE)
            yield environment


@pytest.fixture
def worker(server: dict[str, str], tmp_path: Path) -> Iterator[Path]:
    """A worker of the pool; yields its log. Its processes are killed after the test."""
    argv = [str(Path(sys.executable).parent / "prefect"), "worker", "start", "--pool", POOL, "--type", "process"]
    env = os.environ | server | {"PYTHONPATH": str(ROOT)}
    with use_prefect_server(server), get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"), overwrite=True)
    log = tmp_path / "worker.log"
    with log.open("wb") as log_file:
        subprocess.Popen(argv, env=env, cwd=ROOT, stdout=log_file, stderr=log_file, start_new_session=True)
    yield log
    kill_all(f"TORCHYARD_RUNS={os.environ['TORCHYARD_RUNS']}")


def test_run_on_postgresql_is_resumed(server: dict[str, str], worker: Path, write: Write, tmp_path: Path) -> None:
    """A run whose flow process is killed is scheduled again, attaches to its program, and ends Completed."""
    path = write(code=WAITS, env={"TRUTH": str(tmp_path)}, **WITHOUT_AGENT)
    step = {"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}
    with use_prefect_server(server), get_client(sync_client=True) as client:
        deployment = client.create_deployment(
            client.create_flow(train),
            name=path.stem,
            work_pool_name=POOL,
            entrypoint="flows/train.py:train",
            pull_steps=[step],
        )
        run_id = client.create_flow_run_from_deployment(deployment, parameters={"profile": str(path)}).id
        wait_until((tmp_path / "starts").exists, 240)
        (folder,) = list_run_folders()
        wait_until(lambda: _is_waiting(folder))
        os.kill(int(folder.read_record().last_start["pid"]), signal.SIGKILL)
        wait_until(lambda: client.read_flow_run(run_id).run_count == 2, 240)
        (tmp_path / "go").touch()
        wait_until(lambda: client.read_flow_run(run_id).state_type == StateType.COMPLETED, 240)
        assert client.hello().status_code == 200
    assert (tmp_path / "starts").read_text() == "x"
    assert PASSWORD not in worker.read_text()


def _is_waiting(folder: RunFolder) -> bool:
    return folder.read_record().find_last("step").get("name") == "wait"


def test_password_of_the_database_is_not_shown(server: dict[str, str]) -> None:
    """No process has the database's password in its arguments, which every user can read."""
    lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert PASSWORD not in lines
