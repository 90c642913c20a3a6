"""Tests of the rank that is slower than the others."""

import pytest

from torchyard.diagnosis.hang.records import Window
from torchyard.diagnosis.hang.stragglers import find_straggler
from torchyard.model.hang import Straggler


def find(*turns: tuple[float, ...], late_s: float = 0.0) -> Straggler | None:
    """The straggler among ranks whose shares of waiting are given for each window of 60 s."""
    ranks = range(len(turns[0]))
    windows: dict[int, list[Window]] = {}
    for rank in ranks:
        windows[rank] = [Window(60.0 * turn + late_s * rank, shares[rank]) for turn, shares in enumerate(turns)]
    return find_straggler(windows, {rank: f"node-{rank}" for rank in ranks})


def test_rank_that_never_waits() -> None:
    """A rank that waits much less than the others in four windows costs them that share of their time."""
    straggler = find(*[(0.42, 0.40, 0.02, 0.41)] * 4)
    assert straggler == Straggler(rank=2, node="node-2", lost_percent=39.0, lost_s=93.6, window_s=240.0)


def test_chance_of_one_window_counts_little() -> None:
    """A share is known to about 5 % in a window of 15 s: the mean of all windows counts."""
    straggler = find((0.30, 0.10, 0.31), (0.30, 0.14, 0.32), (0.30, 0.05, 0.30), (0.31, 0.07, 0.30))
    assert straggler is not None
    assert straggler.rank == 1


@pytest.mark.parametrize(
    "turns",
    [
        [(0.1, 0.12, 0.09)] * 4,
        [(0.5, 0.5, 0.0)] * 3,
        [(0.5, 0.5, 0.0), (0.5, 0.0, 0.5)] * 3,
        [(0.5, 0.5, 0.0), (0.3, 0.3, 0.3)] * 2,
        [(0.5, 0.5, 0.5, 0.02, 0.0)] * 4,
        [(0.25, 0.0)] * 4,
        [(0.5,)] * 4,
        [
            (0.28, 0.52, 0.30, 0.77),
            (0.30, 0.17, 0.68, 0.93),
            (0.72, 0.03, 0.97, 0.92),
            (0.52, 0.13, 0.95, 0.97),
            (0.40, 0.45, 0.73, 0.93),
        ],
    ],
    ids=[
        "balanced",
        "too few windows",
        "another rank",
        "not always",
        "two ranks",
        "one of two",
        "one rank",
        "batches of uneven size",
    ],
)
def test_no_straggler(turns: list[tuple[float, ...]]) -> None:
    """A balanced or short job has no straggler, and neither has one whose ranks are the last by chance."""
    assert find(*turns) is None


def test_more_windows_show_a_smaller_difference() -> None:
    """What four noisy windows leave open, twelve of them show."""
    turns = [(0.5, 0.5, 0.1), (0.5, 0.5, 0.4)]
    assert find(*turns * 2) is None
    assert find(*turns * 6) is not None


def test_one_of_two_with_a_clear_difference() -> None:
    """With two ranks the difference must be clear."""
    straggler = find(*[(0.6, 0.02)] * 4)
    assert straggler is not None
    assert straggler.rank == 1


def test_windows_of_different_times() -> None:
    """Windows that do not belong together are not compared."""
    assert find(*[(0.5, 0.5, 0.0)] * 4, late_s=60.0) is None
