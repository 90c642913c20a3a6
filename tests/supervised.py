"""Calls the supervisor of one real process as the launcher does, and reads what it left."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from torchyard.launchers.baremetal import _SUPERVISOR_PATH


def keep(verb: str, folder: Path, *more: str, spec: dict[str, Any] | None = None) -> Any:
    """Call the supervisor once; return the last JSON line that it printed."""
    argv = [sys.executable, "-I", "-S", _SUPERVISOR_PATH, verb, str(folder), *more]
    done = subprocess.run(argv, input=json.dumps(spec or {}), capture_output=True, text=True, check=True, timeout=30)
    return json.loads(done.stdout.splitlines()[-1])


def start(folder: Path, script: str, **more: Any) -> Any:
    spec = {"name": "node-0", "argv": ["bash", "-c", script], "env": {}, "cwd": "/", "label": str(folder), "ports": []}
    return keep("submit", folder, spec={**spec, **more})


def ended(folder: Path) -> Any:
    """The state once the process has ended."""
    for _ in range(200):
        state = keep("status", folder)
        if state["phase"] != "running":
            return state
        time.sleep(0.02)
    raise AssertionError("it did not end")


def texts(folder: Path) -> list[str]:
    return [line.partition(" | ")[2] for line in (folder / "log").read_text().splitlines()]
