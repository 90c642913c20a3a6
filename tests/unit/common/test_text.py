"""Text that all pages share: durations, columns, the ends of a long list."""

from torchyard.common.text import align_columns, format_duration, select_ends


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
    assert align_columns([["a", "long"], ["longer", "b"]], str.ljust) == ["    a       long", "    longer  b"]


def test_middle_of_a_long_list_is_left_out() -> None:
    """A list up to the limit is returned unchanged; of a longer one the two ends are returned."""
    assert select_ends([1, 2, 3, 4], 4) == [1, 2, 3, 4]
    assert select_ends([1, 2, 3, 4, 5], 4) == [1, 2, 4, 5]
