"""Runs that are on this machine, or only in the archive."""

import os
from pathlib import Path

import pytest

from tests.builders.archives import archive_run, create_archive
from tests.builders.reports import report
from tests.conftest import Write, command_plan_of
from tests.processes.lone_processes import build_lone_profile
from torchyard.archive.store import ARCHIVE_VARIABLE
from torchyard.cli.find import fetch_run_to_resume, find_run, find_started_run
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
    remote.record_event("start", run="an-id", folder=str(remote.path), host="login-1")
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
    found_run = find_run(run.name)
    assert found_run.folder.events() == run.events()
    assert found_run.archive.startswith("file://")


def test_local_run_is_preferred(run: RunFolder) -> None:
    """The archive is not queried for a run of this machine."""
    fetch_run_to_resume(run.name)
    os.environ[ARCHIVE_VARIABLE] = "nowhere://x"
    found_run = find_run(run.name)
    assert (found_run.folder.path, found_run.archive) == (runs_folder() / run.name, "")


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
    """A log that was not archived is reported on stderr, once, because it would look like an empty one."""
    assert main(["logs", run.name]) == 0
    (message,) = capsys.readouterr().err.splitlines()
    assert message.endswith(
        "has no log of node-0: a log is archived once its job has ended; until then it is on login-1"
    )


def test_log_that_was_lost_is_reported(run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that is over gets no more logs: the message does not promise them."""
    run.record_event("end", end="failed")
    archive_run(tmp_path / "archive", run)
    assert main(["logs", run.name]) == 0
    message = capsys.readouterr().err
    assert message.endswith("once its job has ended, and this one was not; login-1 may have it\n")


def test_verb_that_reads_no_logs_does_not_report_them(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """A verb that looks into a run needs its plan, which the archive has."""
    assert main(["exec", run.name, "--all", "true"]) == 1
    assert "has no log" not in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["logs"], ["why"], ["shell"], ["exec", "--all"], ["forward"]])
def test_missing_run_names_what_else_can_find_it(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    """Without an archive, a run that is not here may be in a cluster, or in an archive that is not named."""
    ports = ["6006"] if argv[0] in ("exec", "forward") else []
    assert main([argv[0], "other-1", *argv[1:], *ports]) == 3
    message = capsys.readouterr().err
    start = f"there is no run other-1 in {runs_folder()}; `torchyard ps --all` lists the runs there; with `--cluster`"
    assert message.startswith(start)
    assert "TORCHYARD_ARCHIVE is not set" in message


def test_options_that_do_not_exist_are_not_suggested(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """`attach` has no option `--cluster`, and an archive that is set need not be."""
    assert main(["attach", "other-1"]) == 3
    message = capsys.readouterr().err
    assert "--cluster" not in message
    assert "is not set" not in message


@pytest.mark.parametrize("verb", ["logs", "why", "attach"])
def test_similar_names_are_suggested(run: RunFolder, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    """Every verb that takes a run suggests the runs with a similar name, those of the archive too."""
    start_run("sample-a1b2c3d5")
    assert main([verb, "sample-a1b2c3d6"]) == 3
    message = capsys.readouterr().err
    assert message.startswith(f"there is no run sample-a1b2c3d6 in {runs_folder()} or file://")
    assert "did you mean sample-a1b2c3d5 or sample-a1b2c3d4? `torchyard ps --all` lists the runs" in message


def test_run_that_ended_before_its_first_attempt_has_no_log() -> None:
    """Its report has the reason, which the error for a verb that reads logs quotes."""
    start_run("sample-a1b2c3d5")
    folder = RunFolder(runs_folder() / "sample-a1b2c3d5")
    folder.save_report(report("there is no kubeconfig", attempts=0))
    assert find_started_run("sample-a1b2c3d5").folder.path == folder.path
    with pytest.raises(TorchyardError, match="ended before its first attempt: there is no kubeconfig"):
        find_run("sample-a1b2c3d5")


def test_run_without_an_attempt_is_not_missing() -> None:
    """A run that is still in preflight is not reported as a run that does not exist."""
    start_run("sample-a1b2c3d5")
    with pytest.raises(TorchyardError, match="has no attempt yet"):
        find_run("sample-a1b2c3d5")
