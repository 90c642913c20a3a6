"""Tests of the rank that is slower than the others."""

import pytest

from torchyard.diagnosis.hang.records import Window
from torchyard.diagnosis.hang.stragglers import find_straggler
from torchyard.model.hang import Straggler


def find(*turns: tuple[float, ...], late_s: float = 0.0) -> Straggler | None:
    """The straggler among ranks whose shares of waiting are given for each window of 60 s."""
    ranks = range(len(turns[0]))
    windows = {
        rank: [Window(60.0 * turn + late_s * rank, its[rank]) for turn, its in enumerate(turns)] for rank in ranks
    }
    return find_straggler(windows, {rank: f"node-{rank}" for rank in ranks})


def test_rank_that_never_waits() -> None:
    """A rank that waits much less than the others in three windows costs them that share of their time."""
    found = find(*[(0.42, 0.40, 0.02, 0.41)] * 3)
    assert found == Straggler(rank=2, node="node-2", lost_percent=39.0, lost_s=70.2, window_s=180.0)


def test_chance_of_one_window_counts_little() -> None:
    """A window of few samples may show less than the mean of all."""
    found = find((0.3, 0.1, 0.31), (0.3, 0.2, 0.32), (0.3, 0.05, 0.3))
    assert found is not None
    assert found.rank == 1


@pytest.mark.parametrize(
    "turns",
    [
        [(0.1, 0.12, 0.09)] * 3,
        [(0.5, 0.5, 0.0)] * 2,
        [(0.5, 0.5, 0.0), (0.5, 0.0, 0.5), (0.5, 0.5, 0.0)],
        [(0.5, 0.5, 0.0), (0.3, 0.3, 0.3), (0.5, 0.5, 0.0)],
        [(0.0, 0.5, 0.5), (0.3, 0.3, 0.3), (0.0, 0.5, 0.5)],
        [(0.5, 0.5, 0.5, 0.02, 0.0)] * 3,
        [(0.25, 0.0)] * 3,
        [(0.5,)] * 3,
    ],
    ids=[
        "balanced",
        "too few windows",
        "another rank",
        "a pause",
        "a pause of the first",
        "two ranks",
        "one of two",
        "one rank",
    ],
)
def test_no_straggler(turns: list[tuple[float, ...]]) -> None:
    """A balanced, short or noisy job has no straggler."""
    assert find(*turns) is None


def test_one_of_two_with_a_clear_difference() -> None:
    """With two ranks the difference must be clear."""
    found = find(*[(0.6, 0.02)] * 3)
    assert found is not None
    assert found.rank == 1


def test_windows_of_different_times() -> None:
    """Windows that do not belong together are not compared."""
    assert find(*[(0.5, 0.5, 0.0)] * 3, late_s=60.0) is None
