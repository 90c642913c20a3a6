"""Calls the supervisor of one real process as the launcher does, and reads its state and log."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchyard.launchers.baremetal import SUPERVISOR_PATH


def build_argv(verb: str) -> list[str]:
    return [sys.executable, "-I", "-S", SUPERVISOR_PATH, verb]


def call_supervisor(verb: str, folder: Path, prefix: Sequence[str] = (), **fields: Any) -> Any:
    """Call the supervisor once for one process; return its response. `prefix`: of the command line."""
    argv = [*prefix, *build_argv(verb)]
    requests = {"node-0": {"folder": str(folder)} | fields}
    completed = subprocess.run(argv, input=json.dumps(requests), capture_output=True, text=True, check=True, timeout=30)
    return json.loads(completed.stdout)["node-0"]


def start_watch(folder: Path, offset: int | None = None) -> subprocess.Popen[bytes]:
    """Watch one process; `offset`: the byte from which its log is wanted. The caller ends it."""
    watch = subprocess.Popen(build_argv("watch"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    send_line(watch, {"processes": {"node-0": str(folder)}, "logs": {"node-0": offset} if offset is not None else {}})
    return watch


def send_line(watch: subprocess.Popen[bytes], line: dict[str, Any]) -> None:
    assert watch.stdin
    watch.stdin.write(json.dumps(line).encode() + b"\n")
    watch.stdin.flush()


def read_frame(watch: subprocess.Popen[bytes]) -> tuple[dict[str, Any], bytes]:
    """The next line of a watch, and the bytes that follow it; an empty line at its end."""
    assert watch.stdout
    line = json.loads(watch.stdout.readline() or b"{}")
    return line, watch.stdout.read(line.get("size", 0))


def watch_to_the_end(folder: Path, offset: int | None = None) -> tuple[int, list[dict[str, Any]], bytes]:
    """Watch a process to its end: the exit code, the states, and the log."""
    states: list[dict[str, Any]] = []
    log = b""
    with start_watch(folder, offset) as watch:
        while True:
            line, data = read_frame(watch)
            if not line:
                return watch.wait(30), states, log
            log += data
            if "state" in line:
                states.append(line["state"])


def build_spec(folder: Path, script: str) -> dict[str, Any]:
    argv = ["bash", "-c", script]
    return {"name": "node-0", "argv": argv, "env": {}, "cwd": "/", "label": str(folder), "ports": []}


def start_script(folder: Path, script: str, **spec_changes: Any) -> Any:
    return call_supervisor("submit", folder, spec=build_spec(folder, script) | spec_changes)


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
