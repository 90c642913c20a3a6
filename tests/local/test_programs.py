"""The programs of a job in real processes: under torchrun on loopback, or alone if one process is enough."""

import io
import itertools
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from programs import digits
from scripts.server import find_free_port
from tests.processes.started_programs import PRINT_THREADS, Finished, Rows, build_command, build_env, read_rows, run
from torchyard.common.project_root import ROOT

HELD_OUT = 359


@pytest.fixture(scope="module")
def full_output() -> str:
    """The stdout of an uninterrupted training on two ranks."""
    return run(build_command(2, "programs/digits.py")).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoint that the stopped training writes and the resumed one reads."""
    return tmp_path_factory.mktemp("run") / "checkpoints"


@pytest.fixture(scope="module")
def stopped_rows(folder: Path) -> Rows:
    """The rows of a training on one rank that receives SIGTERM in the pause after its first epoch."""
    command = build_command(1, "programs/digits.py", "--pause=2", f"--checkpoint-dir={folder}")
    rows = []
    with subprocess.Popen(command, cwd=ROOT, env=build_env(), stdout=subprocess.PIPE, text=True) as training:
        for line in training.stdout or ():
            rows += read_rows(line)
            if rows:
                training.terminate()
    return rows


@pytest.fixture(scope="module")
def resumed_output(folder: Path, stopped_rows: Rows) -> str:
    """The stdout of the stopped training, resumed on two ranks for four epochs in total."""
    assert stopped_rows
    return run(build_command(2, "programs/digits.py", "--epochs=4", f"--checkpoint-dir={folder}")).stdout


@pytest.fixture(scope="module")
def third_run(folder: Path, resumed_output: str) -> Finished:
    """A third start after the last epoch, which prints the names of its threads after the training."""
    assert resumed_output
    program = f"from programs import digits; digits.main(); {PRINT_THREADS}"
    return run(build_command(1, "-c", program, "--epochs=4"), TORCHYARD_CHECKPOINTS=str(folder))


def test_two_ranks_train_together(full_output: str) -> None:
    """Both ranks print their host, and their network recognizes at least 95 % of the held-out digits."""
    host = socket.gethostname()
    for rank in (0, 1):
        assert f"rank {rank} of 2 on {host} (local rank {rank}), backend gloo" in full_output.splitlines()
    rows = read_rows(full_output)
    assert [row["epoch"] for row in rows] == list(range(1, 11))
    assert rows[-1]["accuracy"] >= 0.95
    assert rows[-1]["world_size"] == 2


def test_accuracy_counts_each_held_out_sample_once(full_output: str) -> None:
    """Two ranks share an odd number of samples, and each accuracy is a multiple of 1 / that number."""
    for row in read_rows(full_output):
        correct = row["accuracy"] * HELD_OUT
        assert correct == pytest.approx(round(correct), abs=0.001)


def test_shards_cover_all_samples_once() -> None:
    """The shards of three ranks are disjoint and together contain all samples."""
    shards = [digits.shard(HELD_OUT, rank, 3) for rank in range(3)]
    assert sorted(itertools.chain(*shards)) == list(range(HELD_OUT))


def test_resume_continues_after_the_last_epoch(stopped_rows: Rows, resumed_output: str) -> None:
    """A stopped training continues after the last epoch that it reported."""
    last = stopped_rows[-1]["epoch"]
    assert f"resumed after epoch {last}" in resumed_output.splitlines()
    assert [row["epoch"] for row in read_rows(resumed_output)] == list(range(last + 1, 5))


def test_resume_changes_nothing_in_the_result(full_output: str, resumed_output: str) -> None:
    """A training that is stopped on one rank and resumed on two has the loss and accuracy of an uninterrupted one."""
    expected = read_rows(full_output)[3]
    actual = read_rows(resumed_output)[-1]
    assert actual["accuracy"] == pytest.approx(expected["accuracy"], abs=0.006)
    assert actual["loss"] == pytest.approx(expected["loss"], rel=0.01)


def test_finished_training_prints_its_last_row_again(third_run: Finished, resumed_output: str) -> None:
    """A training that is restarted after all epochs prints the last epoch's row unchanged and succeeds."""
    assert third_run.returncode == 0
    assert read_rows(third_run.stdout) == read_rows(resumed_output)[-1:]


def test_no_gloo_thread_outlives_the_group(third_run: Finished) -> None:
    """No thread of gloo remains after the training, because it would sometimes abort the exit."""
    threads = third_run.stdout.splitlines()[-1]
    assert "python" in threads
    assert "gloo_" not in threads


@pytest.mark.parametrize("fraction", [0, 0.01, 0.5, 0.99])
def test_damaged_checkpoint_is_reported_and_ignored(
    fraction: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A truncated checkpoint is reported in one line and ignored."""
    path = tmp_path / "digits.pt"
    torch.save({"row": {}, "model": digits.build_network().state_dict(), "optimizer": {}}, path)
    assert set(digits.read_checkpoint(tmp_path)) == {"row", "model", "optimizer"}
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * fraction)])
    assert digits.read_checkpoint(tmp_path) == {}
    assert capsys.readouterr().out.startswith(f"ignored the checkpoint {path}: it is damaged")


def test_batch_that_cannot_be_shared_is_refused() -> None:
    """A batch that three processes cannot share equally gives exit code 2 and one sentence, no traceback."""
    completed = run(build_command(1, "programs/digits.py", "--batch-size=50"), WORLD_SIZE="3")
    assert completed.returncode == 2
    assert completed.stderr == "digits.py: --batch-size 50 cannot be shared equally by 3 processes; 48 can.\n"


def test_line_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line and its newline are one write, even unbuffered, so that no other process can write in between."""
    receiver, sender = socket.socketpair(type=socket.SOCK_DGRAM)  # keeps writes apart, unlike a pipe
    with receiver, sender, open(receiver.fileno(), "wb", buffering=0, closefd=False) as raw:
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, write_through=True))
        digits.print_line("rank 0 of 1")
        assert sender.recv(100) == b"rank 0 of 1\n"


@pytest.mark.parametrize("world_size", [1, 3])
def test_pi_is_correct(world_size: int) -> None:
    """Each trial computes pi to nine digits, even if the number of processes does not divide the intervals."""
    rows = read_rows(run(build_command(world_size, "programs/pi.py", "--trials=2")).stdout)
    assert [row.get("trial") for row in rows] == [1, 2, None]
    assert all(row["error"] <= 1e-9 for row in rows)
    assert rows[-1]["world_size"] == world_size


# --- digits in place of the programs of the guides


def start_digits(*args: str, **env: str) -> subprocess.Popen[str]:
    settings = os.environ | {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"} | env
    command = [sys.executable, *args]
    return subprocess.Popen(
        command, cwd=ROOT, env=settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_digits_stands_in_under_torch_distributed_launch() -> None:
    """digits.py accepts the --local-rank that torch.distributed.launch passes."""
    agent = ("-m", "torch.distributed.launch", "--nproc-per-node=2", f"--master-port={find_free_port()}")
    process = start_digits(*agent, "programs/digits.py", "--epochs=1")
    output = process.communicate(timeout=60)[0]
    assert (process.returncode, '"world_size": 2' in output) == (0, True), output


def test_digits_stands_in_for_a_program_that_meets_in_a_file(tmp_path: Path) -> None:
    """Two processes without an agent use a file as their rendezvous."""
    args = ("programs/digits.py", "--epochs=1", f"--init-method=file://{tmp_path}/meeting")
    processes = [start_digits(*args, RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert '"world_size": 2' in outputs[0]
