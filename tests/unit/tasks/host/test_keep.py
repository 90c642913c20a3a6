"""The supervisor, called by the path that plans of version 0.1 hold."""

import json
import subprocess
import sys
from pathlib import Path

from torchyard.common.project_root import ROOT


def test_supervisor_answers_at_its_former_path(tmp_path: Path) -> None:
    """`tasks/host/keep.py cancel FOLDER GRACE` answers as the supervisor does."""
    argv = [sys.executable, "-I", "-S", str(ROOT / "tasks" / "host" / "keep.py"), "cancel", str(tmp_path / "none"), "0"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"phase": "absent", "left": []}
