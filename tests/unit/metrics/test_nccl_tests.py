"""The tables of nccl-tests, old and new, complete and incomplete."""

from typing import Any

import pytest

from tests.inputs.printed_metrics import HEADER, ROW, load_posted_log, select_columns
from torchyard.metrics.nccl_tests import read_nccl_tests, read_nccl_tests_line


@pytest.mark.parametrize(
    ("name", "rows", "summary_values"),
    [
        ("old", [(8, 0.0, 0.0), (16, 0.0, 0.0), (32, 0.0, 0.0), (64, 0.0, 0.0)], (16, 11.2432, 43.81)),
        (
            "torn",
            [(8388608, 100.66, 103.59), (16777216, 130.79, 132.13), (8589934592, 216.6, 216.61)],
            (2, 178.078, 216.61),
        ),
        ("tagged", [(8, 0.0, 0.0), (8589934592, 479.43, 480.38), (17179869184, 487.9, 488.14)], (16, 124.584, 488.14)),
        ("single", [(8, 0.0, 0.0), (4294967296, 0.0, 0.0)], (1, 0.0, 0.0)),
    ],
)
def test_nccl_tests_as_posted(name: str, rows: list[tuple[Any, ...]], summary_values: tuple[Any, ...]) -> None:
    """Rows are complete even with mpirun's tags or NCCL's lines in between; a run of single ranks has 1 rank."""
    metrics = read_nccl_tests(load_posted_log(f"nccl-tests-{name}"))
    assert select_columns(metrics.rows, "size", "busbw", "in_place_busbw")[: len(rows)] == rows
    summary = {
        "op": "all_reduce",
        "ranks": summary_values[0],
        "avg_busbw": summary_values[1],
        "max_busbw": summary_values[2],
    }
    assert metrics.summary.items() >= (summary | {"out_of_bounds": 0, "failed": False}).items()
    assert "incomplete_rows" not in metrics.summary


def test_nccl_tests_row() -> None:
    """A row has time in microseconds, bandwidths in GB/s and wrong elements, out of place and in place."""
    (row,) = read_nccl_tests([HEADER, ROW]).rows
    assert row == {
        "size": 536870912,
        "time_us": 2984.6,
        "algbw": 179.88,
        "busbw": 356.01,
        "wrong": 0,
        "in_place_time_us": 2979.7,
        "in_place_algbw": 180.18,
        "in_place_busbw": 356.6,
        "in_place_wrong": 0,
        "type": "float",
        "redop": "sum",
    }


@pytest.mark.parametrize("root", ["-1", "0", "3"])
@pytest.mark.parametrize("head", [HEADER, HEADER.replace("time", "msec").replace("size", "bytes")])
def test_nccl_tests_row_alone_on_its_line(root: str, head: str) -> None:
    """A row is the same whether it is alone on its line, which is read quickly, or mpirun's tag stands before it."""
    rows = [ROW.replace(" -1 ", f" {root} "), ROW.replace(" 0 ", " 7 ", 1)]
    untagged = read_nccl_tests(["# all_reduce_perf -b 8", head, *rows])
    tagged = read_nccl_tests(["# all_reduce_perf -b 8", head, *(f"[1,0]<stdout>:{row}" for row in rows)])
    assert untagged == tagged
    assert len(untagged.rows) == 2
    assert untagged.rows[1]["wrong"] == 7


@pytest.mark.parametrize(
    ("cells", "last"),
    [
        ("sum -1 25.3 2.59 0.20 N/A 25.2 2.60 0.40 N/A", {"redop": "sum"}),
        ("sum 25.3 2.59 0.20 2e-07 25.2 2.60 0.40 0e+00", {"redop": "sum", "error": 2e-07, "in_place_error": 0.0}),
        ("2 25.3 2.59 0.20 0 25.2 2.60 0.40 1e+06", {"root": 2, "wrong": 0, "in_place_wrong": 10**6}),
        ("25.3 2.59 0.20 N/A 25.2 2.60 0.40 N/A", {}),
        ("25.3 2.59 0.20 2e-01* 25.2 2.60 0.40 1e-07", {"error": 0.2, "in_place_error": 1e-07}),
        ("none -1 25.3 2.59 0.20 N/A 25.2 2.60 0.40 N/A  2026-08-04 12:00:00", {"redop": "none"}),
        ("sum -1 25.3 2.59 0.20 0 1 2 3 4 25.2 2.60 0.40 0 1 2 3 4", {"redop": "sum", "wrong": 0, "in_place_wrong": 0}),
    ],
)
def test_nccl_tests_layouts(cells: str, last: dict[str, Any]) -> None:
    """Rows are read with or without redop and root, errors or wrong elements, and columns after them."""
    (row,) = read_nccl_tests([f"    65536  16384  bfloat16  {cells}"]).rows
    first = {"size": 65536, "time_us": 25.3, "algbw": 2.59, "busbw": 0.2}
    halves = {"in_place_time_us": 25.2, "in_place_algbw": 2.6, "in_place_busbw": 0.4, "type": "bfloat16"}
    assert row == first | halves | last


def test_nccl_tests_of_the_first_years() -> None:
    """The oldest tables give the time in milliseconds."""
    head = "#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res"
    row = "    10000000      10000000    char     sum    1.628   6.14   9.21    0e+00    1.932   5.18   7.77    0e+00"
    assert select_columns(read_nccl_tests([head, row]).rows, "time_us", "in_place_time_us") == [(1628.0, 1932.0)]


