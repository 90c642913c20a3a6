"""`torchyard run` and `attach`: the run that is resumed, and its profile."""

import contextlib
import json
import logging
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Write
from torchyard.cli import run as run_verb
from torchyard.cli.main import main
from torchyard.common.log import LOGGER_NAME
from torchyard.common.project_root import ROOT
from torchyard.loading.profile import list_profiles, load_profile
from torchyard.model.errors import TorchyardError
from torchyard.model.profile import Profile
from torchyard.run.folder import RunFolder


def test_unknown_run_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """`attach` with an unknown run is an error."""
    assert main(["attach", "nobody-1234"]) == 3
    assert "there is no run nobody-1234 in" in capsys.readouterr().err


@pytest.mark.parametrize("is_option", [True, False])
def test_unknown_run_to_resume_from_is_an_error(
    write: Write, capsys: pytest.CaptureFixture[str], is_option: bool
) -> None:
    """`--resume` and the key `resume` with an unknown run start nothing; the key's error has its file and line."""
    if is_option:
        path = write()
        location = "override"
        arguments = ["--resume", "nobody-1234"]
    else:
        path = write(resume="nobody-1234")
        line = path.read_text().splitlines().index("resume: nobody-1234") + 1
        location = f"{path}:{line}"
        arguments = []
    assert main(["run", str(path), *arguments]) == 3
    runs = Path(os.environ["TORCHYARD_RUNS"])
    message = capsys.readouterr().err
    assert message.startswith(f"profile {path.stem}: {location}: resume: there is no run nobody-1234 in {runs}; ")
    assert "a checkpoint is named by a path that contains /" in message
    assert not runs.exists() or not list(runs.iterdir())


