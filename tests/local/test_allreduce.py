"""The all-reduce benchmark in real processes: under torchrun, without an agent, and with slow or faulty ranks."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from programs import allreduce
from tests.processes.started_programs import PRINT_THREADS, build_command, build_env, read_rows, run
from torchyard.common.project_root import ROOT
from torchyard.metrics.registry import get_progress, read_json_lines

PROGRAM = "programs/allreduce.py"
SHORT = ("--min-size=32K", "--max-size=200K", "--trials=3", "--warmups=1")
SIZES = [32768, 65536, 131072]


class Benchmark(NamedTuple):
    """A finished benchmark: the number of its processes, and its stdout."""

    world_size: int
    stdout: str


@pytest.fixture(scope="module", params=[2, 3])
def benchmark(request: pytest.FixtureRequest) -> Benchmark:
    """A successful benchmark over three sizes."""
    completed = run(build_command(request.param, PROGRAM, *SHORT))
    assert completed.returncode == 0, completed.stderr
    return Benchmark(request.param, completed.stdout)


def test_bandwidths_follow_from_size_and_seconds(benchmark: Benchmark) -> None:
    """A row's algbw is size / seconds in GB/s, and its busbw is algbw * 2 (n - 1) / n."""
    n = benchmark.world_size
    for row in read_rows(benchmark.stdout)[:-1]:
        assert row["algbw"] == pytest.approx(row["size"] / row["seconds"] / 1e9)
        assert row["busbw"] == pytest.approx(row["algbw"] * 2 * (n - 1) / n)


def test_sums_are_correct(benchmark: Benchmark) -> None:
    """gloo's sums are correct, whether or not the number of ranks divides the sizes."""
    assert [row["wrong"] for row in read_rows(benchmark.stdout)] == [0, 0, 0, 0]


def test_summary_is_of_the_largest_size(benchmark: Benchmark) -> None:
    """The summary has the last row's bandwidths, the mean of all rows, and the conditions of the measurement."""
    *rows, summary = read_rows(benchmark.stdout)
    assert (summary["algbw"], summary["busbw"]) == (rows[-1]["algbw"], rows[-1]["busbw"])
    assert summary["mean_busbw"] == pytest.approx(sum(row["busbw"] for row in rows) / len(rows))
    assert (summary["world_size"], summary["backend"], summary["dtype"]) == (benchmark.world_size, "gloo", "float32")


def test_rows_show_the_progress(benchmark: Benchmark) -> None:
    """Each size has a row with the progress, and the summary is not a row."""
    metrics = read_json_lines(benchmark.stdout.splitlines())
    assert [row["size"] for row in metrics.rows] == SIZES
    progress = [get_progress(row) for row in metrics.rows]
    assert [step.share for step in progress if step] == pytest.approx([1 / 3, 2 / 3, 1])
    assert metrics.summary["world_size"] == benchmark.world_size


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_one_process_has_no_bus(dtype: str) -> None:
    """With a single process every element is correct in any dtype, and busbw is 0."""
    rows = read_rows(run(build_command(1, PROGRAM, *SHORT, f"--dtype={dtype}")).stdout)
    assert [(row["busbw"], row["wrong"]) for row in rows] == [(0, 0)] * 4
    assert rows[-1]["dtype"] == dtype


def test_benchmark_runs_without_torchrun() -> None:
    """Two processes with RANK and MASTER_ADDR, but without LOCAL_RANK, in their environment run the benchmark."""
    with socket.create_server(("127.0.0.1", 0)) as free_port:
        port = str(free_port.getsockname()[1])
    environments = [build_env(RANK=str(rank), WORLD_SIZE="2", MASTER_PORT=port) for rank in range(2)]
    assert "LOCAL_RANK" not in environments[0]
    command = build_command(1, PROGRAM, *SHORT)
    ranks = [subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True) for env in environments]
    first, second = (rank.communicate(timeout=60)[0] for rank in ranks)
    assert ([row["wrong"] for row in read_rows(first)], second) == ([0, 0, 0, 0], "")


def test_gpu_is_chosen_by_the_rank_without_a_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 5 without LOCAL_RANK chooses GPU 1 of 4."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setenv("RANK", "5")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert allreduce.choose_device() == (torch.device("cuda", 1), "nccl")


def break_rank(folder: Path, code: str) -> list[str]:
    """Return the command for two ranks, of which rank 1 executes `code` before it measures."""
    program = folder / "broken.py"
    lines = ["import os, sys, time, torch", f"sys.path.insert(0, {str(ROOT)!r})", "from programs import allreduce"]
    lines += ["if os.environ['RANK'] == '1':", f"    {code}", "allreduce.main()"]
    program.write_text("\n".join(lines))
    return build_command(2, str(program), "--max-size=32K", "--trials=3", "--warmups=0")


def test_slowest_rank_counts(tmp_path: Path) -> None:
    """Rank 0 prints the median over the trials of the slowest rank's time, by the clock of that rank."""
    completed = run(break_rank(tmp_path, "allreduce.time.perf_counter = iter([0, 90, 0, 50, 0, 3000]).__next__"))
    assert read_rows(completed.stdout)[0]["seconds"] == 90


def test_ranks_start_each_trial_together(tmp_path: Path) -> None:
    """A rank that arrives late at every trial does not make the trials longer."""
    delay_copy = "copy = torch.Tensor.copy_; torch.Tensor.copy_ = lambda *given: (time.sleep(0.5), copy(*given))[1]"
    assert read_rows(run(break_rank(tmp_path, delay_copy)).stdout)[0]["seconds"] < 0.5


