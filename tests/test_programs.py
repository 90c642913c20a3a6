"""The programs of a job, started for real: by torchrun on the loopback, or alone where one process is enough."""

import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from programs import digits

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
HELD_OUT = 359
TELL_THREADS = (
    "from pathlib import Path; print(*(p.read_text().strip() for p in Path('/proc/self/task').glob('*/comm')))"
)
Finished = subprocess.CompletedProcess[str]
Rows = list[dict[str, Any]]


def launch(processes: int, *program: str) -> list[str]:
    """Give the command for the program and its arguments: of a torchrun that finds a free port, or of one process."""
    agent = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={processes}"]
    return [sys.executable, *(agent if processes > 1 else []), *program]


def surround(**changes: str) -> dict[str, str]:
    """Give the environment of a lone process on the CPU; torchrun gives its own processes other ranks."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    return os.environ | alone | {"CUDA_VISIBLE_DEVICES": "", "TORCHYARD_CHECKPOINTS": ""} | changes


def run(command: list[str], **environment: str) -> Finished:
    """Run the command in the project's root to its end."""
    settings = surround(**environment)
    return subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, timeout=60, check=False)


def read_rows(output: str) -> Rows:
    """Read the JSON lines among the others."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


@pytest.fixture(scope="module")
def whole() -> str:
    """What a training on two ranks prints that nothing stops."""
    return run(launch(2, "programs/digits.py")).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoint that the stopped training leaves and the resumed one takes up."""
    return tmp_path_factory.mktemp("run") / "checkpoints"


@pytest.fixture(scope="module")
def stopped(folder: Path) -> Rows:
    """The rows of a training on one rank that gets SIGTERM in the pause after its first epoch."""
    command = launch(1, "programs/digits.py", "--pause=2", f"--checkpoint-dir={folder}")
    rows = []
    with subprocess.Popen(command, cwd=ROOT, env=surround(), stdout=subprocess.PIPE, text=True) as training:
        for line in training.stdout or ():
            rows += read_rows(line)
            if rows:
                training.terminate()
    return rows


@pytest.fixture(scope="module")
def resumed(folder: Path, stopped: Rows) -> str:
    """What the stopped training prints when it is started again on two ranks, for four epochs in all."""
    assert stopped
    return run(launch(2, "programs/digits.py", "--epochs=4", f"--checkpoint-dir={folder}")).stdout


@pytest.fixture(scope="module")
def again(folder: Path, resumed: str) -> Finished:
    """A third start, with nothing left to do, that tells the names of its threads after the training."""
    assert resumed
    program = f"from programs import digits; digits.main(); {TELL_THREADS}"
    return run(launch(1, "-c", program, "--epochs=4"), TORCHYARD_CHECKPOINTS=str(folder))


def test_two_ranks_train_together(whole: str) -> None:
    """Both ranks say where they run, and the network that they train knows at least 95 % of the held-out digits."""
    host = socket.gethostname()
    for rank in (0, 1):
        assert f"rank {rank} of 2 on {host} (local rank {rank}), backend gloo" in whole.splitlines()
    rows = read_rows(whole)
    assert [row["epoch"] for row in rows] == list(range(1, 11))
    assert rows[-1]["accuracy"] >= 0.95
    assert rows[-1]["world_size"] == 2


def test_accuracy_counts_each_held_out_sample_once(whole: str) -> None:
    """Two ranks share an odd number of samples, and each accuracy is a part of just that number."""
    for row in read_rows(whole):
        correct = row["accuracy"] * HELD_OUT
        assert correct == pytest.approx(round(correct), abs=0.001)


def test_shards_cover_all_samples_once() -> None:
    """The parts of three ranks are disjoint and together all samples."""
    parts = [digits.shard(HELD_OUT, rank, 3) for rank in range(3)]
    assert sorted(sample for part in parts for sample in part) == list(range(HELD_OUT))


def test_resume_continues_after_the_last_epoch(stopped: Rows, resumed: str) -> None:
    """A stopped training goes on after the last epoch that it told of."""
    last = stopped[-1]["epoch"]
    assert f"resumed after epoch {last}" in resumed.splitlines()
    assert [row["epoch"] for row in read_rows(resumed)] == list(range(last + 1, 5))


def test_resume_changes_nothing_in_the_result(whole: str, resumed: str) -> None:
    """Stopped and resumed, on one rank and then on two, it learns what it would have learnt in one go."""
    expected, found = read_rows(whole)[3], read_rows(resumed)[-1]
    assert found["accuracy"] == pytest.approx(expected["accuracy"], abs=0.006)
    assert found["loss"] == pytest.approx(expected["loss"], rel=0.01)


def test_a_finished_training_tells_its_last_row_again(again: Finished, resumed: str) -> None:
    """Started once more when all epochs are done, it prints the last epoch's row unchanged and succeeds."""
    assert again.returncode == 0
    assert read_rows(again.stdout) == read_rows(resumed)[-1:]


def test_no_gloo_thread_outlives_the_group(again: Finished) -> None:
    """After the training gloo's threads are gone: one that is left would abort an exit now and then."""
    threads = again.stdout.splitlines()[-1]
    assert "python" in threads
    assert "gloo_" not in threads


@pytest.mark.parametrize("part", [0, 0.01, 0.5, 0.99])
def test_a_damaged_checkpoint_is_told_and_ignored(
    part: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint that was cut off anywhere is told of in one line and counts as none."""
    path = tmp_path / "digits.pt"
    torch.save({"row": {}, "model": digits.build_network().state_dict(), "optimizer": {}}, path)
    assert set(digits.read_checkpoint(tmp_path)) == {"row", "model", "optimizer"}
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    assert digits.read_checkpoint(tmp_path) == {}
    assert capsys.readouterr().out.startswith(f"ignored the checkpoint {path}: it is damaged")


def test_a_batch_that_cannot_be_shared_is_refused() -> None:
    """A batch that three processes cannot share equally ends with exit 2 and one sentence, no traceback."""
    refused = run(launch(1, "programs/digits.py", "--batch-size=50"), WORLD_SIZE="3")
    assert refused.returncode == 2
    assert refused.stderr == "digits.py: --batch-size 50 cannot be shared equally by 3 processes; 48 can.\n"


def test_a_line_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unbuffered too, a line and its end leave in one write, so that no other process gets in between."""
    ours, theirs = socket.socketpair(type=socket.SOCK_DGRAM)  # keeps writes apart, as a pipe does not
    with ours, theirs, open(ours.fileno(), "wb", buffering=0, closefd=False) as raw:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, write_through=True))
        digits.say("rank 0 of 1")
        assert theirs.recv(100) == b"rank 0 of 1\n"


@pytest.mark.parametrize("processes", [1, 3])
def test_pi_is_right(processes: int) -> None:
    """Any number of processes finds pi to nine digits in each trial, also where it does not divide the intervals."""
    rows = read_rows(run(launch(processes, "programs/pi.py", "--trials=2")).stdout)
    assert [row.get("trial") for row in rows] == [1, 2, None]
    assert all(row["error"] <= 1e-9 for row in rows)
    assert rows[-1]["world_size"] == processes
