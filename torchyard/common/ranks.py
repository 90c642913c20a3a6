"""Ranks as people read them: `0-6, 8`."""

from collections.abc import Iterable


def format_ranks(ranks: Iterable[int], max_ranges: int | None = None) -> str:
    """`0-6, 8`; empty if there are none. After `max_ranges` ranges the rest is counted: `0, 2 and 12 more`."""
    ranges: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if ranges and rank == ranges[-1][-1] + 1:
            ranges[-1] = [ranges[-1][0], rank]
        else:
            ranges.append([rank, rank])
    range_texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    remaining = sum(last - first + 1 for first, last in ranges[max_ranges:]) if max_ranges is not None else 0
    return ", ".join(range_texts[:max_ranges]) + (f" and {remaining:,} more" if remaining else "")