@pytest.mark.parametrize("row", [ROW.replace("179.88", "nan"), ROW.replace("179.88", "inf")])
def test_nccl_tests_without_a_number(row: str) -> None:
    """A bandwidth that is not a finite number is read as None."""
    assert select_columns(read_nccl_tests([HEADER, row]).rows, "algbw", "busbw") == [(None, 356.01)]


@pytest.mark.parametrize(
    "end", [ROW[:-10], ROW[:60], "   536870912     134217728     float     sum      -1   ...     ...     ..."]
)
def test_nccl_tests_torn_row_is_counted(end: str) -> None:
    """An incomplete row is left out, and the summary counts such rows."""
    metrics = read_nccl_tests([HEADER, ROW, end])
    assert (len(metrics.rows), metrics.summary["incomplete_rows"]) == (1, 1)


def test_nccl_tests_row_truncated_in_its_last_cell() -> None:
    """If an error of 5e-07 is truncated to 5, it is not read as the number of wrong elements."""
    header = HEADER.replace("#wrong", "error").replace("root", "")
    row = load_posted_log("nccl-tests-old")[-4]
    assert len(read_nccl_tests([header, row]).rows) == 1
    assert read_nccl_tests([header, row[: row.rindex("e-")]]).rows == ()


def test_nccl_tests_row_that_is_never_completed() -> None:
    """A row whose second half does not come is counted, and the next one is read."""
    metrics = read_nccl_tests([HEADER, ROW[:84], ROW])
    assert (len(metrics.rows), metrics.summary["incomplete_rows"]) == (1, 1)


def test_nccl_tests_pieces_must_fit() -> None:
    """Numbers of another program do not become half of a row: size, time and bandwidth belong together."""
    pieces = [ROW[:84], "  1 2 3 4", "# Avg bus bandwidth    : 1.5"]
    metrics = read_nccl_tests(pieces)
    assert (metrics.rows, metrics.summary["incomplete_rows"], metrics.summary["avg_busbw"]) == ((), 1, 1.5)


@pytest.mark.parametrize(
    ("line", "failed"),
    [
        ("# Out of bounds values : 0 OK", False),
        ("# Out of bounds values : 12 FAILED", True),
        ("# Avg bus bandwidth    : 373.187 FAILED", True),
        ("host-1: Test NCCL failure common.cu:958 'unhandled system error'", True),
    ],
)
def test_nccl_tests_verdict(line: str, failed: bool) -> None:
    """Wrong elements, a bandwidth below the requested one, or an NCCL error make a table fail."""
    assert read_nccl_tests([ROW, line, "# Out of bounds values : 0 OK"]).summary["failed"] is failed
    assert read_nccl_tests_line(line)["failed"] is failed


def test_nccl_tests_versions() -> None:
    """The versions of the tests and of NCCL, and the operation, are read before the first row."""
    lines = [
        "# nccl-tests version 2.17.9 nccl-headers=22903 nccl-library=22903",
        "# Collective test starting: reduce_scatter_perf",
        "#  Rank  0 Group  0 Pid  3110 on host device  0 [0000:5c:00] NVIDIA H200",
        "#  Rank 15 Group  0 Pid  3111 on host device  7 [0000:5d:00] NVIDIA H200",
        "NCCL version 2.29.3+cuda13.1",
    ]
    expected = {"version": "2.17.9", "op": "reduce_scatter", "ranks": 16, "nccl": "2.29.3+cuda13.1"}
    assert read_nccl_tests(lines).summary == expected


@pytest.mark.parametrize(
    ("row", "op"),
    [
        ("8 2 float sum -1", "all_reduce"),
        ("8 1 float sum -1", "reduce_scatter"),
        ("8 2 float sum 0", "reduce"),
        ("8 2 float none -1", None),
    ],
)
def test_nccl_tests_operation_of_a_headless_table(row: str, op: str | None) -> None:
    """If no line names the operation, it follows from the redop, root and count of a row."""
    assert read_nccl_tests([f"  {row}  3.38 0.00 0.00 0 3.38 0.00 0.00 0"]).summary.get("op") == op


def test_nccl_tests_of_several_tables() -> None:
    """Each row has the number of its table; summary values that differ between tables are listed per table."""
    ends = ["# Out of bounds values : 0 OK", "# Avg bus bandwidth    : {}", "# Collective test concluded: {}_perf"]
    lines = []
    for op, average in (("all_reduce", 356.3), ("all_gather", 99.5)):
        lines += [f"# mpirun build/{op}_perf -b 8", "# nThread 1 nGpus 8", HEADER, ROW]
        lines += [ends[0], ends[1].format(average), ends[2].format(op)]
    metrics = read_nccl_tests(lines)
    assert select_columns(metrics.rows, "table", "op", "size") == [(1, "all_reduce", 2**29), (2, "all_gather", 2**29)]
    assert metrics.summary == {
        "tables": 2,
        "op_1": "all_reduce",
        "op_2": "all_gather",
        "out_of_bounds": 0,
        "failed": False,
        "avg_busbw_1": 356.3,
        "avg_busbw_2": 99.5,
        "max_busbw": 356.6,
    }
