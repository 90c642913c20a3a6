"""The benchmark's collectives under a real torchrun: their figures, their checks, and invalid arguments."""

import json
import sys
from typing import Any, NamedTuple

import pytest
import torch

from programs import allreduce
from tests.processes.started_programs import Finished, Rows, build_command, read_rows, run
from torchyard.common.project_root import ROOT
from torchyard.metrics.registry import read_json_lines

PROGRAM = "programs/allreduce.py"
ALL = f"--collective={','.join(allreduce.COLLECTIVES)}"
SHORT = ("--trials=2", "--warmups=1")
# Faults of rank 1 after a collective, by the elements of its input or output: an element, two chunks, a missing part.
SPOIL = """
import os, sys
sys.path.insert(0, {root!r})
from programs import allreduce
original_run = allreduce.run
original_allocate = allreduce.allocate
def run_and_corrupt(name, input_, output):
    original_run(name, input_, output)
    if size == 4096:
        output[-1] += 1
    elif size == 8192:
        output.copy_(output.roll(256))
    elif size == 16384:
        output[: len(output) // 2].zero_()
def allocate_and_keep_size(name, requested_size, options):
    global size
    size = requested_size
    return original_allocate(name, requested_size, options)
if os.environ["RANK"] == "1":
    allreduce.run = run_and_corrupt
    allreduce.allocate = allocate_and_keep_size
allreduce.main()
"""


class Benchmark(NamedTuple):
    """A finished benchmark: the number of its processes, its rows, and the row of its summary."""

    world_size: int
    rows: Rows
    summary: dict[str, Any]


@pytest.fixture(scope="module", params=[2, 4])
def benchmark(request: pytest.FixtureRequest) -> Benchmark:
    """The benchmark of all collectives in two sizes; the ranks cannot share one of them equally."""
    completed = run(build_command(request.param, PROGRAM, ALL, "--sizes=100,64K", *SHORT))
    assert (completed.returncode, "Warning: `torch" in completed.stderr) == (0, False), completed.stderr
    *rows, summary = read_rows(completed.stdout)
    return Benchmark(request.param, rows, summary)


