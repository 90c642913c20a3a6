"""The bandwidths that all_reduce_bench.py prints, in its versions of 2021 to 2024."""

import pytest

from tests.inputs.printed_metrics import load_posted_log, select_columns
from torchyard.metrics.allreduce_bench import read_allreduce_bench, read_allreduce_bench_line

TABLE = "The average bandwidth of all_reduce over 4 ranks (5 warmups / 20 trials, up to 10 queued calls per trial):"


def test_allreduce_of_2024() -> None:
    """The payload gives one row, with its decimal size as printed, for any order of the lines around it."""
    metrics = read_allreduce_bench(load_posted_log("allreduce-2024"))
    assert metrics.rows == ({"size": 4_000_000_000, "algbw": 1.939, "busbw": 3.635},)
    assert metrics.summary == {"trials": 10, "ranks": 16, "max_busbw": 3.635}


def test_allreduce_of_2021() -> None:
    """There is one row per trial and rank, in bytes instead of bits; the ranks come in any order."""
    rows = read_allreduce_bench(load_posted_log("allreduce-2021")).rows
    assert [
        (trial, rank, round(busbw, 4)) for trial, rank, busbw in select_columns(rows, "trial", "rank", "busbw")
    ] == [
        *[(1, 0, 9.0458), (1, 1, 13.3132), (1, 2, 14.2757), (1, 3, 14.2022)],
        *[(2, 3, 125.3117), (2, 1, 124.2206), (2, 0, 124.1179), (2, 2, 124.1726)],
    ]
    assert rows[0]["seconds"] == 0.6633
    assert rows[0]["throughput"] == pytest.approx(96488131490.3540 / 8e9)


def test_allreduce_log_without_its_beginning() -> None:
    """The end of a trial whose beginning is lost is not mixed into the next trial."""
    lines = load_posted_log("allreduce-2021")
    truncated_rows = read_allreduce_bench(lines[9:]).rows
    assert truncated_rows[0] == {"busbw": pytest.approx(72.3661 / 8)}
    assert truncated_rows[1:4] == read_allreduce_bench(lines).rows[1:4]


@pytest.mark.parametrize("names", [("busbw", "algbw"), ("algbw", "busbw"), ("busbw", "algbw", "latency")])
@pytest.mark.parametrize("payloads", [("32KiB", "16GiB"), ("32KB", "16GB")])
def test_allreduce_table(names: tuple[str, ...], payloads: tuple[str, str]) -> None:
    """The table head names the columns; sizes are powers of two, with either spelling of the unit."""
    values = {"busbw": "   1.50GBps", "algbw": "    8.0Gbps", "latency": " 30.12us"}
    cells = [" | ".join(values[name] for name in names)] * 2
    lines = [TABLE, "", f"| payload | {' | '.join(names)} |", "| ------: | ---------: | ---------: |"]
    lines += [f"| {payload:>7} | {cell} |" for payload, cell in zip(payloads, cells, strict=True)]
    metrics = read_allreduce_bench(lines)
    assert select_columns(metrics.rows, "size", "busbw", "algbw") == [(2**15, 1.5, 1.0), (2**34, 1.5, 1.0)]
    assert metrics.summary == {"ranks": 4, "warmups": 5, "trials": 20, "max_busbw": 1.5}


def test_allreduce_single_payload() -> None:
    """With a single payload the rows are trials of one size."""
    title = "The 0.5GiB payload bandwidth of all_reduce over 8 ranks (5 warmups / 20 trials):"
    lines = [title, "|    busbw   |    algbw   |", "| 400.10GBps | 228.63GBps |", "|    infGBps | 229.20GBps |"]
    rows = read_allreduce_bench(lines).rows
    assert select_columns(rows, "trial", "size", "busbw", "algbw") == [
        (1, 2**29, 400.1, 228.63),
        (2, 2**29, None, 229.2),
    ]


def test_allreduce_versions() -> None:
    """The summary has the versions of the software and the elapsed time."""
    lines = [
        "Environment:",
        "- software: torch=2.7.0+cu128, cuda=12.8, nccl=(2, 26, 2)",
        "Elapsed time: 1 day, 1:00:47",
    ]
    expected = {"torch": "2.7.0+cu128", "cuda": "12.8", "nccl": "2.26.2", "seconds": 90047}
    assert read_allreduce_bench(lines).summary == expected


def test_allreduce_while_it_runs() -> None:
    """A line that is redrawn after each carriage return gives its last trial."""
    assert read_allreduce_bench_line("  32KiB: 1\r  32KiB: 2\r") == {"size": 32768, "trial": 2}
    assert read_allreduce_bench_line("|   32KiB |   0.92GBps |   0.48GBps |") == {
        "size": 32768,
        "busbw": 0.92,
        "algbw": 0.48,
    }
