"""The formats of programs that are not ours: what all have in common, the MNIST examples, all_reduce_bench.py."""

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchyard.metrics.allreduce_bench import read_allreduce_bench, read_allreduce_bench_line
from torchyard.metrics.mnist import read_mnist, read_mnist_line
from torchyard.metrics.nccl_tests import read_nccl_tests
from torchyard.metrics.registry import LINE_READERS, READERS, describe_row, read_progress
from torchyard.model.profile import MetricsFormat
from torchyard.model.run import Row

BEFORE = (
    "",
    "[0:0]:",
    "[default0]:",
    "[1,0]<stdout>:",
    "2026-11-21T08:00:47.123Z ",
    "[2026-11-21 08:00:47,123] ",
    "0: ",
)
HALF = "     time   algbw   busbw #wrong"
HEAD = "#       size         count      type   redop    root" + HALF * 2
ROW = (
    "   536870912     134217728     float     sum      -1   2984.6  179.88  356.01      0  2979.7  180.18  356.6      0"
)
TABLE = "The average bandwidth of all_reduce over 4 ranks (5 warmups / 20 trials, up to 10 queued calls per trial):"
MNIST = [
    "{'batch_size': 256,",
    " 'epochs': 2,",
    "[init] == local rank: 0, global rank: 0, world size: 8 ==",
    "prepare",
    "prepare seconds: 3.25",
    "training",
    "Train Epoch: 0 [0/30]\tloss=2.3100",
    "Train Epoch: 0 [10/30]\tloss=0.9000",
    "Test Epoch: 0 [0/40]\tacc=88.0000",
    "Test Epoch: 0, acc=87.1200",
    "test acc: 87.12, best acc: 87.12",
    "Train Epoch: 1 [0/30]\tloss=0.5100",
    "Test Epoch: 1, acc=86.5000",
    "training seconds: 30.5",
    "best_acc: 87.12",
]
# Pieces that a line of one of the formats is made of, to be put together at random.
PIECES = (
    *(
        "8",
        " 1048576 ",
        "float ",
        "sum ",
        "-1 ",
        "0.00  ",
        "nan ",
        "inf ",
        "1e400 ",
        "9" * 30,
        "N/A ",
        "# ",
        "\r",
        "\x1b[1m",
    ),
    *(
        "size count type",
        "bytes N type",
        "Avg bus bandwidth : ",
        "Out of bounds values : ",
        "FAILED",
        "all_reduce_perf",
    ),
    *(
        "| ",
        "GBps ",
        "Gbps",
        "KiB: ",
        "payload ",
        "busbw: ",
        "algbw: ",
        "duration: ",
        " sec",
        "0:",
        "Elapsed time: 1:2:3",
    ),
    *(
        "bandwidth of all_reduce ",
        "ranks ",
        "Train Epoch: ",
        "[",
        "/",
        "] ",
        "loss=",
        "test acc: ",
        ", best acc: ",
        "acc=",
    ),
    *(
        "Test set: Average loss: ",
        ", Accuracy: ",
        "0/0",
        '{"epoch": ',
        "}",
        "all ",
        ", ",
        "h1:1:2 [0] NCCL INFO nranks 2",
    ),
)
TEXTS = st.lists(st.text() | st.lists(st.sampled_from(PIECES), max_size=16).map("".join), max_size=12)


def posted(name: str) -> list[str]:
    return (Path(__file__).parent / "logs" / f"posted-{name}.txt").read_bytes().decode().split("\n")


def pick(rows: tuple[Row, ...], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(row.get(key) for key in keys) for row in rows]


@pytest.mark.parametrize("name", READERS)
@given(lines=TEXTS)
def test_any_text_can_be_read(name: MetricsFormat, lines: list[str]) -> None:
    """No text makes a reader fail, nor the report that holds what it found."""
    dumped = READERS[name](lines).model_dump_json()
    json.loads(dumped, parse_constant=pytest.fail)
    for line in lines:
        row = LINE_READERS[name](line)
        assert isinstance(describe_row(row), str)
        assert 0 <= (read_progress(row) or 0) <= 1


