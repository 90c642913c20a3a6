"""`make down` ends only the runs of this folder's worker."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from prefect import flow, get_client

from scripts import processes
from scripts.runs import tear_down_open_runs
from tests.processes.prefect_servers import prefect_server, use_prefect_server
from torchyard.host import processes as host
from torchyard.run.folder import RunFolder


@pytest.fixture(scope="module")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with prefect_server(tmp_path_factory.mktemp("prefect")) as environment:
        yield environment


@flow(name="train")
def empty() -> None:
    """A flow that does nothing, for runs that a worker has taken."""


def open_run(name: str, worker: str) -> RunFolder:
    """Create an unfinished run that a worker of this name has taken; if the name is empty, Prefect has no such run."""
    run_id = UUID("0190c7f0-0000-7000-8000-0000a1b2c3d4")
    if worker:
        with get_client(sync_client=True) as client:
            run_id = client.create_flow_run(empty).id
            client.update_flow_run_labels(run_id, {"prefect.worker.name": worker})
    folder = RunFolder(Path(os.environ["TORCHYARD_RUNS"]) / name)
    with folder.owned():
        folder.record_event("start", run=str(run_id), flow_run=str(run_id))
    return folder


def test_down_ends_only_runs_of_its_worker(prefect_api: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """Runs of another worker, runs without Prefect, and runs that a living process owns are not ended."""
    with use_prefect_server(prefect_api):
        own_run = open_run("ours", processes.get_worker_name())
        owned_run = open_run("carried", processes.get_worker_name())
        foreign_run = open_run("others", "torchyard of another folder")
        manual_run = open_run("by-hand", "")
        with owned_run.owned():
            tear_down_open_runs()
    ends = [folder.read_record().find_last("end").get("by") for folder in (own_run, owned_run, foreign_run, manual_run)]
    assert ends == ["down", None, None, None]
    assert "ours: nothing left" in capsys.readouterr().out


def test_down_ends_processes_whose_folder_was_removed(prefect_api: dict[str, str]) -> None:
    """If the folders of two runs were removed, only the processes of the run that this worker took are ended."""
    with use_prefect_server(prefect_api):
        folders = [open_run("ours", processes.get_worker_name()), open_run("others", "torchyard of another folder")]
        stray_processes = [start_stray_process(str(folder.read_record().last_start["run"])) for folder in folders]
        try:
            tear_down_open_runs()
            assert stray_processes[0].wait(30) == -signal.SIGTERM
            assert stray_processes[1].poll() is None
        finally:
            for process in stray_processes:
                process.kill()
                process.wait()


def start_stray_process(flow_run: str) -> subprocess.Popen[bytes]:
    """Start a process of a training in this flow run; the training has an id of its own, and no folder."""
    name = f"sample-{uuid4().hex[-8:]}"
    process_folder = Path(os.environ["TORCHYARD_RUNS"]) / name / "attempt-1" / "node-0"
    variables = {host.JOB_VARIABLE: f"{name}/1/node-0", host.FOLDER_VARIABLE: str(process_folder)}
    variables[host.FLOW_RUN_VARIABLE] = flow_run
    return subprocess.Popen(["sleep", "300"], env=os.environ | variables)
