"""`python -m torchyard`, as a process."""

import subprocess
import sys


def test_package_runs_as_a_module() -> None:
    """`python -m torchyard` is the command, for an interpreter whose scripts are not on PATH."""
    argv = [sys.executable, "-m", "torchyard", "plan", "none"]
    process = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert process.returncode == 3
    assert "none" in process.stderr
