"""Which nights are unusual among those before them: few false alarms, and drops that are found at once."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.histories import draw_noisy_values
from torchyard.trend.regression import ACCEPTED_NIGHTS, MIN_NIGHTS, evaluate_nights

HISTORIES = range(100)
Nights = Callable[[int, float], list[float]]


def list_worse_nights(values: Sequence[float]) -> list[int]:
    """The nights that became worse, counted from 1."""
    return [number for number, night in enumerate(evaluate_nights(values, "higher"), 1) if night.verdict == "worse"]


def apply_drop(values: Sequence[float], night: int, share: float) -> list[float]:
    """The values with a drop in one night."""
    return [value - 200 * share * (number == night) for number, value in enumerate(values, 1)]


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.02, 0.03, 0.05])
def test_normal_noise_gives_few_false_alarms(noise: float) -> None:
    """Of 100 histories of 20 nights with normal noise, at most two nights are reported, in either direction."""
    evaluated = [evaluate_nights(draw_noisy_values(seed, noise), "higher") for seed in HISTORIES]
    assert sum(night.verdict == "worse" for nights in evaluated for night in nights) <= 2
    assert sum(night.verdict == "better" for nights in evaluated for night in nights) <= 2


@pytest.mark.parametrize(
    ("kind", "max_alarms"), [("normal", 4), ("laplace", 20), ("lognormal", 20), ("outliers", 20), ("t3", 32)]
)
def test_heavy_tails_give_few_false_alarms(kind: str, max_alarms: int) -> None:
    """Of 1000 histories of 20 nights whose noise has far values, at most so many nights are reported."""
    assert sum(len(list_worse_nights(draw_noisy_values(seed, 0.02, kind=kind))) for seed in range(1000)) <= max_alarms


@pytest.mark.parametrize(
    ("noise", "drop", "least"),
    [(0.0, 0.05, 100), (0.01, 0.1, 99), (0.02, 0.1, 30), (0.02, 0.15, 80), (0.03, 0.2, 68), (0.02, 0.25, 99)],
)
def test_drop_is_found_in_its_night(noise: float, drop: float, least: int) -> None:
    """A drop planted in night 12 of 20 is reported in night 12, in at least so many of 100 histories."""
    reported = [list_worse_nights(apply_drop(draw_noisy_values(seed, noise), 12, drop)) for seed in HISTORIES]
    assert sum(12 in nights for nights in reported) >= least


def test_planted_drop_is_the_only_alarm() -> None:
    """Of 20 nights with 1 % noise and a drop of 15 % in night 12, exactly night 12 is reported."""
    reported = [list_worse_nights(apply_drop(draw_noisy_values(seed, 0.01), 12, 0.15)) for seed in HISTORIES]
    assert sum(nights == [12] for nights in reported) >= 99


@pytest.mark.parametrize("bad_night", [2, 4, 8])
def test_earlier_bad_night_hides_no_drop(bad_night: int) -> None:
    """A drop is found although an earlier night was as bad, one of the first five included."""
    reported = [
        list_worse_nights(apply_drop(apply_drop(draw_noisy_values(seed, 0.01), bad_night, 0.2), 14, 0.15))
        for seed in HISTORIES
    ]
    assert sum(14 in nights for nights in reported) >= 95


@pytest.mark.parametrize("drift", [-0.002, 0.002])
def test_drift_hides_no_drop(drift: float) -> None:
    """A drop is found in a history that drifts slowly, up or down, and the drift itself gives no alarm."""
    drifting = [
        [value * (1 + drift) ** number for number, value in enumerate(draw_noisy_values(seed, 0.01, 40))]
        for seed in HISTORIES
    ]
    assert sum(35 in list_worse_nights(apply_drop(values, 35, 0.2)) for values in drifting) >= 97
    assert sum(len(list_worse_nights(values)) for values in drifting) <= 2


def test_lasting_step_is_reported_until_it_is_the_new_level() -> None:
    """A step down is reported for ACCEPTED_NIGHTS nights; then it is usual, and a drop below it is found again."""
    values = [*draw_noisy_values(1, 0.01, 15), *(0.8 * value for value in draw_noisy_values(2, 0.01, 25))]
    assert list_worse_nights(values) == list(range(16, 16 + ACCEPTED_NIGHTS))
    assert list_worse_nights(apply_drop(values, 36, 0.2))[-1] == 36


def test_step_up_is_not_a_regression_and_becomes_the_level() -> None:
    """After a lasting improvement, a night at the old level is reported."""
    values = [*draw_noisy_values(1, 0.01, 15), *(1.3 * value for value in draw_noisy_values(2, 0.01, 20)), 200.0]
    assert list_worse_nights(values) == [len(values)]
    assert [night.verdict for night in evaluate_nights(values, "lower")].count("worse") == ACCEPTED_NIGHTS


@pytest.mark.parametrize("count", range(MIN_NIGHTS))
def test_too_few_nights_are_not_compared(count: int) -> None:
    """With fewer than MIN_NIGHTS nights before it, a night's verdict is unknown."""
    (*_, last) = evaluate_nights([*draw_noisy_values(1, 0.01, count), 1.0], "higher")
    assert (last.verdict, last.band) == ("unknown", None)


@pytest.mark.parametrize(("value", "verdict"), [(97.1, "usual"), (96.9, "worse"), (102.9, "usual"), (103.1, "better")])
def test_history_without_noise_alarms_from_three_percent_on(value: float, verdict: str) -> None:
    """Equal nights have a band of 3 % around them."""
    assert evaluate_nights([100.0] * 10 + [value], "higher")[-1].verdict == verdict


def test_zeros_are_a_level_like_any_other() -> None:
    """A number that was always 0 is worse once it is not, and nothing divides by it."""
    assert [evaluate_nights([0.0] * 6 + [last], "lower")[-1].verdict for last in (0.0, 1.0)] == ["usual", "worse"]


@given(st.lists(st.floats(-1e300, 1e300), max_size=60))
def test_any_numbers_get_verdicts(values: list[float]) -> None:
    """For any numbers, each night gets a verdict."""
    assert len(evaluate_nights(values, "higher")) == len(values)


@pytest.mark.parametrize(("value", "verdict"), [(88.0, "usual"), (86.0, "worse")])
def test_noise_with_far_nights_has_a_wider_band(value: float, verdict: str) -> None:
    """Where a usual night was 5.5 below the median, 11.5 below it is usual, though most nights are within 1.5."""
    assert evaluate_nights([94.0, *[99.0, 101.0] * 10, 100.0, value], "higher")[-1].verdict == verdict
