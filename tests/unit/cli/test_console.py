"""The command `torchyard`, as a process."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("argv", "code"), [(["plan", "pi-local"], 0), (["plan", "none"], 3), (["--help"], 0), ([], 2)])
def test_command_prints_its_output_and_sets_its_exit_code(argv: list[str], code: int) -> None:
    """The command exits early, without Python's cleanup, and still prints everything and sets its exit code."""
    process = subprocess.run(
        [Path(sys.executable).parent / "torchyard", *argv], capture_output=True, text=True, check=False
    )
    assert process.returncode == code
    assert (process.stdout + process.stderr).endswith("\n")
