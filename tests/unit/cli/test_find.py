"""Runs that are on this machine, or only in the archive."""

import os
from pathlib import Path

import pytest

from tests.builders.archives import archive_run, create_archive
from tests.conftest import Write, command_plan_of
from tests.processes.lone_processes import build_lone_profile
from torchyard.archive.store import ARCHIVE_VARIABLE
from torchyard.cli.find import fetch_run_to_resume, find_run
from torchyard.cli.main import main
from torchyard.model.errors import ArchiveError, NoRunError, TorchyardError
from torchyard.model.profile import Deadlines
from torchyard.run.folder import AttemptPlan, RunFolder, runs_folder


@pytest.fixture
def run(write: Write, tmp_path: Path) -> RunFolder:
    """A run of another machine, in the archive that TORCHYARD_ARCHIVE names."""
    create_archive(tmp_path / "archive")
    remote = RunFolder(tmp_path / "other-machine" / "sample-a1b2c3d4")
    remote.path.mkdir(parents=True)
    remote.record_event("start", run="an-id", folder=str(remote.path))
    plan = command_plan_of(build_lone_profile(write), remote.path)
    remote.save_attempt_plan(1, AttemptPlan(plan=plan, deadlines=Deadlines()))
    archive_run(tmp_path / "archive", remote)
    return remote


def start_run(name: str) -> None:
    """A run of this machine that has no attempt yet."""
    folder = RunFolder(runs_folder() / name)
    folder.path.mkdir(parents=True)
    folder.record_event("start", run="an-id")


def test_archived_run_is_found(run: RunFolder) -> None:
    """A run without a local folder is read from the archive."""
    assert find_run(run.name).events() == run.events()


def test_local_run_is_preferred(run: RunFolder) -> None:
    """The archive is not queried for a run of this machine."""
    fetch_run_to_resume(run.name)
    os.environ[ARCHIVE_VARIABLE] = "nowhere://x"
    assert find_run(run.name).path == runs_folder() / run.name


def test_unknown_run_is_looked_for_in_the_archive(run: RunFolder) -> None:
    """The error names the folder of the runs, the archive, and the command that lists all runs."""
    with pytest.raises(
        NoRunError, match=rf"there is no run other-1 in {runs_folder()} or file://.*; `torchyard ps --all`"
    ):
        find_run("other-1")


@pytest.mark.parametrize("name", ["../../archive/sample-a1b2c3d4", "..", ""])
def test_path_is_not_the_name_of_a_run(run: RunFolder, name: str) -> None:
    """A name that contains a path is not a run."""
    with pytest.raises(NoRunError):
        find_run(name)
    assert run.events()


def test_unreadable_archive_is_an_error(run: RunFolder) -> None:
    """An archive that cannot be read is an ArchiveError, not a missing run."""
    os.environ[ARCHIVE_VARIABLE] = "nowhere://x"
    with pytest.raises(ArchiveError):
        find_run(run.name)


def test_logs_that_are_not_archived_are_reported(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """A log that was not archived is reported on stderr, because it would look like an empty one."""
    assert main(["logs", run.name]) == 0
    assert "has no log of node-0" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["logs", "why", "attach"])
def test_similar_names_are_suggested(run: RunFolder, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    """Every verb that takes a run suggests the runs with a similar name, those of the archive too."""
    start_run("sample-a1b2c3d5")
    assert main([verb, "sample-a1b2c3d6"]) == 3
    message = capsys.readouterr().err
    assert message.startswith(f"there is no run sample-a1b2c3d6 in {runs_folder()} or file://")
    assert "did you mean sample-a1b2c3d5 or sample-a1b2c3d4? `torchyard ps --all` lists the runs" in message


def test_run_without_an_attempt_is_not_missing() -> None:
    """A run that is still in preflight is not reported as a run that does not exist."""
    start_run("sample-a1b2c3d5")
    with pytest.raises(TorchyardError, match="has no attempt yet"):
        find_run("sample-a1b2c3d5")
