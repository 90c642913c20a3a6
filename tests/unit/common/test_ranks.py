"""Ranks as people read them."""

from torchyard.common.ranks import format_ranks


def test_consecutive_ranks_are_a_range() -> None:
    """A thousand ranks are as short as two, and a gap is seen."""
    assert [format_ranks(ranks) for ranks in ([], [3], [2, 0, 1, 1], [0, 1, 2, 8, 10, 11], range(1024))] == [
        *("", "3", "0-2", "0-2, 8, 10-11", "0-1023"),
    ]


def test_long_list_is_truncated() -> None:
    """Of many ranges the first are named, and the ranks of the others are counted."""
    assert format_ranks(range(0, 40, 2), max_ranges=8) == "0, 2, 4, 6, 8, 10, 12, 14 and 12 more"
