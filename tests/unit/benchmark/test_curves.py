"""The curve that a run of a benchmark measured, from its report."""

from tests.doubles.benchmarks import bandwidth_report, bandwidth_rows
from torchyard.benchmark.curves import build_curve
from torchyard.loading.profile import load_profile
from torchyard.model.run import Row


def test_invalid_numbers_are_left_out() -> None:
    """A nan, a negative number or a text instead of a bandwidth gives no point."""
    invalid_rows: list[Row] = [{"size": 1, "busbw": value} for value in (None, float("nan"), -1.0, "fast", True)]
    assert build_curve(
        load_profile("allreduce-local", {}), bandwidth_report([*invalid_rows, *bandwidth_rows(1.0)])
    ).points == (build_curve(load_profile("allreduce-local", {}), bandwidth_report(bandwidth_rows(1.0))).points)


def test_agents_of_one_machine_are_one_node() -> None:
    """Two agents on this machine are one node, and the verdict is that no network is used."""
    curve = build_curve(load_profile("allreduce-local", {}), bandwidth_report(bandwidth_rows(1.0), ("here", "here")))
    assert (curve.nodes, curve.ranks, curve.verdict.verdict) == (1, 2, "not-applicable")
