"""Only the user can read the files of a run; the files of its program have the mode that the user's umask gives."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, LogFilter

from flows.train import train
from tests.conftest import Write
from tests.support.private_modes import list_accessible_to_others
from tests.support.waiting import wait_until
from torchyard.common import secrets
from torchyard.model.run import Report
from torchyard.run.folder import list_run_folders, runs_folder

SECRET = "0123456789abcdef0123456789abcdef01234567"
# It writes a checkpoint, and fails with a secret after an escape sequence and Markdown.
PROGRAM = """
import os, pathlib
pathlib.Path(os.environ["TORCHYARD_CHECKPOINTS"]).mkdir(parents=True, exist_ok=True)
pathlib.Path(os.environ["TORCHYARD_CHECKPOINTS"], "model.pt").write_text("x")
raise ValueError("\\x1b[2J<b>bad</b> ``` key " + os.environ["WANDB_API_KEY"])
"""


@pytest.fixture(autouse=True)
def common_umask() -> Iterator[None]:
    """Set the umask of most machines, with which all users may read new files."""
    previous_umask = os.umask(0o022)
    secrets.forget_values()
    yield
    os.umask(previous_umask)


@pytest.fixture
def failed_run(write: Write, api: None) -> tuple[Report, str]:
    """The report of a run that fails with a secret in its last lines, and the run's id."""
    keys = {"env": {"WANDB_API_KEY": SECRET}, "agent": "none", "rendezvous": "env"}
    state = train(str(write(code=PROGRAM, **keys)), {"env.HF_TOKEN": SECRET[::-1]}, return_state=True)
    (folder,) = list_run_folders()
    report = folder.report()
    assert report
    assert (state.is_failed(), SECRET in str(state.message)) == (True, False)
    return report, str(folder.read_record().last_start["run"])


def test_files_are_private_and_prefect_gets_no_secret(failed_run: tuple[Report, str]) -> None:
    """A run's files are private except for the program's, and only plan, spec and log contain its secret."""
    report, run = failed_run
    folder = Path(report.folder)
    assert list_accessible_to_others(runs_folder()) == [
        f"{folder.name}/checkpoints",
        f"{folder.name}/checkpoints/model.pt",
    ]
    secret_files = [
        path.name for path in folder.rglob("*") if path.is_file() and SECRET in path.read_text(errors="replace")
    ]
    assert sorted(secret_files) == ["log", "plan.json", "spec.json"]
    prefect_text = wait_until(lambda: read_prefect_texts(run))
    assert "secret WANDB_API_KEY" in prefect_text
    assert "overrides: HF_TOKEN: looks like a secret" in prefect_text
    assert [text for text in (SECRET, "\x1b") if text in prefect_text] == []


def read_prefect_texts(run: str) -> str:
    """The log and the artifacts of a flow run; "" until Prefect has its last line, which it sends late."""
    with get_client(sync_client=True) as client:
        logs = client.read_logs(LogFilter.model_validate({"flow_run_id": {"any_": [run]}}), limit=200)
        pages = client.read_artifacts(artifact_filter=ArtifactFilter.model_validate({"flow_run_id": {"any_": [run]}}))
    messages = [record.message for record in logs]
    pages_text = [f"{page.description}\n{page.data}" for page in pages]
    text = "\n".join([*messages, *pages_text])
    return text if "Finished in state Failed" in text else ""
