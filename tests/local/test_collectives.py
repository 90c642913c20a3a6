"""The benchmark's collectives, really run by torchrun: their figures, their checks, and what it refuses."""

import json
import sys

import pytest
import torch

from programs import allreduce
from tests.started_programs import Finished, Rows, launch, read_rows, run
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
measure = allreduce.run
def spoil(name, given, taken):
    measure(name, given, taken)
    part = taken[: len(taken) // 2]
    if size == 4096:
        taken[-1] += 1
    elif size == 8192:
        taken.copy_(taken.roll(256))
    elif size == 16384:
        part.zero_()
def note(name, wanted, options, allocate=allreduce.allocate):
    global size
    size = wanted
    return allocate(name, wanted, options)
if os.environ["RANK"] == "1":
    allreduce.run, allreduce.allocate = spoil, note
allreduce.main()
"""


@pytest.fixture(scope="module", params=[2, 4])
def benchmark(request: pytest.FixtureRequest) -> tuple[int, Rows]:
    """The number of processes, and the rows of all collectives in two sizes, of which one has no equal parts."""
    completed = run(launch(request.param, PROGRAM, ALL, "--sizes=100,64K", *SHORT))
    assert (completed.returncode, "Warning: `torch" in completed.stderr) == (0, False), completed.stderr
    return request.param, read_rows(completed.stdout)


@pytest.fixture(scope="module")
def spoiled_run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """All collectives on two ranks, of which the second one spoils its results."""
    program = tmp_path_factory.mktemp("spoiled") / "spoiled.py"
    program.write_text(SPOIL.format(root=str(ROOT)))
    return run(launch(2, str(program), ALL, "--sizes=4K,8K,16K,32K", *SHORT))


def test_every_collective_has_correct_results(benchmark: tuple[int, Rows]) -> None:
    """Each collective has a row for each size, and no element of its result is wrong."""
    *rows, summary = benchmark[1]
    assert [row["collective"] for row in rows] == [name for name in allreduce.COLLECTIVES for _ in range(2)]
    assert {row["wrong"] for row in [*rows, summary]} == {0}


def test_bandwidths_are_those_of_nccl_tests(benchmark: tuple[int, Rows]) -> None:
    """busbw is algbw times the factor that nccl-tests has for the collective, and algbw the size over the seconds."""
    n, rows = benchmark
    share = (n - 1) / n
    factors = {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share, "alltoall": share}
    for row in rows[:-1]:
        assert row["algbw"] == pytest.approx(row["size"] / row["seconds"] / 1e9)
        assert row["busbw"] == pytest.approx(row["algbw"] * factors.get(row["collective"], 1))


def test_size_has_equal_parts_for_all_ranks(benchmark: tuple[int, Rows]) -> None:
    """A size that the ranks cannot share equally is rounded down where the buffers have parts, and only there."""
    n, rows = benchmark
    sizes = {row["collective"]: row["size"] for row in rows if row.get("size", 2**16) < 2**16}
    rounded_size = 100 // (4 * n) * 4 * n
    assert sizes == {
        **dict.fromkeys(allreduce.COLLECTIVES, 100),
        **dict.fromkeys(allreduce.BUS_FACTORS, rounded_size),
    } | {"all_reduce": 100}


def test_spread_of_the_trials_is_printed(benchmark: tuple[int, Rows]) -> None:
    """The median lies between the fastest trial and the slowest; of two trials it is their mean."""
    for row in benchmark[1][:-1]:
        assert row["min_seconds"] <= row["seconds"] == pytest.approx(row["mean_seconds"])


def test_summary_names_each_other_collective(benchmark: tuple[int, Rows]) -> None:
    """The last line's bandwidths, of the largest size, are the first collective's; the others have names."""
    *rows, summary = benchmark[1]
    largest = {row["collective"]: row["busbw"] for row in rows if row["size"] == 2**16}
    assert (summary["busbw"], summary["timing"]) == (largest["all_reduce"], "wall")
    assert all(summary[f"{name}_busbw"] == largest[name] for name in allreduce.COLLECTIVES[1:])


def test_reader_keeps_every_row(benchmark: tuple[int, Rows]) -> None:
    """The metrics have a row for each collective and size."""
    metrics = read_json_lines(map(json.dumps, benchmark[1]))
    assert len(metrics.rows) == 2 * len(allreduce.COLLECTIVES)


@pytest.mark.parametrize("name", allreduce.COLLECTIVES)
def test_wrong_values_are_found(spoiled_run: Finished, name: str) -> None:
    """A wrong element, shifted chunks and a missing part are found in each collective, and nothing else."""
    wrong_counts = {
        row["size"]: row["wrong"] for row in read_rows(spoiled_run.stdout)[:-1] if row["collective"] == name
    }
    assert (wrong_counts[4096], wrong_counts[32768]) == (2, 0)
    assert min(wrong_counts[8192], wrong_counts[16384]) > 100


def test_wrong_values_fail(spoiled_run: Finished) -> None:
    """With a wrong element the exit code is 1, and one sentence says how many there were."""
    wrong_count = read_rows(spoiled_run.stdout)[-1]["wrong"]
    assert (spoiled_run.returncode, f"{wrong_count} elements differ" in spoiled_run.stderr) == (1, True)


@pytest.mark.parametrize("name", ["all_gather", "alltoall", "sendrecv", "broadcast"])
@pytest.mark.parametrize("n", [2, 3, 17, 300])
def test_values_differ_for_each_sender_and_receiver(name: str, world_size: int) -> None:
    """What one rank should get differs from what any other one gives it, or gives to another."""
    _, expected = allreduce.list_values(name, world_size // 2, world_size)
    if name in ("all_gather", "alltoall"):
        assert len({tuple(values.tolist()) for values in expected}) == world_size
    assert max(int(values.max()) for values in expected) <= 80
    assert all(not torch.equal(values, values.roll(2**shift)) for values in expected for shift in range(12))


@pytest.mark.parametrize("n", [2, 3, 8])
def test_scattered_sums_differ_between_ranks(n: int) -> None:
    """Each rank's part of a reduce-scatter is the sum of what all ranks gave for it, and no two parts are alike."""
    inputs = [allreduce.list_values("reduce_scatter", rank, n)[0] for rank in range(n)]
    sums = [torch.as_tensor(sum(parts[rank].bfloat16() for parts in inputs)) for rank in range(n)]
    for rank in range(n):
        (expected,) = allreduce.list_values("reduce_scatter", rank, n)[1]
        assert [torch.equal(expected.bfloat16(), total) for total in sums] == [part == rank for part in range(n)]


def test_collective_that_the_backend_lacks_is_refused() -> None:
    """A collective that torch's backend does not support ends the program with 2 and a sentence before any row."""
    code = """
from torch import distributed
from programs import allreduce
def lack(*given):
    raise RuntimeError("ProcessGroupGloo does not support reduce_scatter")
distributed.reduce_scatter_single = distributed.reduce_scatter_tensor = lack
allreduce.main()
"""
    completed = run(launch(1, "-c", code, "--collective=all_reduce,reduce_scatter", *SHORT))
    assert (completed.returncode, completed.stdout) == (2, "")
    assert completed.stderr == f"allreduce.py: gloo of torch {torch.__version__} has no reduce_scatter.\n"


def test_size_that_does_not_fit_keeps_the_rows_before_it() -> None:
    """A size without memory ends the program with a sentence and not with 0, after the rows of smaller sizes."""
    completed = run(launch(1, PROGRAM, "--sizes=4K,999999G", *SHORT))
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
    """Wrong arguments end the program with exit code 2 and one line, without a traceback."""
    for name, value in {"MASTER_ADDR": "h", "MASTER_PORT": "1", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(sys, "argv", [PROGRAM, *argv])
    with pytest.raises(SystemExit, match="2"):
        allreduce.read_options()
    error = capsys.readouterr().err
    assert (error.count("\n"), message in error) == (1, True), error
