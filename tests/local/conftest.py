"""Fixtures of the tests that execute whole runs on this machine."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.sweep import sweep
from tests.conftest import Write
from tests.doubles.runai_jobs import cli, runai_planned
from tests.processes.flow_processes import TICK_PROGRAM, FlowRunProcesses
from tests.processes.local_runs import WITHOUT_AGENT
from torchyard.common.project_root import ROOT
from torchyard.run.folder import list_run_folders

__all__ = ["cli", "runai_planned"]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps", "-w", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True)
    return next(folder.glob("*.whl"))


@pytest.fixture
def create_run(write: Write, tmp_path: Path) -> Iterator[Callable[..., FlowRunProcesses]]:
    """Create a flow run of two ticking processes, without agents; a sweep ends them after the test.

    They end after `ticks`, or as soon as the file `end` exists in the test's folder.
    """

    def make(**keys: Any) -> FlowRunProcesses:
        (tmp_path / "truth").mkdir()
        args = [f"--truth={tmp_path}/truth", f"--until={tmp_path}/end", f"--ticks={keys.pop('ticks', 50)}"]
        return FlowRunProcesses(write(program=TICK_PROGRAM, args=args, nodes=2, **WITHOUT_AGENT | keys))

    yield make
    sweep(runs=[folder.name for folder in list_run_folders()], return_state=True)
