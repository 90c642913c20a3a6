"""Programs of a job, started by torchrun on loopback, or alone if one process is enough."""

import json
import os
import subprocess
import sys
from typing import Any

from torchyard.common.project_root import ROOT

TELL_THREADS = (
    "from pathlib import Path; print(*(p.read_text().strip() for p in Path('/proc/self/task').glob('*/comm')))"
)
Finished = subprocess.CompletedProcess[str]
Rows = list[dict[str, Any]]


def launch(processes: int, *program: str) -> list[str]:
    """The command for a program and its arguments: a torchrun that finds a free port, or a single process."""
    agent = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={processes}"]
    return [sys.executable, *(agent if processes > 1 else []), *program]


def surround(**changes: str) -> dict[str, str]:
    """The environment of a single process on the CPU; torchrun gives its own processes other ranks."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    return os.environ | alone | {"CUDA_VISIBLE_DEVICES": "", "TORCHYARD_CHECKPOINTS": ""} | changes


def run(command: list[str], **environment: str) -> Finished:
    """Run the command in the project's root to its end."""
    settings = surround(**environment)
    return subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=60, check=False)


def read_rows(output: str) -> Rows:
    """Read the JSON lines among the others."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]
