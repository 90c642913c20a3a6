"""Programs of a job, started by torchrun on loopback, or directly if one process is enough."""

import json
import os
import subprocess
import sys
from typing import Any

from torchyard.common.project_root import ROOT

PRINT_THREADS = (
    "from pathlib import Path; print(*(p.read_text().strip() for p in Path('/proc/self/task').glob('*/comm')))"
)
Finished = subprocess.CompletedProcess[str]
Rows = list[dict[str, Any]]


def build_command(processes: int, *program: str) -> list[str]:
    """The command for a program and its arguments: a torchrun that finds a free port, or a single process."""
    agent = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={processes}"]
    if processes == 1:
        return [sys.executable, *program]
    return [sys.executable, *agent, *program]


def build_env(**changes: str) -> dict[str, str]:
    """The environment of a single process on the CPU; torchrun gives its own processes other ranks."""
    single_process = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    return os.environ | single_process | {"CUDA_VISIBLE_DEVICES": "", "TORCHYARD_CHECKPOINTS": ""} | changes


def run(command: list[str], **environment: str) -> Finished:
    """Run the command in the project's root to its end."""
    env = build_env(**environment)
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)


def read_rows(output: str) -> Rows:
    """The JSON lines of an output; other lines are skipped."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
