"""The models of a benchmark."""

import pytest
from pydantic import ValidationError

from tests.doubles.benchmarks import compare_two_fabrics
from torchyard.model.benchmark import Benchmark, Curve


def test_benchmark_survives_its_file() -> None:
    """A benchmark that was written as JSON is read back as the same benchmark."""
    benchmark = compare_two_fabrics()
    assert Benchmark.model_validate_json(benchmark.model_dump_json()) == benchmark


@pytest.mark.parametrize("key", ["ranks", "nodes"])
def test_curve_needs_ranks_and_nodes(key: str) -> None:
    """A curve without ranks or nodes is refused, because every factor would divide by 0."""
    curve = compare_two_fabrics().curves[0].model_dump()
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        Curve.model_validate(curve | {key: 0})
