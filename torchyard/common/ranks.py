"""Ranks as people read them: `0-6, 8`."""

from collections.abc import Iterable
from typing import NamedTuple


class _RankRange(NamedTuple):
    first: int
    last: int


def format_ranks(ranks: Iterable[int], max_ranges: int | None = None) -> str:
    """`0-6, 8`; empty without ranks. After `max_ranges` ranges the other ranks are counted: `0, 2 and 12 more`."""
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
