"""Text that all pages share: durations, ranks, columns, the ends of a long list."""

from torchyard.common.text import align_columns, format_duration, format_ranks, select_ends


def test_durations_are_formatted_with_their_units() -> None:
    """Durations are shown in seconds, minutes or hours."""
    assert [format_duration(seconds) for seconds in (0.25, 38.2, 761, 7500)] == [
        "0.2 s",
        "38 s",
        "12 min 41 s",
        "2 h 05 min",
    ]


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    """The cells of a column have one width, and no line ends with spaces."""
    assert align_columns([["a", "long"], ["longer", "b"]]) == ["    a       long", "    longer  b"]


def test_numbers_are_aligned_to_the_right() -> None:
    """A column of numbers, some of them missing, is on the right; one with other texts is not."""
    rows = [["name", "loss", "size", "note"], ["a", "-0.5", "4 MiB", "7"], ["b", "", "128 MiB", "none"]]
    assert align_columns([*rows, ["c", "nan", "1 MiB", ""]], indent="") == [
        "name  loss     size  note",
        "a     -0.5    4 MiB  7",
        "b           128 MiB  none",
        "c      nan    1 MiB",
    ]


def test_middle_of_a_long_list_is_left_out() -> None:
    """A list up to the limit is returned unchanged; of a longer one the two ends are returned."""
    assert select_ends([1, 2, 3, 4], 4) == [1, 2, 3, 4]
    assert select_ends([1, 2, 3, 4, 5], 4) == [1, 2, 4, 5]


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
