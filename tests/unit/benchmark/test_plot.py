"""The plot of a benchmark, and the files beside it."""

import base64

from tests.doubles.benchmarks import RUNAI, bandwidth_report, bandwidth_rows, compare_two_fabrics
from torchyard.benchmark.curves import build_curve
from torchyard.benchmark.plot import draw_benchmark
from torchyard.benchmark.sequence import save_benchmark
from torchyard.benchmark.table import render_benchmark_page
from torchyard.loading.profile import load_profile
from torchyard.model.benchmark import Benchmark


def test_plot_and_files() -> None:
    """The comparison is written as JSON, as a table and, if a curve has two sizes, as a plot with the line rate."""
    benchmark = compare_two_fabrics()
    assert draw_benchmark(benchmark) is None
    folder = save_benchmark(benchmark, "x-1")
    assert sorted(path.name for path in folder.iterdir()) == ["benchmark.json", "table.txt"]
    assert Benchmark.model_validate_json((folder / "benchmark.json").read_text()) == benchmark
    curve = benchmark.curves[0].model_copy(
        update={"points": build_curve(load_profile(RUNAI, {}), bandwidth_report(bandwidth_rows(1.0, 2.0))).points}
    )
    plot = draw_benchmark(benchmark.model_copy(update={"curves": (curve,), "line_rate": 50.0}))
    assert plot
    assert "line rate of a node" in plot
    assert f"base64,{base64.b64encode(plot.encode()).decode()})" in render_benchmark_page(benchmark, plot)
