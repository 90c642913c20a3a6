"""What all pages write alike: durations, columns, the two ends of a long list."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def format_duration(seconds: float) -> str:
    """`0.3 s`, `38 s`, `12 min 41 s`, `2 h 05 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60:02} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02} min"


def select_ends(things: Sequence[T], most: int) -> Sequence[T]:
    """The first and the last things, if there are more than `most`."""
    half = most // 2
    return things if len(things) <= most else [*things[:half], *things[-half:]]


def align_columns(rows: Sequence[Sequence[str]], align: Callable[[str, int], str]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "    " + "  ".join(align(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
