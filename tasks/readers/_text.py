"""What the readers have in common: the keys of a row, and text as a terminal shows it."""

import math
import re
from collections.abc import Iterable, Iterator

ROW_KEYS = ("epoch", "step", "trial", "size")
NUMBER = r"[-+]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?(?:e[-+]?[0-9]{2,3})?|nan|inf)"
ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
# What launchers write before a line: a time, `[0:0]:`, `[default0]:`, `[1,0]<stdout>:`, `(worker, rank=0)`, `0:`.
TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,]{5,20}(?:Z|[-+][0-9:]{4,5})?"
PREFIX = re.compile(
    rf"\s*(?:\[?{TIME}\]?(?:\s\||(?=\s))|\[[^\]\s]{{1,80}}\](?:<std...?>)?:?|\([^()]{{1,80}}\)|[0-9]{{1,6}}:(?=\s))"
)


def parts(lines: Iterable[str]) -> Iterator[str]:
    """What a terminal shows one after the other, without colours: a bar is drawn again after each carriage return."""
    return (part for line in lines for part in re.split(r"[\r\n]+", ESCAPE.sub("", line)))


def bare(part: str) -> str:
    """What the program said, without what launchers wrote before it."""
    start = 0
    while match := PREFIX.match(part, start):
        start = match.end()
    return part[start:]


def finite(text: str) -> float | None:
    """A number; None where the program said nan or inf, which JSON cannot hold."""
    value = float(text)
    return value if math.isfinite(value) else None
