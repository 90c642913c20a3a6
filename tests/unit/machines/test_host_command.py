"""Command lines that run our scripts on hosts that have none of our files."""

import json
import subprocess
import sys
from pathlib import Path

from torchyard.machines.host_command import script_command


def test_old_python_is_reported(tmp_path: Path) -> None:
    """An interpreter on a host that is too old is reported with its version and the one that is needed."""
    argv = script_command("far", "python3", "facts.py").argv
    old_bootstrap = argv[2].replace("(3, 8)", "(9, 9)")
    completed = subprocess.run(
        [sys.executable, "-c", old_bootstrap, argv[3]], capture_output=True, text=True, check=False
    )
    assert completed.stderr.endswith(", and 3.8 or newer is needed\n")


def test_script_is_sent_with_its_imports(tmp_path: Path) -> None:
    """A script that imports another one runs on a host without any of our files."""
    argv = script_command("far", sys.executable, "staging.py", "attempts", str(tmp_path / "a-1")).argv
    completed = subprocess.run([argv[0], "-I", "-S", *argv[1:]], capture_output=True, cwd=tmp_path, check=True)
    assert json.loads(completed.stdout) == {"attempts": []}