@pytest.fixture(scope="module")
def spoiled_run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The benchmark of all collectives on two ranks, of which the second one corrupts its results."""
    program = tmp_path_factory.mktemp("spoiled") / "spoiled.py"
    program.write_text(SPOIL.format(root=str(ROOT)))
    return run(build_command(2, str(program), ALL, "--sizes=4K,8K,16K,32K", *SHORT))


def test_every_collective_has_correct_results(benchmark: Benchmark) -> None:
    """Each collective has a row for each size, and every element of its result is correct."""
    names = [row["collective"] for row in benchmark.rows]
    assert (names[::2], names[1::2]) == ([*allreduce.COLLECTIVES], [*allreduce.COLLECTIVES])
    assert {row["wrong"] for row in [*benchmark.rows, benchmark.summary]} == {0}


def test_bandwidths_are_those_of_nccl_tests(benchmark: Benchmark) -> None:
    """algbw is size / seconds, and busbw is algbw times the factor of nccl-tests for the collective."""
    share = (benchmark.world_size - 1) / benchmark.world_size
    factors = {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share, "alltoall": share}
    for row in benchmark.rows:
        assert row["algbw"] == pytest.approx(row["size"] / row["seconds"] / 1e9)
        assert row["busbw"] == pytest.approx(row["algbw"] * factors.get(row["collective"], 1))


def test_size_has_equal_parts_for_all_ranks(benchmark: Benchmark) -> None:
    """A size that the ranks cannot share equally is rounded down, but only for collectives whose buffers have parts."""
    sizes = {row["collective"]: row["size"] for row in benchmark.rows if row["size"] < 2**16}
    part_bytes = 100 // (4 * benchmark.world_size) * 4
    rounded_size = part_bytes * benchmark.world_size
    expected = dict.fromkeys(allreduce.COLLECTIVES, 100) | dict.fromkeys(allreduce.BUS_FACTORS, rounded_size)
    expected["all_reduce"] = 100  # its buffers have no parts
    assert sizes == expected


def test_spread_of_the_trials_is_printed(benchmark: Benchmark) -> None:
    """The median is not below the fastest trial; of two trials it is their mean."""
    for row in benchmark.rows:
        assert row["min_seconds"] <= row["seconds"] == pytest.approx(row["mean_seconds"])


def test_summary_names_each_other_collective(benchmark: Benchmark) -> None:
    """The summary has the first collective's largest-size bandwidth as `busbw`, and the others' as `NAME_busbw`."""
    summary = benchmark.summary
    largest = {row["collective"]: row["busbw"] for row in benchmark.rows if row["size"] == 2**16}
    assert (summary["busbw"], summary["timing"]) == (largest["all_reduce"], "wall")
    assert all(summary[f"{name}_busbw"] == largest[name] for name in allreduce.COLLECTIVES[1:])


def test_reader_keeps_every_row(benchmark: Benchmark) -> None:
    """The metrics have a row for each collective and size."""
    metrics = read_json_lines(json.dumps(row) for row in [*benchmark.rows, benchmark.summary])
    assert len(metrics.rows) == 2 * len(allreduce.COLLECTIVES)


@pytest.mark.parametrize("name", allreduce.COLLECTIVES)
def test_wrong_values_are_found(spoiled_run: Finished, name: str) -> None:
    """A wrong element, shifted chunks and a missing part are counted in each collective; correct results count 0."""
    wrong_counts = {
        row["size"]: row["wrong"] for row in read_rows(spoiled_run.stdout)[:-1] if row["collective"] == name
    }
    assert (wrong_counts[4096], wrong_counts[32768]) == (2, 0)
    assert min(wrong_counts[8192], wrong_counts[16384]) > 100


def test_wrong_values_fail(spoiled_run: Finished) -> None:
    """With wrong elements the exit code is 1, and stderr has their number."""
    wrong_count = read_rows(spoiled_run.stdout)[-1]["wrong"]
    assert (spoiled_run.returncode, f"{wrong_count} elements differ" in spoiled_run.stderr) == (1, True)


@pytest.mark.parametrize("name", ["all_gather", "alltoall", "sendrecv", "broadcast"])
@pytest.mark.parametrize("world_size", [2, 3, 17, 300])
def test_values_differ_for_each_sender_and_receiver(name: str, world_size: int) -> None:
    """The expected values of a rank differ for each sender, and shifted values differ from them."""
    _, expected = allreduce.list_values(name, world_size // 2, world_size)
    if name in ("all_gather", "alltoall"):
        assert len({tuple(values.tolist()) for values in expected}) == world_size
    assert max(int(values.max()) for values in expected) <= 80
    for values in expected:
        assert all(not torch.equal(values, values.roll(2**shift)) for shift in range(12))


@pytest.mark.parametrize("n", [2, 3, 8])
def test_scattered_sums_differ_between_ranks(n: int) -> None:
    """Each rank's part of a reduce-scatter is the sum of all ranks' inputs for it, and no two parts are equal."""
    inputs = [allreduce.list_values("reduce_scatter", rank, n)[0] for rank in range(n)]
    sums = [torch.as_tensor(sum(parts[rank].bfloat16() for parts in inputs)) for rank in range(n)]
    for rank in range(n):
        (expected,) = allreduce.list_values("reduce_scatter", rank, n)[1]
        assert [torch.equal(expected.bfloat16(), total) for total in sums] == [part == rank for part in range(n)]


def test_collective_that_the_backend_lacks_is_refused() -> None:
    """A collective without support in torch ends the program with exit code 2 and one line, before any row."""
    code = """
from torch import distributed
from programs import allreduce
def refuse(*args):
    raise RuntimeError("ProcessGroupGloo does not support reduce_scatter")
distributed.reduce_scatter_single = distributed.reduce_scatter_tensor = refuse
allreduce.main()
"""
    completed = run(build_command(1, "-c", code, "--collective=all_reduce,reduce_scatter", *SHORT))
    assert (completed.returncode, completed.stdout) == (2, "")
    assert completed.stderr == f"allreduce.py: gloo of torch {torch.__version__} has no reduce_scatter.\n"


def test_size_that_does_not_fit_keeps_the_rows_before_it() -> None:
    """A size that does not fit into memory ends the program with 1 and a line, after the rows of smaller sizes."""
    completed = run(build_command(1, PROGRAM, "--sizes=4K,999999G", *SHORT))
    assert [row["size"] for row in read_rows(completed.stdout)] == [4096]
    assert (completed.returncode, completed.stderr.count("\n")) == (1, 1)
    assert "1073740750258176 bytes for all_reduce do not fit into the memory of rank 0." in completed.stderr


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--collective=all_to_all"], "'all_to_all' is not a collective; use one of all_reduce, all_gather"),
        (["--sizes=1K,"], "'' is not a size"),
        (["--sizes=6"], "size 6 must be at least 4 bytes, and whole elements of 4 bytes"),
        (["--sizes=4", "--collective=alltoall"], "size 4 must be at least 8 bytes"),
        (["--backend=nccl"], "nccl and --timing events require a GPU for each process"),
        (["--timing=events"], "nccl and --timing events require a GPU for each process"),
    ],
)
def test_invalid_arguments_are_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    """Invalid arguments end the program with exit code 2 and one line, without a traceback."""
    for name, value in {"MASTER_ADDR": "h", "MASTER_PORT": "1", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(sys, "argv", [PROGRAM, *argv])
    with pytest.raises(SystemExit, match="2"):
        allreduce.read_options()
    error = capsys.readouterr().err
    assert (error.count("\n"), message in error) == (1, True), error
