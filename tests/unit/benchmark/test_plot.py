"""The plot of a benchmark, and the files beside it."""

import base64

from tests.benchmarks import RUNAI, bandwidth_report, compared_fabrics, rows
from torchyard.benchmark.curves import read_curve
from torchyard.benchmark.plot import draw_benchmark
from torchyard.benchmark.sequence import save_benchmark
from torchyard.benchmark.table import render_benchmark_page
from torchyard.loading.profile import load_profile
from torchyard.model.benchmark import Benchmark


def test_plot_and_files() -> None:
    """The comparison is written as JSON, as a table and, if a curve has two sizes, as a plot with the line rate."""
    compared = compared_fabrics()
    assert draw_benchmark(compared) is None
    folder = save_benchmark(compared, "x-1")
    assert sorted(each.name for each in folder.iterdir()) == ["benchmark.json", "table.txt"]
    assert Benchmark.model_validate_json((folder / "benchmark.json").read_text()) == compared
    curve = compared.curves[0].model_copy(
        update={"points": read_curve(load_profile(RUNAI, {}), bandwidth_report(rows(1.0, 2.0))).points}
    )
    drawn = draw_benchmark(compared.model_copy(update={"curves": (curve,), "line_rate": 50.0}))
    assert drawn
    assert "line rate of a node" in base64.b64decode(drawn).decode()
    assert f"base64,{drawn}" in render_benchmark_page(compared, drawn)
