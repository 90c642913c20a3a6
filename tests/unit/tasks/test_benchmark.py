"""The Prefect tasks of a benchmark; whole ones are played in tests/local/test_benchmark.py."""

from tests.benchmarks import compared_fabrics
from torchyard.tasks.benchmark import _describe_end, measure_fabric


def test_task_measures_one_fabric() -> None:
    """The task is named after what it does, and its result is never taken from an earlier run."""
    assert (measure_fabric.name, measure_fabric.persist_result) == ("measure_fabric", False)


def test_end_names_the_largest_bandwidth_of_each_fabric() -> None:
    """The final state's sentence has the best busbw over each fabric."""
    assert _describe_end(compared_fabrics()) == "roce: 9.522 GB/s, tcp: 3.767 GB/s"
