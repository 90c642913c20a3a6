"""The process of a flow run: Prefect's engine in a session of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchyard.common.project_root import ROOT


def run_with_engine(folder: Path, program: str) -> "subprocess.CompletedProcess[str]":
    """Run the process of a flow run, with a program in place of Prefect's engine and of what completes a cancel."""
    engine = folder / "prefect" / "engine.py"
    engine.parent.mkdir()
    (engine.parent / "__init__.py").touch()
    engine.write_text(program)
    recovery = folder / "torchyard" / "tasks" / "recovery.py"
    recovery.parent.mkdir(parents=True)
    (folder / "torchyard" / "__init__.py").touch()
    recovery.write_text("def complete_cancel(flow_run_id): print('completed', flow_run_id)")
    return subprocess.run(
        [sys.executable, "-P", ROOT / "scripts" / "flow_process.py"],
        env=os.environ | {"PYTHONPATH": str(folder), "PREFECT__FLOW_RUN_ID": "a1b2"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("code", "output"), [(0, ""), (1, "completed a1b2\n")])
def test_cancel_is_completed_after_a_failed_engine(tmp_path: Path, code: int, output: str) -> None:
    """An engine that ends with an error may have left its run Cancelling; the exit code stays."""
    completed = run_with_engine(tmp_path, f"exit({code})")
    assert (completed.stdout, completed.returncode) == (output, code)


def test_process_becomes_the_engine_in_its_own_session(tmp_path: Path) -> None:
    """The engine is the main program of the process, which is not in the session of its caller."""
    completed = run_with_engine(tmp_path, "import os, sys; print(__name__, len(sys.argv), os.getsid(0) == os.getpid())")
    assert (completed.stdout, completed.stderr) == ("__main__ 1 True\n", "")
