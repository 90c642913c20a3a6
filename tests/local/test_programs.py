"""The programs of a job in real processes: under torchrun on loopback, or alone if one process is enough."""

import io
import itertools
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.optim import Adam

from programs import digits
from scripts.server import find_free_port
from tests.processes.started_programs import PRINT_THREADS, Finished, Rows, build_command, build_env, read_rows, run
from torchyard.common.project_root import ROOT

HELD_OUT = 359
PROGRAM = ("programs/digits.py", "--epochs=6")


@pytest.fixture(scope="module")
def full_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoints of the uninterrupted training."""
    return tmp_path_factory.mktemp("full")


@pytest.fixture(scope="module")
def full_output(full_folder: Path) -> str:
    """The stdout of an uninterrupted training on two ranks."""
    return run(build_command(2, *PROGRAM, f"--checkpoint-dir={full_folder}")).stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the checkpoints that the stopped training writes and the resumed one reads."""
    return tmp_path_factory.mktemp("run") / "checkpoints"


def stop_after_first_row(command: list[str]) -> str:
    """The stdout of a training that receives SIGTERM after its first row, checked to end by that signal."""
    lines = []
    with subprocess.Popen(command, cwd=ROOT, env=build_env(), stdout=subprocess.PIPE, text=True) as training:
        for line in training.stdout or ():
            lines.append(line)
            if line.startswith('{"epoch"'):
                training.terminate()
    assert training.returncode in (-signal.SIGTERM, 1)  # torchrun itself exits with 1
    return "".join(lines)


@pytest.fixture(scope="module")
def stopped_output(folder: Path) -> str:
    """The stdout of a training on one rank that receives SIGTERM in the pause after its first epoch."""
    return stop_after_first_row(build_command(1, *PROGRAM, "--pause=60", f"--checkpoint-dir={folder}"))


@pytest.fixture(scope="module")
def resumed_output(folder: Path, stopped_output: str) -> str:
    """The stdout of the stopped training, resumed on two ranks."""
    assert read_checkpoint_steps(stopped_output)
    return run(build_command(2, *PROGRAM, f"--checkpoint-dir={folder}")).stdout


@pytest.fixture(scope="module")
def third_run(folder: Path, resumed_output: str) -> Finished:
    """A third start after the last epoch, which prints the names of its threads after the training."""
    assert resumed_output
    program = f"from programs import digits; digits.main(); {PRINT_THREADS}"
    return run(build_command(1, "-c", program, *PROGRAM[1:]), TORCHYARD_CHECKPOINTS=str(folder))


def read_epochs(output: str) -> Rows:
    """The rows of the epochs in an output."""
    return [row for row in read_rows(output) if "epoch" in row]


def read_checkpoint_steps(output: str) -> list[int]:
    """The steps of the checkpoints that an output reports."""
    return [row["step"] for row in read_rows(output) if "checkpoint" in row]


def build_test_state(step: int) -> dict[str, Any]:
    """The state of a network that was never trained."""
    network = digits.build_network()
    return digits.build_state(network, Adam(network.parameters()), digits.Progress(step=step))


def save_state(path: Path, step: int) -> None:
    """Save as digits.py does, in this process alone."""
    writer = digits.CheckpointWriter(path, pause_s=0)
    dcp.save(build_test_state(step), storage_writer=writer, no_dist=True)


def test_two_ranks_train_together(full_output: str) -> None:
    """Both ranks print their host, and their network recognizes at least 95 % of the held-out digits."""
    host = socket.gethostname()
    for rank in (0, 1):
        assert f"rank {rank} of 2 on {host} (local rank {rank}), backend gloo" in full_output.splitlines()
    rows = read_epochs(full_output)
    assert [row["epoch"] for row in rows] == list(range(1, 7))
    assert rows[-1]["accuracy"] >= 0.95
    assert rows[-1]["world_size"] == 2


def test_accuracy_counts_each_held_out_sample_once(full_output: str) -> None:
    """Two ranks share an odd number of samples, and each accuracy is a multiple of 1 / that number."""
    for row in read_epochs(full_output):
        correct = row["accuracy"] * HELD_OUT
        assert correct == pytest.approx(round(correct), abs=0.001)


def test_shards_cover_all_samples_once() -> None:
    """The shards of three ranks are disjoint and together contain all samples."""
    shards = [digits.shard(HELD_OUT, rank, 3) for rank in range(3)]
    assert sorted(itertools.chain(*shards)) == list(range(HELD_OUT))


