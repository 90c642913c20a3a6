"""Ranks as people read them: `0-6, 8`."""

from collections.abc import Iterable


def format_ranks(ranks: Iterable[int], most: int | None = None) -> str:
    """`0-6, 8`; empty if there are none. After `most` ranges the rest is counted: `0, 2 and 12 more`."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], rank]
        else:
            runs.append([rank, rank])
    named = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    more = sum(last - first + 1 for first, last in runs[most:]) if most is not None else 0
    return ", ".join(named[:most]) + (f" and {more:,} more" if more else "")