@pytest.mark.parametrize("name", READERS)
def test_nothing_is_read_from_nothing(name: MetricsFormat) -> None:
    """An empty log, and one of another program, hold no metrics."""
    for lines in ([], ["", "Traceback (most recent call last):", "  12 34", "50%|###   | 1/2", "KeyError: 'x'"]):
        metrics = READERS[name](lines)
        assert (metrics.rows, metrics.summary) == ((), {})


@pytest.mark.parametrize("name", ["nccl-tests-old", "nccl-tests-torn", "allreduce-2021", "allreduce-2024"])
def test_cut_log_holds_no_wrong_row(name: str) -> None:
    """A log that ends anywhere gives rows of the whole one, or the beginning of one."""
    read = read_nccl_tests if name.startswith("nccl") else read_allreduce_bench
    lines = posted(name)
    whole = read(lines).rows
    for text in accumulate(line + "\n" for line in lines):
        for cut in range(0, 40, 3):
            rows = read(text[: len(text) - cut].split("\n")).rows
            assert all(row.items() <= known.items() for row, known in zip(rows, whole, strict=False))


def test_mnist_epochs_are_rows() -> None:
    """A row is an epoch's last loss and its test; `best acc` is said only of an epoch that is better."""
    assert read_mnist(MNIST).rows == (
        {"epoch": 0, "loss": 0.9, "acc": 87.12, "best_acc": 87.12},
        {"epoch": 1, "loss": 0.51, "acc": 86.5},
    )


def test_mnist_summary() -> None:
    """What is said of the run: its arguments, its world, its seconds."""
    assert read_mnist(MNIST).summary == {
        **{"batch_size": 256, "epochs": 2, "world_size": 8},
        **{"prepare_seconds": 3.25, "training_seconds": 30.5, "best_acc": 87.12},
    }


@pytest.mark.parametrize(
    ("loss", "test"),
    [
        ("Loss: 0.033435", "Test set: Average loss: 0.0468, Accuracy: 9842/10000 (98%)"),
        ("loss=0.033435", "accuracy=0.9842"),
    ],
)
def test_mnist_of_pytorch_and_kubeflow(loss: str, test: str) -> None:
    """Both count samples and the accuracy from 0 to 1."""
    lines = [f"Train Epoch: 3 [{at}/60000 ({at // 600}%)]\t{loss}" for at in (0, 59520)]
    assert pick(read_mnist([*lines, "", test, ""]).rows, "epoch", "loss", "accuracy") == [(3, 0.033435, 0.9842)]


def test_mnist_scores_without_an_epoch() -> None:
    """Scores that are said before any epoch are about the whole run."""
    metrics = read_mnist(["test acc: 87.12, best acc: 88.5"])
    assert (metrics.rows, metrics.summary) == ((), {"acc": 87.12, "best_acc": 88.5})


def test_mnist_epoch_run_again_counts_once() -> None:
    """After a restart an epoch begins anew: its old scores do not stay with it."""
    again = ["Train Epoch: 0 [0/30]\tloss=2.0000"]
    assert read_mnist([*MNIST, *again]).rows[0] == {"epoch": 0, "loss": 2.0}


def test_mnist_that_went_astray_says_so() -> None:
    """A loss that is nan is told as no number: JSON has none for it."""
    row = read_mnist_line("Train Epoch: 0 [10/30]\tloss=nan")
    assert (row["loss"], describe_row(row)) == (None, "epoch 0: batch 10, batches 30, loss nan")


@pytest.mark.parametrize("before", BEFORE)
def test_noise_before_a_line_is_passed_over(before: str) -> None:
    """What a launcher writes before each line does not hide it."""
    assert read_mnist([before + line for line in MNIST]) == read_mnist(MNIST)
    assert len(read_nccl_tests([before + HEAD, before + ROW]).rows) == 1
    rates = [" algbw: 1.939 GBps (15.5 Gbps)", " busbw: 3.635 GBps (29.1 Gbps)"]
    assert read_allreduce_bench([before + rate for rate in rates]).rows == ({"algbw": 1.939, "busbw": 3.635},)
    assert read_allreduce_bench_line(before + "7") == {"trial": 7}


