"""The plot of a history: the values, the band, and the nights outside it."""

import pytest

from tests.builders.histories import TREND, build_records, draw_noisy_values
from torchyard.trend.night import evaluate_records
from torchyard.trend.plot import draw_trend


def draw(values: list[float], name: str = "busbw") -> str:
    svg = draw_trend(evaluate_records(build_records(values), TREND), name)
    assert svg
    return svg


def test_regression_is_marked() -> None:
    """A night that became worse has the red mark of a regression; a history of usual nights has none."""
    values = draw_noisy_values(1, 0.01)
    assert "#d62728" not in draw(values)
    assert "#d62728" in draw([*values, 150.0])
    assert "#2ca02c" in draw([*values, 250.0])


def test_band_is_drawn_once_there_is_one() -> None:
    """The band is a separate area; five nights have none yet."""
    assert ['fill-opacity="0.2"' in draw(draw_noisy_values(1, 0.01, count)) for count in (5, 7)] == [False, True]


def test_long_history_stays_small() -> None:
    """The plot of a history of years fits on a page."""
    assert len(draw(draw_noisy_values(1, 0.01, 400))) < 20_000


def test_one_night_is_not_a_trend() -> None:
    """A single night is not drawn."""
    assert draw_trend(evaluate_records(build_records([1.0]), TREND), "busbw") is None


@pytest.mark.parametrize("name", ["$\\frac$", "<script>", "x" * 500])
def test_any_name_can_be_drawn(name: str) -> None:
    """Any name of a number is shown as text."""
    assert "<script" not in draw([1.0, 2.0], name)