# Corrupts two elements of each result, but not of small tensors, which are not measured.
SPOIL = (
    "reduce = torch.distributed.all_reduce; torch.distributed.all_reduce = lambda given, *more: (reduce(given, *more), "
    "given.dtype.is_floating_point and given.numel() > 3 and given[-2:].add_(1))"
)


def test_wrong_sums_are_counted_and_fail(tmp_path: Path) -> None:
    """Two wrong elements of one rank in each of three trials count as 6, and the exit code is 1."""
    completed = run(break_rank(tmp_path, SPOIL))
    assert [row["wrong"] for row in read_rows(completed.stdout)] == [6, 6]
    assert (completed.returncode, "6 elements differ from the expected sums" in completed.stderr) == (1, True)


def test_sufficient_bandwidth_ends_the_check() -> None:
    """With --least the benchmark ends after the first size that is fast enough, and prints one row."""
    completed = run(build_command(2, PROGRAM, "--least=0.00001", "--within=30", *SHORT))
    assert completed.returncode == 0, completed.stderr
    (row,) = read_rows(completed.stdout)
    assert (row["check_fabric"]["size"], list(row)) == (SIZES[0], ["check_fabric"])


def test_insufficient_bandwidth_fails_the_check() -> None:
    """With --least the exit code is 1 if no size is fast enough, and the best bandwidth is reported."""
    completed = run(build_command(2, PROGRAM, "--least=9999", "--within=30", *SHORT))
    (row,) = read_rows(completed.stdout)
    best = row["check_fabric"]["busbw"]
    assert completed.returncode == 1
    assert f"all_reduce reached a busbw of {best:.4g} GB/s, and 9999 GB/s are needed." in completed.stderr


def test_time_ends_the_check() -> None:
    """With --least no size is started that would probably end after --within."""
    completed = run(
        build_command(2, PROGRAM, "--least=9999", "--within=0.4", "--max-size=16G", "--trials=3", "--warmups=0")
    )
    (row,) = read_rows(completed.stdout)
    assert row["check_fabric"]["size"] < 1 << 30
    assert "GB/s are needed" in completed.stderr


def test_wrong_sums_fail_the_check(tmp_path: Path) -> None:
    """A fabric that is fast enough but corrupts data fails the check."""
    completed = run([*break_rank(tmp_path, SPOIL), "--least=0.00001"])
    assert (completed.returncode, "6 elements differ from the expected sums" in completed.stderr) == (1, True), (
        completed.stderr
    )


@pytest.mark.parametrize("world_size", [1, 2, 3, 8, 300])
def test_shares_add_up_exactly(world_size: int) -> None:
    """The shares of all ranks add up to the sums exactly, even in the narrowest dtype."""
    total = sum(allreduce.build_shares(rank, world_size)[0].bfloat16() for rank in range(world_size))
    assert torch.equal(torch.as_tensor(total), allreduce.build_shares(0, world_size)[1].bfloat16())


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_shares_detect_wrong_sums(world_size: int) -> None:
    """A missing rank, a rank counted twice, shifted parts and a maximum all differ from the sums."""
    shares = torch.stack([allreduce.build_shares(rank, world_size)[0] for rank in range(world_size)])
    sums = allreduce.build_shares(0, world_size)[1]
    for corrupted in (shares[1:].sum(0), shares.sum(0) + shares[0], shares.sum(0).roll(world_size), shares.amax(0)):
        assert not torch.equal(corrupted, sums)


def test_no_gloo_thread_outlives_the_group() -> None:
    """No thread of gloo remains at the end, because it would sometimes abort the exit."""
    threads = run(
        build_command(1, "-c", f"from programs import allreduce; allreduce.main(); {PRINT_THREADS}", *SHORT)
    ).stdout
    assert "python" in threads.splitlines()[-1]
    assert "gloo_" not in threads


@pytest.mark.parametrize(("text", "size"), [("1", 1), ("32K", 2**15), ("16M", 2**24), ("8G", 2**33)])
def test_sizes_are_binary(text: str, size: int) -> None:
    """A size is in bytes, or in multiples of 1024."""
    assert allreduce.read_size(text) == size


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--min-size=32X"], "'32X' is not a size: write bytes, or 32K, 1M, 2G"),
        (["--max-size=0"], "'0' is not a size"),
        (["--max-size="], "'' is not a size"),
        (["--max-size=K"], "'K' is not a size"),
        (["--min-size=6"], "--min-size must be at most --max-size 16777216, and whole elements of 4"),
        (["--min-size=64K", "--max-size=32K"], "at most --max-size 32768"),
        (["--trials=0"], "one trial or more"),
        (["--warmups=-1"], "no fewer than 0 warmups"),
        (["--within=0"], "more than 0 seconds"),
        (["--dtype=int8"], "invalid choice: 'int8'"),
        ([], "RANK, WORLD_SIZE must be set; start it with torchrun"),
    ],
)
def test_invalid_arguments_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    """Invalid arguments end the program with exit code 2 and one line, without a traceback."""
    for name, value in {"MASTER_ADDR": "h", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "argv", [PROGRAM, *argv])
    with pytest.raises(SystemExit, match="2"):
        allreduce.read_options()
    error = capsys.readouterr().err
    assert (error.count("\n"), message in error) == (1, True), error
