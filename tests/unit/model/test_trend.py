"""What a profile says about its trend."""

import pytest

from tests.conftest import Write, load
from torchyard.model.errors import ProfileError
from torchyard.model.trend import Trend


def test_trend_needs_only_its_number(write: Write) -> None:
    """A higher number is better, and a regression is reported, unless the profile says otherwise."""
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
def test_wrong_trend_is_told(write: Write, trend: dict[str, str], message: str) -> None:
    """A trend that cannot be meant is refused with the key, or with what is allowed."""
    with pytest.raises(ProfileError, match=message):
        load(write(trend=trend))
