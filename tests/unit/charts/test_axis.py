"""The range of an axis, and its ticks."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchyard.charts.axis import fit_axis
from torchyard.charts.chart import Scale

DAY_S = 86_400.0
START = 1_750_000_000.0  # 2025-06-15 15:06:40 UTC


@pytest.mark.parametrize(
    ("scale", "values", "labels"),
    [
        pytest.param("linear", [0, 60], ["0", "20", "40", "60"], id="integers"),
        pytest.param("linear", [0.91, 0.93], ["0.910", "0.915", "0.920", "0.925", "0.930"], id="decimals"),
        pytest.param("linear", [1e6, 3e6], ["1.0e+06", "1.5e+06", "2.0e+06", "2.5e+06", "3.0e+06"], id="large"),
        pytest.param("linear", [-1, 1], ["-1.0", "-0.5", "0.0", "0.5", "1.0"], id="negative"),
        pytest.param("linear", [5, 5], ["4.8", "4.9", "5.0", "5.1", "5.2"], id="one value"),
        pytest.param("log2", [512, 2**30], ["256", "4 Ki", "64 Ki", "1 Mi", "16 Mi", "256 Mi"], id="sizes"),
        pytest.param("log2", [1, 4], ["2^-1", "1", "2", "4", "8"], id="small sizes"),
        pytest.param("log2", [0.25, 1], ["2^-3", "2^-2", "2^-1", "1", "2"], id="fractions"),
        pytest.param("time", [START, START + 3 * DAY_S], ["2025-06-16", "2025-06-17", "2025-06-18"], id="days"),
        pytest.param("time", [START, START + 5400], ["06-15 15:30", "06-15 16:00", "06-15 16:30"], id="hours"),
    ],
)
def test_ticks_are_round_values(scale: Scale, values: list[float], labels: list[str]) -> None:
    """The labels of an axis are round values of its scale."""
    assert [tick.label for tick in fit_axis(scale, values).list_ticks()] == labels


@example([5e-324], "log2", False)
@given(st.lists(st.floats(-1e300, 1e300), max_size=20), st.sampled_from(["linear", "log2"]), st.booleans())
def test_every_value_has_its_place(values: list[float], scale: Scale, starts_at_zero: bool) -> None:
    """Any values are placed between the ends of their axis, whose ticks are few, in order, and between them too."""
    if scale == "log2":
        values = [abs(value) for value in values if value]
    axis = fit_axis(scale, values, starts_at_zero=starts_at_zero)
    ticks = axis.list_ticks()
    assert 1 <= len(ticks) <= 8
    positions = [axis.place(value) for value in (*values, *(tick.value for tick in ticks))]
    assert all(-1e-6 <= position <= 1 + 1e-6 for position in positions)
    assert ticks == sorted(ticks)


def test_axis_without_values_has_a_range() -> None:
    """An empty panel has an axis all the same."""
    axis = fit_axis("linear", [])
    assert axis.low < 0
    assert axis.high > 1


def test_axis_starts_at_zero_if_it_should() -> None:
    """Bandwidths start at zero, so that their heights can be compared; a negative value is still shown."""
    assert fit_axis("linear", [40, 50], starts_at_zero=True).low == 0
    assert fit_axis("linear", [-40, 50], starts_at_zero=True).low < -40
