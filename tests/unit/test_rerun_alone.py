"""A few tests that fail beside others are run once more, alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.rerun_alone import MAX_RETRIED
from torchyard.common.project_root import ROOT

UNSTEADY = """
import os, pathlib
def test_quiet(): pass
def test_steps():
    marker = pathlib.Path(__file__).with_name("marker")
    is_rerun = marker.exists()
    marker.touch()
    assert is_rerun and "PYTEST_XDIST_WORKER" not in os.environ
"""
BROKEN = "def test_{0}(): assert False\n"


@pytest.mark.parametrize(("text", "is_failure", "message"), [
    (UNSTEADY, False, "test_it.py::test_steps failed beside other tests and passed alone"),
    (BROKEN.format(1), True, "test_it.py::test_1\n"),
    ("def broken(:", True, "test_it.py\n"),
    ("".join(map(BROKEN.format, range(MAX_RETRIED + 1))), True, ""),
    ("def test_quiet(): pass\n", False, ""),
], ids=["unsteady", "broken", "syntax", "too many", "sound"])  # fmt: skip
def test_only_a_test_that_fails_alone_fails_the_run(tmp_path: Path, text: str, is_failure: bool, message: str) -> None:
    """A test that fails beside others and passes alone is reported; failures alone, or too many, fail the run."""
    (tmp_path / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "tests.tools.rerun_alone", "-n", "2", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    completed = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert bool(completed.returncode) == is_failure, completed.stdout
    assert ("once more, alone: " in completed.stdout, message in completed.stdout) == (bool(message), True)