def test_training_that_is_asked_to_stop_is_saved(stopped_output: str) -> None:
    """The ranks' next exchange after the request is saved and reported, in the middle of an epoch."""
    assert read_checkpoint_steps(stopped_output) == [15, 15 + digits.EXCHANGE_STEPS]


def test_resume_continues_after_the_saved_step(resumed_output: str) -> None:
    """A stopped training continues after the step that it saved."""
    assert "resumed after step 23, at batch 8 of epoch 2" in resumed_output.splitlines()
    assert [row["epoch"] for row in read_epochs(resumed_output)] == list(range(2, 7))


def test_other_world_size_continues_with_the_same_samples(full_output: str, resumed_output: str) -> None:
    """A training that is stopped on one rank and resumed on two has the loss and accuracy of an uninterrupted one."""
    for expected, actual in zip(read_epochs(full_output)[1:], read_epochs(resumed_output), strict=True):
        assert actual["accuracy"] == pytest.approx(expected["accuracy"], abs=0.006)
        assert actual["loss"] == pytest.approx(expected["loss"], rel=0.01)


def test_three_stops_change_no_bit(full_output: str, full_folder: Path, tmp_path: Path) -> None:
    """A training that is stopped three times ends with the rows and the state of an uninterrupted one, bit for bit."""
    command = build_command(2, *PROGRAM, f"--checkpoint-dir={tmp_path}")
    outputs = [stop_after_first_row(command) for _ in range(3)]
    outputs.append(run(command).stdout)
    losses = {row["epoch"]: row["loss"] for output in outputs for row in read_epochs(output)}
    assert losses == {row["epoch"]: row["loss"] for row in read_epochs(full_output)}
    expected = digits.load_state(full_folder / "step-90", None)
    actual = digits.load_state(tmp_path / "step-90", None)
    assert_equal_tensors(actual["model"], expected["model"])
    for name, tensors in expected["optimizer"]["state"].items():
        assert_equal_tensors(actual["optimizer"]["state"][name], tensors)


def assert_equal_tensors(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Check that two mappings have the same tensors, bit for bit."""
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())


def test_finished_training_prints_its_last_row_again(third_run: Finished, resumed_output: str) -> None:
    """A training that is restarted after all epochs prints the last epoch's row unchanged and succeeds."""
    assert third_run.returncode == 0
    assert read_rows(third_run.stdout) == read_epochs(resumed_output)[-1:]


def test_no_gloo_thread_outlives_the_group(third_run: Finished) -> None:
    """No thread of gloo remains after the training, because it would sometimes abort the exit."""
    threads = third_run.stdout.splitlines()[-1]
    assert "python" in threads
    assert "gloo_" not in threads


@pytest.mark.parametrize("fraction", [0, 0.01, 0.5, 0.99])
@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_damaged_checkpoint_is_reported_and_ignored(
    name: str, fraction: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A truncated checkpoint is reported in one line, and the one before it is loaded."""
    save_state(tmp_path / "step-9", 9)
    save_state(tmp_path / "step-10", 10)
    path = tmp_path / "step-10" / name
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * fraction)])
    capsys.readouterr()
    state = digits.load_checkpoint(tmp_path)
    assert state is not None
    assert state["progress"]["step"] == 9
    assert capsys.readouterr().out == f"ignored the checkpoint {tmp_path / 'step-10'}: it is damaged\n"


def test_chosen_checkpoint_is_loaded_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$TORCHYARD_RESUME precedes a newer checkpoint of the folder, and no other one replaces it if it is damaged."""
    save_state(tmp_path / "step-9", 9)
    save_state(tmp_path / "step-10", 10)
    monkeypatch.setenv("TORCHYARD_RESUME", str(tmp_path / "step-9"))
    state = digits.load_checkpoint(tmp_path)
    assert state is not None
    assert state["progress"]["step"] == 9
    (tmp_path / "step-9" / ".metadata").unlink()
    with pytest.raises(dcp.CheckpointException):
        digits.load_checkpoint(tmp_path)


def test_new_checkpoint_replaces_all_but_the_previous_one(tmp_path: Path) -> None:
    """Older checkpoints, later ones of a training that was resumed from an earlier step, and torn ones are removed."""
    for step in (1, 2, 20, 3):
        save_state(tmp_path / f"step-{step}", step)
        (tmp_path / f"step-{step + 1}.tmp").mkdir(exist_ok=True)  # of a save that was killed
    assert [path.name for path in digits.list_checkpoints(tmp_path)] == ["step-2", "step-3"]
    save_state(tmp_path / "step-3", 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-2", "step-3"]


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
