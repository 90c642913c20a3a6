"""A format of one's own: the named groups of a regular expression in the profile (`metrics: {pattern: …}`).

No line may stop the launcher: `re` cannot interrupt a search, during which no other thread runs. So `regex` searches,
which has a time limit: a pattern that needs `_MAX_SEARCH_S` for the first `MAX_LINE_CHARS` of a line is given up. A
pattern that is likely to, or that `regex` could need much memory for, is refused before the run.
"""

import re
import re._constants as opcodes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from torchyard.common.escaping import single_line
from torchyard.common.log import get_log
from torchyard.common.packages import need
from torchyard.metrics.rows import Rows, build_metrics
from torchyard.metrics.text import ROW_KEYS, find_row_key, parse_finite, split_terminal_lines
from torchyard.model.errors import MissingPackageError
from torchyard.model.run import Metrics, Row, RowValue

if TYPE_CHECKING:
    import regex

MAX_LINE_CHARS = 1000
_MAX_PATTERN_CHARS = 1000
_MAX_GROUPS = 100  # in each other, they would use up the stack of Python's compiler
_MAX_TEXT_CHARS = 200  # of a value that is not a number
_MAX_SEARCH_S = 0.1  # of a processor; a usual pattern needs a thousandth of it
_REPEATS = (opcodes.MAX_REPEAT, opcodes.MIN_REPEAT, opcodes.POSSESSIVE_REPEAT)
_MAX_NUMBER_CHARS = 30
_PUNCTUATION = ",;:%)]}'\""  # after a number, as in `loss=0.25,`


def find_pattern_problem(pattern: str) -> str | None:
    """Why a pattern cannot be used, as a clause; None if it can."""
    try:
        need("the pattern", "regex")
        expression = _compile(pattern)
    except (MissingPackageError, ValueError) as error:
        return str(error)
    if not expression.groupindex:
        return "needs a named group for each value, such as (?P<loss>[^ ,]+)"
    if _has_nested_repeat(parser.parse(pattern), in_repeat=False):
        return (
            "has a repeat or an alternative inside a repeat, such as (a+)+ or (a|b)*, whose search may take forever: "
            "repeat a single set of characters, such as [^ ]*"
        )
    if expression.search(""):
        return "must not match an empty text: it would match everywhere"
    return None


def _compile(pattern: str) -> re.Pattern[str]:
    """The expression. ValueError with a clause if it is too long, has too many groups, or is not one."""
    if len(pattern) > _MAX_PATTERN_CHARS:
        raise ValueError(f"must have at most {_MAX_PATTERN_CHARS:,} characters, not {len(pattern):,}")
    if pattern.count("(") > _MAX_GROUPS:
        raise ValueError(f"must have at most {_MAX_GROUPS} groups")
    try:
        return re.compile(pattern)
    except (re.error, OverflowError) as error:
        raise ValueError(f"is not a regular expression of Python: {error}") from error


def _has_nested_repeat(node: Any, *, in_repeat: bool) -> bool:
    """Whether a part of a parsed pattern that is repeated can match in several ways.

    Without such a part the time of a search grows at most with a power of the length of the line.
    """
    if isinstance(node, parser.SubPattern | list | tuple):
        if not (isinstance(node, tuple) and node and node[0] in _REPEATS):
            is_choice = isinstance(node, tuple) and bool(node) and node[0] is opcodes.BRANCH
            return (is_choice and in_repeat) or any(_has_nested_repeat(item, in_repeat=in_repeat) for item in node)
        low, high, body = node[1]
        if in_repeat and low != high:
            return True
        return _has_nested_repeat(body, in_repeat=in_repeat or high > 1)
    return False


class PatternReader:
    """Read the rows of one output, line by line, in order; a terminal's redrawn lines count separately.

    All matches in a line are one row, so that `loss=(?P<loss>…)|acc=(?P<acc>…)` finds both values in any order. A group
    that is a number becomes one (nan and infinity become None), another group a text. A pattern without a group of
    ROW_KEYS numbers its rows: `step` counts them. A row that lacks its key belongs to the last one that was printed.
    """

    def __init__(self, pattern: str) -> None:
        """`pattern`: one without a problem (`find_pattern_problem`). MissingPackageError without the package regex."""
        need("metrics.pattern", "regex")
        import regex  # the engine runs without it

        self._expression = regex.compile(pattern)
        self._is_numbered = not any(key in self._expression.groupindex for key in ROW_KEYS)
        self._step = 0
        self._last_key: Row = {}
        self._is_given_up = False

    def __call__(self, line: str) -> Row:
        """The values of a line, those of its last state if it was redrawn; {} if it has none."""
        last_row: Row = {}
        for row in self.read_rows(line):
            last_row = row
        return last_row

    def read_rows(self, line: str) -> Iterator[Row]:
        """The rows of a line, one for each line that a terminal shows."""
        for terminal_line in split_terminal_lines([line]):
            values = self._parse_values(terminal_line)
            if values:
                yield self._add_key(values)

    def _add_key(self, values: Row) -> Row:
        if self._is_numbered:
            self._step += 1
            return {"step": self._step} | values
        key = find_row_key(values)
        if key is None:
            return self._last_key | values
        self._last_key = {key: values[key]}
        return values

    def _parse_values(self, line: str) -> Row:
        values: Row = {}
        for match in self._find_matches(line[:MAX_LINE_CHARS]):
            for name, text in match.groupdict().items():
                if text is not None:
                    values[name] = _parse_value(text)
        return values

    def _find_matches(self, line: str) -> "list[regex.Match[str]]":
        """The matches in a line; empty once the pattern is given up."""
        if self._is_given_up:
            return []
        started_at = time.thread_time()
        matches = []
        try:
            # The time limit of `regex` is for one match.
            for match in self._expression.finditer(line, timeout=_MAX_SEARCH_S):
                matches.append(match)
                if time.thread_time() - started_at > _MAX_SEARCH_S:
                    raise TimeoutError
        except (TimeoutError, MemoryError):
            self._is_given_up = True
            get_log().warning(
                "metrics: the pattern is too slow, and no more rows are read: replace .* by a set of characters, "
                "such as [^=]*; the line: %s",
                single_line(line, _MAX_TEXT_CHARS),
            )
            return []
        return matches


def _parse_value(text: str) -> RowValue:
    """A number, None for nan and infinity, or the start of another text."""
    number_text = text.strip().rstrip(_PUNCTUATION)
    if len(number_text) <= _MAX_NUMBER_CHARS and "_" not in number_text:
        with suppress(ValueError):
            return int(number_text) if number_text.isdecimal() else parse_finite(number_text)
    return single_line(text, _MAX_TEXT_CHARS)


def read_pattern(pattern: str, lines: Iterable[str]) -> Metrics:
    """The metrics that a pattern finds: rows by their key, merged; those before the first key are the summary."""
    reader = PatternReader(pattern)
    rows = Rows()
    summary: Row = {}
    for line in lines:
        for row in reader.read_rows(line):
            key = find_row_key(row)
            if key is None:
                summary |= row
                continue
            earlier = rows.get((key, row[key])) or {}
            rows.put((key, row[key]), earlier | row)
    return build_metrics(rows, summary)
