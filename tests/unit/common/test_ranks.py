"""Ranks as people read them."""

from torchyard.common.ranks import format_ranks


def test_consecutive_ranks_are_a_range() -> None:
    """A thousand ranks are as short as two, and a gap is shown."""
    assert format_ranks([]) == ""
    assert format_ranks([3]) == "3"
    assert format_ranks([2, 0, 1, 1]) == "0-2"
    assert format_ranks([0, 1, 2, 8, 10, 11]) == "0-2, 8, 10-11"
    assert format_ranks(range(1024)) == "0-1023"


def test_long_list_is_truncated() -> None:
    """The first ranges of a long list are shown, and the ranks of the others are counted."""
    assert format_ranks(range(0, 40, 2), max_ranges=8) == "0, 2, 4, 6, 8, 10, 12, 14 and 12 more"