def test_allreduce_of_2024() -> None:
    """One row of the payload, decimal as it is printed there, whatever the order of the lines around it."""
    metrics = read_allreduce_bench(posted("allreduce-2024"))
    assert metrics.rows == ({"size": 4_000_000_000, "algbw": 1.939, "busbw": 3.635},)
    assert metrics.summary == {"trials": 10, "ranks": 16, "max_busbw": 3.635}


def test_allreduce_of_2021() -> None:
    """One row per trial and rank, from bits to bytes; the ranks come in any order."""
    rows = read_allreduce_bench(posted("allreduce-2021")).rows
    assert [(trial, rank, round(busbw, 4)) for trial, rank, busbw in pick(rows, "trial", "rank", "busbw")] == [
        *[(1, 0, 9.0458), (1, 1, 13.3132), (1, 2, 14.2757), (1, 3, 14.2022)],
        *[(2, 3, 125.3117), (2, 1, 124.2206), (2, 0, 124.1179), (2, 2, 124.1726)],
    ]
    assert rows[0]["seconds"] == 0.6633
    assert rows[0]["throughput"] == pytest.approx(96488131490.3540 / 8e9)


def test_allreduce_that_begins_anywhere() -> None:
    """The end of a trial whose beginning is lost does not get into the next one."""
    lines = posted("allreduce-2021")
    cut = read_allreduce_bench(lines[9:]).rows
    assert cut[0] == {"busbw": pytest.approx(72.3661 / 8)}
    assert cut[1:4] == read_allreduce_bench(lines).rows[1:4]


@pytest.mark.parametrize("names", [("busbw", "algbw"), ("algbw", "busbw"), ("busbw", "algbw", "latency")])
@pytest.mark.parametrize("payloads", [("32KiB", "16GiB"), ("32KB", "16GB")])
def test_allreduce_table(names: tuple[str, ...], payloads: tuple[str, str]) -> None:
    """The head says which column is which; the sizes are powers of two, however they are written."""
    values = {"busbw": "   1.50GBps", "algbw": "    8.0Gbps", "latency": " 30.12us"}
    cells = [" | ".join(values[name] for name in names)] * 2
    lines = [TABLE, "", f"| payload | {' | '.join(names)} |", "| ------: | ---------: | ---------: |"]
    lines += [f"| {payload:>7} | {cell} |" for payload, cell in zip(payloads, cells, strict=True)]
    metrics = read_allreduce_bench(lines)
    assert pick(metrics.rows, "size", "busbw", "algbw") == [(2**15, 1.5, 1.0), (2**34, 1.5, 1.0)]
    assert metrics.summary == {"ranks": 4, "warmups": 5, "trials": 20, "max_busbw": 1.5}


def test_allreduce_single_payload() -> None:
    """Where each trial is told, the rows are trials of one size."""
    head = "The 0.5GiB payload bandwidth of all_reduce over 8 ranks (5 warmups / 20 trials):"
    lines = [head, "|    busbw   |    algbw   |", "| 400.10GBps | 228.63GBps |", "|    infGBps | 229.20GBps |"]
    rows = read_allreduce_bench(lines).rows
    assert pick(rows, "trial", "size", "busbw", "algbw") == [(1, 2**29, 400.1, 228.63), (2, 2**29, None, 229.2)]


def test_allreduce_versions() -> None:
    """What ran, and for how long."""
    lines = [
        "Environment:",
        "- software: torch=2.7.0+cu128, cuda=12.8, nccl=(2, 26, 2)",
        "Elapsed time: 1 day, 1:00:47",
    ]
    expected = {"torch": "2.7.0+cu128", "cuda": "12.8", "nccl": "2.26.2", "seconds": 90047}
    assert read_allreduce_bench(lines).summary == expected


def test_allreduce_while_it_runs() -> None:
    """A line that is drawn again after each carriage return says its last trial."""
    assert read_allreduce_bench_line("  32KiB: 1\r  32KiB: 2\r") == {"size": 32768, "trial": 2}
    assert read_allreduce_bench_line("|   32KiB |   0.92GBps |   0.48GBps |") == {
        "size": 32768,
        "busbw": 0.92,
        "algbw": 0.48,
    }
