"""The result that a run returns to the flow that called it."""

import json

import pytest
from pydantic import ValidationError

from torchyard.model.result import RunResult

SHORT = {"profile": "x", "run": "x-1", "end": "succeeded", "sentence": "done", "seconds": 1.5, "attempts": 1}


def test_result_survives_json() -> None:
    """A result that was passed as JSON is the same result, with the types of its numbers."""
    result = RunResult.model_validate(SHORT | {"metrics": {"epoch": 1, "loss": 0.5, "warning": "alone"}})
    assert RunResult.model_validate(json.loads(result.model_dump_json())) == result
    assert isinstance(result.metrics["epoch"], int)


def test_result_of_a_newer_version_can_be_read() -> None:
    """A field that this version does not have is left out, and one that it requires must be present."""
    assert RunResult.model_validate(SHORT | {"colour": "red"}).run == "x-1"
    with pytest.raises(ValidationError):
        RunResult.model_validate({"run": "x-1"})
