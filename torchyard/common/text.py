"""Text for people: durations, ranks, columns, the two ends of a long list."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeVar

T = TypeVar("T")
MAX_SENTENCE_CHARS = 2000  # of a sentence about a run
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?|nan|inf)(?: ?[A-Za-z%/]{1,4})?")


class _RankRange(NamedTuple):
    first: int
    last: int


def format_duration(seconds: float) -> str:
    """Seconds as `0.3 s`, `38 s`, `12 min 41 s`, `2 h 05 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02} min"


def format_ranks(ranks: Iterable[int], max_ranges: int | None = None) -> str:
    """The ranks as ranges: `0-6, 8`; empty without ranks.

    max_ranges: how many ranges are listed, 1 or more; the other ranks are counted: `0, 2 and 12 more`.
    """
    ranges: list[_RankRange] = []
    for rank in sorted(set(ranks)):
        if ranges and rank == ranges[-1].last + 1:
            ranges[-1] = ranges[-1]._replace(last=rank)
        else:
            ranges.append(_RankRange(rank, rank))
    text = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges[:max_ranges])
    hidden_ranges = ranges[max_ranges:] if max_ranges is not None else []
    hidden_count = sum(last - first + 1 for first, last in hidden_ranges)
    if hidden_count:
        text += f" and {hidden_count:,} more"
    return text


def select_ends(items: Sequence[T], max_items: int) -> Sequence[T]:
    """All items; if there are more than `max_items`, the first and the last ones."""
    if len(items) <= max_items:
        return items
    half = max_items // 2
    return [*items[:half], *items[-half:]]


def align_columns(rows: Sequence[Sequence[str]], indent: str = "    ") -> list[str]:
    """The rows, of which the first is the header, as lines with columns of equal width; numbers are on the right."""
    columns: list[list[str]] = []
    for column in zip(*rows, strict=True):
        width = max(map(len, column))
        align = str.rjust if is_numeric_column(column[1:]) else str.ljust
        columns.append([align(cell, width) for cell in column])
    return [indent + "  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]


def is_numeric_column(cells: Iterable[str]) -> bool:
    """Whether the cells that are not empty, one or more, are numbers, perhaps with a unit: `-0.5`, `4 MiB`, `nan`."""
    filled = [cell for cell in cells if cell]
    return bool(filled) and all(_NUMBER.fullmatch(cell) for cell in filled)
