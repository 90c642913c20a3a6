"""Helpers of all readers: the keys of a row, and text as a terminal shows it."""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from torchyard.common.log_lines import split_after_progress_bar
from torchyard.model.run import Row, RowValue

ROW_KEYS = ("epoch", "step", "trial", "size")
NUMBER_PATTERN = r"[-+]?(?:[0-9]{1,20}(?:\.[0-9]{0,20})?(?:e[-+]?[0-9]{1,3})?|nan|inf)"
_MAX_LINE_CHARS = 4000
_ESCAPE_PATTERN = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
# Prefixes that launchers write: a time, `[0:0]:`, `[default0]:`, `[1,0]<stdout>:`, `(worker, rank=0)`, `0:`.
_TIME_PATTERN = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,]{5,20}(?:Z|[-+][0-9:]{4,5})?"
_PREFIX_PATTERN = re.compile(
    rf"\s*(?:\[?{_TIME_PATTERN}\]?(?:\s\||(?=\s))|\[[^\]\s]{{1,80}}\](?:<std...?>)?:?|\([^()]{{1,80}}\)|[0-9]{{1,6}}:(?=\s))"
)


def find_row_key(row: Row) -> str | None:
    """The first of ROW_KEYS that the row has; None if it has none."""
    for key in ROW_KEYS:
        if key in row:
            return key
    return None


def split_terminal_lines(lines: Iterable[str]) -> Iterator[str]:
    """The lines that a terminal shows one after the other, without colours.

    A carriage return ends a line as well: with it a progress bar redraws itself. What is printed behind a bar that the
    program has not ended is a line of its own.
    """
    for line in lines:
        if "\r" in line or "\x1b" in line or "\n" in line:
            for redrawn_line in re.split(r"[\r\n]+", _ESCAPE_PATTERN.sub("", line)):
                yield from split_after_progress_bar(redrawn_line)
        else:
            yield line


def contains_any(text: str, markers: Iterable[str]) -> bool:
    """Whether a text contains one of the markers.

    This is far quicker than a pattern. With it a reader skips most lines before it applies one.
    """
    for marker in markers:  # noqa: SIM110 - a generator would take twice as long, and this runs on every line
        if marker in text:
            return True
    return False


def strip_prefixes(line: str) -> str:
    """What the program printed, without the prefixes of launchers."""
    start = 0
    while match := _PREFIX_PATTERN.match(line, start):
        start = match.end()
    return line[start:]


class TerminalReader(ABC):
    """Reads one output line by line, in order; a line that a terminal redraws counts as several.

    Only the first `_MAX_LINE_CHARS` of a line are read, so that no line takes long.
    """

    def __call__(self, line: str) -> Row:
        """The values of a line, the last ones if it was redrawn; {} if it has none."""
        last_row: Row = {}
        for terminal_line in split_terminal_lines([line]):
            last_row = self.parse_line(terminal_line[:_MAX_LINE_CHARS]) or last_row
        return last_row

    @abstractmethod
    def parse_line(self, line: str) -> Row:
        """The values of a line that a terminal shows; {} if it has none."""


def parse_number(text: str) -> RowValue:
    """An integer or a finite number; None for nan and infinity. ValueError if the text is not a number."""
    return int(text) if text.isdecimal() else parse_finite(text)


def parse_finite(text: str) -> float | None:
    """A number; None for nan and infinity. ValueError if the text is not a number."""
    value = float(text)
    return value if math.isfinite(value) else None


def drop_non_finite(value: RowValue) -> RowValue:
    """The value; None for nan and infinity, which JSON cannot hold: in a row they are always None."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
