"""The comparison of a benchmark, in the terminal and on its page."""

import pytest

from tests.conftest import Write
from tests.doubles.benchmarks import RUNAI, bandwidth_report, bandwidth_rows, compare_two_fabrics, replay_reports
from torchyard.benchmark.sequence import run_benchmark
from torchyard.benchmark.table import (
    build_tables,
    format_size,
    list_notes,
    render_benchmark_page,
    render_benchmark_text,
)


def test_table_of_the_guide() -> None:
    """The guide's figures are shown side by side, with the ratio; busbw / algbw is 2 (n - 1) / n."""
    benchmark = compare_two_fabrics()
    (cells,) = build_tables(benchmark).values()
    assert cells[0] == ["size", "roce algbw", "roce busbw", "tcp algbw", "tcp busbw", "roce / tcp"]
    assert cells[1] == ["4 GB", "4.91", "9.52", "1.94", "3.77", "2.53"]
    assert not any("counts differently" in note for note in list_notes(benchmark))


def test_hardware_is_named() -> None:
    """The line below the title names the hardware on which the numbers were measured."""
    assert "; the hardware: EPFL RCP, nodes of 8 GPUs" in render_benchmark_text(compare_two_fabrics()).splitlines()[1]


def test_other_factor_is_reported() -> None:
    """A busbw that is not 2 (n - 1) / n times the algbw is reported with both factors."""
    benchmark = run_benchmark(
        RUNAI, {}, ["tcp"], replay_reports({"tcp": bandwidth_report(bandwidth_rows(2.0, factor=1.0), ranks=32)})
    )
    assert any(
        "busbw / algbw is 1.000 at 1 MiB, and 1.938 for all_reduce over 32 ranks" in note
        for note in list_notes(benchmark)
    )


def test_percent_of_the_line_and_of_the_wire(write: Write) -> None:
    """The table has the percent of the line rate and the minimum on the wire; more than 100 % adds a note."""
    path = write(launcher="volcano", image="t:1", program="a.py", nodes=2, processes=8, metrics="nccl-tests")
    path.write_text(path.read_text() + "hardware: oke/bm-gpu-h100-8\nfabric: host\n")
    fast = bandwidth_report(bandwidth_rows(375.0, 487.0, 900.0, factor=1.875), ranks=16)
    benchmark = run_benchmark(
        str(path), {}, [], replay_reports({"host": fast, "no-rdma": bandwidth_report(bandwidth_rows(4.0), ranks=16)})
    )
    (cells,) = build_tables(benchmark).values()
    assert [row[-2:] for row in cells[1:]] == [["94 %", "50 %"], ["122 %", "65 %"], ["225 %", "120 %"]]
    assert any(
        "900 GB/s at 4 MiB needs 480 GB/s on each node's wire, which carries 400" in note
        for note in list_notes(benchmark)
    )


def test_bandwidth_below_the_floor_is_reported(write: Write) -> None:
    """If no size reaches the hardware file's floor for all_reduce, a note contains both numbers."""
    path = write(launcher="volcano", image="t:1", program="a.py", nodes=2, processes=8, metrics="nccl-tests")
    path.write_text(path.read_text() + "hardware: oke/bm-gpu-h100-8\nfabric: host\n")
    slow, fast = (bandwidth_report(bandwidth_rows(best, factor=1.875), ranks=16) for best in (120.0, 445.0))
    notes_by_report = [
        list_notes(run_benchmark(str(path), {}, ["host"], replay_reports({"host": report}))) for report in (slow, fast)
    ]
    assert [any("is 120 GB/s, below the floor of 440 GB/s" in note for note in notes) for notes in notes_by_report] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("size", "text"),
    [(32768, "32 KiB"), (1 << 34, "16 GiB"), (4 * 10**9, "4 GB"), (1500, "1.5 kB"), (12, "12 B"), (0, "0 B")],
)
def test_sizes_are_formatted_in_the_unit_that_fits(size: int, text: str) -> None:
    """A size is shown in a binary unit if it is a whole number of it, else in a decimal unit."""
    assert format_size(size) == text


def test_page_shows_names_as_text() -> None:
    """A collective's name comes from a log and cannot become markup."""
    benchmark = compare_two_fabrics()
    point = benchmark.curves[0].points[0].model_copy(update={"collective": "<img>|"})
    curve = benchmark.curves[0].model_copy(update={"points": (point,)})
    page = render_benchmark_page(benchmark.model_copy(update={"curves": (curve,)}), None)
    assert r"## \<img>\|" in page
    assert "<img>|" not in page
