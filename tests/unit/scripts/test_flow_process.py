"""The process of a flow run: Prefect's engine in a session of its own."""

import os
import subprocess
import sys
from pathlib import Path

from torchyard.common.project_root import ROOT


def test_process_becomes_the_engine_in_its_own_session(tmp_path: Path) -> None:
    """The engine is the main program of the process, which is not in the session of its caller."""
    engine = tmp_path / "prefect" / "engine.py"
    engine.parent.mkdir()
    (engine.parent / "__init__.py").touch()
    engine.write_text("import os, sys; print(__name__, len(sys.argv), os.getsid(0) == os.getpid())")
    completed = subprocess.run(
        [sys.executable, "-P", ROOT / "scripts" / "flow_process.py"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (completed.stdout, completed.stderr) == ("__main__ 1 True\n", "")
