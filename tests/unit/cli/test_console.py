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
