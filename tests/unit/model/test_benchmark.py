"""The models of a benchmark."""

import pytest
from pydantic import ValidationError

from tests.benchmarks import compare_two_fabrics
from torchyard.model.benchmark import Benchmark, Curve


def test_benchmark_survives_its_file() -> None:
    """A benchmark that was written as JSON is the same when it is read."""
    benchmark = compare_two_fabrics()
    assert Benchmark.model_validate_json(benchmark.model_dump_json()) == benchmark


@pytest.mark.parametrize("key", ["ranks", "nodes"])
def test_curve_has_at_least_one(key: str) -> None:
    """A curve of no ranks, or of no nodes, is refused: every factor would divide by it."""
    curve = compare_two_fabrics().curves[0].model_dump()
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        Curve.model_validate({**curve, key: 0})
