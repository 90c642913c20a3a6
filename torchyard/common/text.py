"""Text for people: durations, columns, the two ends of a long list."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
MAX_SENTENCE_CHARS = 2000  # of a sentence about a run


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


def select_ends(items: Sequence[T], max_items: int) -> Sequence[T]:
    """All items; if there are more than `max_items`, the first and the last ones."""
    if len(items) <= max_items:
        return items
    half = max_items // 2
    return [*items[:half], *items[-half:]]


def align_columns(rows: Sequence[Sequence[str]], align: Callable[[str, int], str]) -> list[str]:
    """The rows as indented lines with columns of equal width. `align`: str.ljust or str.rjust."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = [align(cell, width) for cell, width in zip(row, widths, strict=True)]
        lines.append("    " + "  ".join(cells).rstrip())
    return lines
