"""The command `torchyard`, as a process."""

import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from torchyard.cli import console
from torchyard.cli.exit_codes import ExitCode
from torchyard.run.control import Terminated


@pytest.mark.parametrize(("argv", "code"), [(["plan", "pi-local"], 0), (["plan", "none"], 3), (["--help"], 0), ([], 2)])
def test_command_prints_its_output_and_sets_its_exit_code(argv: list[str], code: int) -> None:
    """The command exits early, without Python's cleanup, and still prints everything and sets its exit code."""
    process = subprocess.run(
        [Path(sys.executable).parent / "torchyard", *argv], capture_output=True, text=True, check=False
    )
    assert process.returncode == code
    assert (process.stdout + process.stderr).endswith("\n")


@pytest.mark.parametrize(
    ("redirection", "code", "message"),
    [(">/dev/full", 1, "cannot write the output"), (">&-", 0, ""), ("2>&-", 0, ""), ("| true", 0, "")],
    ids=["full disk", "closed output", "closed errors", "reader that is gone"],
)
def test_output_that_cannot_be_written_is_no_traceback(redirection: str, code: int, message: str) -> None:
    """Output that does not fit on the disk is reported; no other state of the streams is an error."""
    command = f"{Path(sys.executable).parent / 'torchyard'} profiles pi-local {redirection}"
    process = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (process.returncode, message in process.stderr) == (code, True)
    assert "Traceback" not in process.stderr
    assert "Exception ignored" not in process.stderr


@pytest.mark.parametrize("stop", [KeyboardInterrupt, Terminated])
def test_stop_outside_a_run_is_silent(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], stop: type[BaseException]
) -> None:
    """A Ctrl-C or SIGTERM before anything was started ends the command without a traceback."""
    codes: list[int] = []
    monkeypatch.setattr(console, "run", Mock(side_effect=stop))
    monkeypatch.setattr("os._exit", codes.append)
    console.main()
    assert (codes, capfd.readouterr().err) == ([ExitCode.STOPPED], "")