def test_runs_folder_that_is_not_utf8_is_an_error(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is created in a folder of runs whose name the files of a run cannot contain."""
    runs = tmp_path / os.fsdecode(b"d\xe9")
    monkeypatch.setenv("TORCHYARD_RUNS", str(runs))
    assert main(["run", str(write())]) == 1
    assert "its path is not UTF-8; choose another folder with TORCHYARD_RUNS" in capsys.readouterr().err
    assert not runs.exists()


def test_run_of_prefect_is_not_attached_to(capsys: pytest.CaptureFixture[str]) -> None:
    """A run that a flow has started is refused, and the error contains the command that resumes it."""
    folder = RunFolder(Path(os.environ["TORCHYARD_RUNS"]) / "sample-1")
    with folder.owned():
        folder.record_event("start", run="an-id")
    assert main(["attach", "sample-1"]) == 1
    assert "prefect flow-run retry an-id" in capsys.readouterr().err


def test_attach_reports_the_end_of_a_run_of_prefect(capsys: pytest.CaptureFixture[str]) -> None:
    """A run that a flow has started, and that has ended, is reported like any other."""
    folder = RunFolder(Path(os.environ["TORCHYARD_RUNS"]) / "sample-1")
    with folder.owned():
        folder.record_event("start", run="an-id", profile="sample")
        folder.record_event("end", end="failed", by="flow", sentence="Rank 1 raised ValueError")
    assert main(["attach", "sample-1"]) == 1
    assert "Rank 1 raised ValueError" in capsys.readouterr().out
    assert main(["attach", "sample-1", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["end"], document["sentence"], document["profile"]) == (
        "failed",
        "Rank 1 raised ValueError",
        "sample",
    )


OWN_RUN = """
import signal, sys, time
from pathlib import Path
from torchyard.run.folder import RunFolder

folder = RunFolder(Path(sys.argv[1]))
signal.signal(signal.SIGTERM, lambda *_: folder.record_event("end", end="stopped", by="flow", sentence="stopped"))
with folder.owned():
    folder.record_event("start", run="an-id", profile="sample", flow_run=sys.argv[2])
    print("owned", flush=True)
    while not folder.read_record().end:
        time.sleep(0.02)
"""


@pytest.fixture
def folder() -> RunFolder:
    return RunFolder(Path(os.environ["TORCHYARD_RUNS"]) / "sample-1")


@contextlib.contextmanager
def owning_process(folder: RunFolder, flow_run: str = "") -> Iterator["subprocess.Popen[str]"]:
    """A process that owns a run, and ends it at SIGTERM."""
    argv = [sys.executable, "-c", OWN_RUN, str(folder.path), flow_run]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout
        assert process.stdout.readline() == "owned\n"
        try:
            yield process
        finally:
            process.kill()


def test_stop_ends_the_process_that_owns_the_run(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """The owner gets SIGTERM; once it has ended, the end that it has recorded is printed."""
    with owning_process(folder) as process:
        assert main(["stop", "sample-1"]) == 0
        assert process.wait(timeout=20) == 0
    assert capsys.readouterr().out == "stopped\n"


def test_stop_sends_no_signal_to_a_process_that_does_not_own_the_run(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lock with the id of another process, as one on a shared disk has, ends nothing."""
    with owning_process(folder) as process, subprocess.Popen(["sleep", "60"]) as stranger:
        (folder.path / "lock").write_text(f"process {stranger.pid}\n")
        assert main(["stop", "sample-1"]) == 1
        assert (process.poll(), stranger.poll()) == (None, None)
        stranger.kill()
    assert "is not found here: another machine or container may own it" in capsys.readouterr().err


def test_run_of_prefect_is_not_stopped(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """A flow run is cancelled in Prefect, which would start it again after a signal."""
    with owning_process(folder, "a-flow-run") as process:
        assert main(["stop", "sample-1"]) == 1
        assert process.poll() is None
    assert "`prefect flow-run cancel a-flow-run`" in capsys.readouterr().err


def test_run_of_another_machine_is_neither_stopped_nor_reported(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that another machine has taken over has not ended."""
    with folder.owned():
        folder.record_event("start", run="an-id", profile="sample")
        folder.record_event("end", end="moved", by="flow", sentence="another process owns it")
    assert main(["stop", "sample-1"]) == 1
    assert "run sample-1 was taken over by another machine" in capsys.readouterr().err
    assert main(["attach", "sample-1"]) == 1
    assert "prefect flow-run retry an-id" in capsys.readouterr().err


def test_run_whose_launcher_gave_up_may_still_have_a_job(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """A launcher that gives up leaves the job: that is not the end of the run."""
    with folder.owned():
        folder.record_event("start", run="an-id", profile="sample")
        folder.record_event("step", name="submit")
        folder.record_event("end", end="gave-up", by="flow", sentence="its processes are lost repeatedly")
    assert main(["stop", "sample-1"]) == 1
    assert "no process owns run sample-1" in capsys.readouterr().err


def test_run_that_no_process_owns_is_not_stopped(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """The job of a lost run may still run: the error has the command that continues it."""
    with folder.owned():
        folder.record_event("start", run="an-id", profile="sample")
    assert main(["stop", "sample-1"]) == 1
    assert "no process owns run sample-1: `torchyard attach sample-1`" in capsys.readouterr().err


@pytest.mark.parametrize("name", list_profiles())
def test_profile_is_saved_completely(name: str) -> None:
    """The profile that `attach` reads equals the one that `run` was given."""
    profile = load_profile(name)
    assert Profile.model_validate_json(profile.model_dump_json(exclude_unset=True)) == profile


@pytest.mark.parametrize("is_following", [False, True])
def test_run_continues_if_its_log_cannot_be_printed(
    write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_following: bool
) -> None:
    """`torchyard run PROFILE | head` does not end the run; one line on stderr states that nothing is printed."""
    monkeypatch.setattr(logging.getLogger(LOGGER_NAME), "handlers", [])
    read_end, write_end = os.pipe()
    os.close(read_end)
    path = write(agent="none", rendezvous="env", nodes=1, processes=1, code="print('trained')")
    with os.fdopen(write_end, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert main(["run", str(path), *(["-f"] if is_following else [])]) == 0
        with contextlib.suppress(BrokenPipeError):
            output.flush()
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), write_end)  # for what is still in the buffer
    assert capsys.readouterr().err == "cannot print the log of the run: Broken pipe; the run continues\n"
    (report_path,) = Path(os.environ["TORCHYARD_RUNS"]).glob("*/report.json")
    assert json.loads(report_path.read_text())["end"] == "succeeded"


@pytest.mark.parametrize(
    ("is_terminal", "variables", "expected"),
    [
        (True, {"TERM": "xterm"}, "\x1b[31mERROR\x1b[0m   | broken"),
        (True, {"TERM": "dumb"}, "ERROR   | broken"),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, "ERROR   | broken"),
        (False, {"TERM": "xterm"}, "ERROR   | broken"),
    ],
)
def test_levels_have_colours_on_a_terminal_only(
    write: Write,
    monkeypatch: pytest.MonkeyPatch,
    is_terminal: bool,
    variables: dict[str, str],
    expected: str,
) -> None:
    """A warning or an error has a colour on a terminal, and none in a pipe or if NO_COLOR is set."""
    read_end, write_end = pty.openpty() if is_terminal else os.pipe()
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    def fail_to_create(*_: object, **__: object) -> None:
        logging.getLogger(LOGGER_NAME).error("broken")
        raise TorchyardError("nothing to run")

    monkeypatch.setattr(run_verb, "create_runner", fail_to_create)
    monkeypatch.setattr(logging.getLogger(LOGGER_NAME), "handlers", [])
    with os.fdopen(write_end, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert main(["run", str(write())]) == 1
        output.flush()
        printed = os.read(read_end, 4096).decode()
    os.close(read_end)
    assert printed.strip().endswith(expected)
