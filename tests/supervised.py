"""Calls the supervisor of one real process as the launcher does, and reads its state and log."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from torchyard.launchers.baremetal import SUPERVISOR_PATH


def call_supervisor(verb: str, folder: Path, *args: str, spec: dict[str, Any] | None = None) -> Any:
    """Call the supervisor once; return the last JSON line that it printed."""
    argv = [sys.executable, "-I", "-S", SUPERVISOR_PATH, verb, str(folder), *args]
    completed = subprocess.run(
        argv, input=json.dumps(spec or {}), capture_output=True, text=True, check=True, timeout=30
    )
    return json.loads(completed.stdout.splitlines()[-1])


def start_script(folder: Path, script: str, **spec_changes: Any) -> Any:
    spec = {"name": "node-0", "argv": ["bash", "-c", script], "env": {}, "cwd": "/", "label": str(folder), "ports": []}
    return call_supervisor("submit", folder, spec=spec | spec_changes)


def wait_for_exit(folder: Path) -> Any:
    """The state once the process has ended; AssertionError after 4 s."""
    for _ in range(200):
        state = call_supervisor("status", folder)
        if state["phase"] != "running":
            return state
        time.sleep(0.02)
    raise AssertionError("the process did not end within 4 s")


def read_log_texts(folder: Path) -> list[str]:
    return [line.partition(" | ")[2] for line in (folder / "log").read_text().splitlines()]
