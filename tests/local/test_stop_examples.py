"""The examples of docs/stop.md: stopped by SIGTERM and resumed, they have the losses of an unbroken run."""

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

from tests.processes.started_programs import Rows, build_command, build_env, read_rows
from tests.tools.skips import NEVER_INSTALLED
from torchyard.common.project_root import ROOT

STOP_AT = 22  # a step in the middle of an epoch of 16 steps
# What each example saves, below $TORCHYARD_CHECKPOINTS.
CHECKPOINTS = {
    "ddp": "step-*.pt",
    "accelerate": "checkpoints/checkpoint_*",
    "lightning": "*.ckpt",
    "transformers": "checkpoint-*",
}


def train(style: str, folder: Path, *, resume: Path | None = None, stop_at: int | None = None) -> Rows:
    """Run an example on two ranks, with SIGTERM to torchrun after the step `stop_at`; return the rows of its steps."""
    folder.mkdir(exist_ok=True)
    command = build_command(2, f"examples/stop/with_{style}.py", "--pause=0.05")
    env = build_env(TORCHYARD_CHECKPOINTS=str(folder), TORCHYARD_RESUME=str(resume or ""), OMP_NUM_THREADS="1")
    rows: Rows = []
    with subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) as training:
        for line in training.stdout or ():
            new_rows = [row for row in read_rows(line if line.startswith('{"') else "") if "loss" in row]
            rows += new_rows
            if any(row["step"] == stop_at for row in new_rows):
                training.terminate()
    assert (training.returncode == 0) == (stop_at is None)
    return rows


@pytest.mark.parametrize("style", CHECKPOINTS)
def test_stop_changes_no_loss(style: str, tmp_path: Path) -> None:
    """No step is lost, repeated or different."""
    if style != "ddp" and not importlib.util.find_spec(style):
        pytest.skip(f"{NEVER_INSTALLED} {style}")
    expected = train(style, tmp_path / "unbroken")
    before = train(style, tmp_path / "stopped", stop_at=STOP_AT)
    checkpoint = max((tmp_path / "stopped").glob(CHECKPOINTS[style]), key=os.path.getmtime)
    after = train(style, tmp_path / "stopped", resume=checkpoint)
    assert len(before) < len(expected)
    assert before + after == expected
