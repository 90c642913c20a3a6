"""What a run writes is its user's alone; what its program writes has the mode that the user chose."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, LogFilter

from flows.train import train
from tests.conftest import Write
from tests.waiting import until
from torchyard.cluster.log_file import LogWriter
from torchyard.common import secrets
from torchyard.host.staging import record_heartbeat
from torchyard.host.state import write_state
from torchyard.machines.status_stream import _append_bytes
from torchyard.model.run import Report
from torchyard.run.folder import RunFolder, list_run_folders, runs_folder

SECRET = "0123456789abcdef0123456789abcdef01234567"
# It leaves a file, prints its environment in an escape and in Markdown, and fails.
PROGRAM = """
import os, pathlib
pathlib.Path(os.environ["TORCHYARD_CHECKPOINTS"]).mkdir(parents=True, exist_ok=True)
pathlib.Path(os.environ["TORCHYARD_CHECKPOINTS"], "model.pt").write_text("x")
raise ValueError("\\x1b[2J<b>bad</b> ``` key " + os.environ["WANDB_API_KEY"])
"""


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """As on most machines: everybody may read what is made."""
    before = os.umask(0o022)
    secrets._known_secrets.clear()
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """Everything in a folder, itself too, that somebody else may read, write or enter."""
    every = [folder, *folder.rglob("*")]
    return [str(path.relative_to(folder)) for path in every if stat.S_IMODE(path.lstat().st_mode) & 0o077]


@pytest.fixture
def failed_run(write: Write, api: None) -> tuple[Report, str]:
    """A run that fails with a secret among its last words, and its id."""
    keys = {"env": {"WANDB_API_KEY": SECRET}, "agent": "none", "rendezvous": "env"}
    state = train(str(write(code=PROGRAM, **keys)), {"env.HF_TOKEN": SECRET[::-1]}, return_state=True)
    (folder,) = list_run_folders()
    report = folder.report()
    assert report
    assert (state.is_failed(), SECRET in str(state.message)) == (True, False)
    return report, str(folder.last("start")["run"])


@pytest.mark.slow
def test_a_run_is_its_users_alone_and_shows_no_secret(failed_run: tuple[Report, str]) -> None:
    """Its files are closed, but for the program's; of its secret only plan, spec and log know."""
    report, run = failed_run
    folder = Path(report.folder)
    assert open_to_others(runs_folder()) == [f"{folder.name}/checkpoints", f"{folder.name}/checkpoints/model.pt"]
    knowing = [path.name for path in folder.rglob("*") if path.is_file() and SECRET in path.read_text()]
    assert sorted(knowing) == ["log", "plan.json", "spec.json"]
    shown = until(lambda: in_prefect(run))
    assert "secret WANDB_API_KEY" in shown
    assert "overrides: HF_TOKEN: looks like a secret" in shown
    assert [each for each in (SECRET, "\x1b") if each in shown] == []


def in_prefect(run: str) -> str:
    """The log and the pages of a flow run; nothing until its last line is there, which Prefect sends later."""
    with get_client(sync_client=True) as client:
        logs = client.read_logs(LogFilter.model_validate({"flow_run_id": {"any_": [run]}}), limit=200)
        pages = client.read_artifacts(artifact_filter=ArtifactFilter.model_validate({"flow_run_id": {"any_": [run]}}))
    text = "\n".join([*(each.message for each in logs), *(f"{each.description}\n{each.data}" for each in pages)])
    return text if "Finished in state Failed" in text else ""


def test_every_writer_of_a_run_closes_its_files(tmp_path: Path) -> None:
    """The journal, the lease, copies of logs, a keeper's state, who looks after it."""
    folder = RunFolder(tmp_path / "runs" / "x-1")
    with folder.owned():
        folder.note("start")
        folder.renew(60)
        _append_bytes(folder.attempt(1) / "node-0" / "log", b"x\n")
        LogWriter(folder.attempt(1) / "worker-0" / "log", "worker-0").miss("something")
        write_state(str(folder.attempt(1) / "node-0"), phase="running")
        record_heartbeat(str(folder.attempt(1) / "looked"), "me")
    assert open_to_others(tmp_path / "runs") == []


def test_a_folder_that_a_person_has_opened_stays_open(tmp_path: Path) -> None:
    """A mode is set where a folder is made, and not again; one of the version before goes on working."""
    folder = RunFolder(tmp_path / "x-1")
    folder.path.mkdir(0o755)
    (folder.path / "lock").touch(0o644)
    with folder.owned():
        folder.note("start")
    assert open_to_others(folder.path) == [".", "lock"]
    assert folder.events()[0]["event"] == "start"
