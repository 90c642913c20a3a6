"""The key `trend` of a profile."""

import pytest

from tests.conftest import Write, load
from torchyard.model.errors import ProfileError
from torchyard.model.trend import Trend


def test_trend_needs_only_its_number(write: Write) -> None:
    """By default a higher number is better, and a regression is reported."""
    assert load(write()).trend is None
    assert load(write(trend={"value": "busbw"})).trend == Trend(value="busbw", better="higher", on_regression="report")


@pytest.mark.parametrize(
    ("trend", "message"),
    [
        ({}, "value"),
        ({"value": ""}, "value"),
        ({"value": "x", "better": "bigger"}, "higher"),
        ({"value": "x", "on_regression": "stop"}, "report"),
    ],
)
def test_invalid_trend_is_refused(write: Write, trend: dict[str, str], message: str) -> None:
    """An invalid trend is refused with the key, or with the valid values."""
    with pytest.raises(ProfileError, match=message):
        load(write(trend=trend))
