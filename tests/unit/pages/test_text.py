"""What all pages write alike."""

from torchyard.pages.text import align_columns, format_duration, select_ends


def test_durations_are_formatted_with_their_units() -> None:
    """Durations are shown in seconds, minutes or hours."""
    assert [format_duration(seconds) for seconds in (0.25, 38.2, 761, 7500)] == [
        "0.2 s",
        "38 s",
        "12 min 41 s",
        "2 h 05 min",
    ]


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    """Cells stand below each other, and no line ends in blanks."""
    assert align_columns([["a", "long"], ["longer", "b"]], str.ljust) == ["    a       long", "    longer  b"]


def test_middle_of_a_long_list_is_left_out() -> None:
    """A list that is short enough is whole; of a longer one its two ends are left."""
    assert (select_ends([1, 2, 3, 4], 4), select_ends([1, 2, 3, 4, 5], 4)) == ([1, 2, 3, 4], [1, 2, 4, 5])
