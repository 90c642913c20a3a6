"""Escape text from programs, hosts and clusters before it is shown on a terminal or in Markdown.

In every function `max_chars` limits the length of the text before it is escaped; 0 is no limit.
"""

import html
import re
import sys
from collections.abc import Sequence

from torchyard.common.text import is_numeric_column

# Sequences that a terminal executes (CSI; OSC, DCS and the like up to their end), then the remains of incomplete ones:
# the control characters C0 except tab and newline, C1, and those that change the direction of writing.
_CONTROL_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]{0,4096}(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]{0,8}[0-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
# Everything that has a meaning in GitHub's Markdown, which Prefect's pages use; bare addresses become links too.
_MARKDOWN_MARK = re.compile(r"[\\`*_\[\]<|~&@]|:(?=//)|(?<=www)\.", re.IGNORECASE)
_BLOCK_MARK = re.compile(r"^(?:(?P<mark>[-+=#>])|(?P<number>\d{1,9})(?=[.)]))")


def strip_control_codes(text: str) -> str:
    """The text without control codes, for a terminal; tabs and newlines are kept."""
    return _CONTROL_SEQUENCE.sub("", text)


def single_line(text: str, max_chars: int = 0) -> str:
    """The text in one line, without control codes; if it is longer than `max_chars`, its middle is left out."""
    if max_chars:
        text = shorten_text(text, 2 * max_chars)  # a line of a program may have a megabyte, and the pattern is slow
    return shorten_text(" ".join(strip_control_codes(text).split("\n")), max_chars)


def shorten_text(text: str, max_chars: int) -> str:
    """The text, or its two ends if it is longer than `max_chars`."""
    if not max_chars or len(text) <= max_chars:
        return text
    head_chars = (max_chars - 4) // 2
    tail_chars = (max_chars - 5) // 2
    return f"{text[:head_chars]} ... {text[-tail_chars:]}"


def escape_markdown(text: str, max_chars: int = 0) -> str:
    """The text as one line of a page, or one cell of its tables, in which nothing is markup."""
    escaped = _MARKDOWN_MARK.sub(r"\\\g<0>", single_line(text, max_chars).lstrip())
    return _BLOCK_MARK.sub(_escape_block_mark, escaped)


def _escape_block_mark(match: re.Match[str]) -> str:
    """`\\-` for `-`; `1\\` for the number in `1.`, so that the dot after it is escaped."""
    return f"{match['number'] or ''}\\{match['mark'] or ''}"


def escape_paragraph(text: str, max_chars: int = 0) -> str:
    """The text as lines of a page; two spaces at the end of each keep the line break."""
    return "  \n".join(escape_markdown(line) for line in shorten_text(text, max_chars).split("\n"))


def format_code(text: str, max_chars: int = 0) -> str:
    """The text as inline code, for a page or a cell of a table. Its fence is longer than any backticks inside."""
    content = single_line(text, max_chars)
    ticks = "`" * (_count_longest_ticks([content]) + 1)
    space = " " if content[:1] in ("", "`") or content[-1:] == "`" else ""
    return f"{ticks}{space}{content}{space}{ticks}".replace("|", "\\|")


def format_code_block(lines: Sequence[str], max_chars: int = 0) -> list[str]:
    """The lines of a code block, which shows the text unchanged. Its fence is longer than any backticks inside."""
    safe_lines = [single_line(line, max_chars) for line in lines]
    ticks = "`" * max(3, _count_longest_ticks(safe_lines) + 1)
    return [ticks, *safe_lines, ticks]


def fold_lines(summary: str, lines: Sequence[str]) -> str:
    """A folded section of a page: a reader sees `summary`, and the lines unchanged after a click.

    `<pre>` begins its own line: Markdown then takes everything as text up to `</pre>`, which no escaped line contains.
    In any other HTML block a blank line would end the block, and what follows it would be markup.
    """
    safe_lines = [html.escape(single_line(line)) for line in lines]
    safe_summary = html.escape(single_line(summary))
    return "\n".join(
        [f"<details><summary>{safe_summary}</summary>", "", "<pre>", *safe_lines, "</pre>", "", "</details>"]
    )


def format_markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table of a page; columns of numbers are on the right."""
    rulers: list[str] = []
    for index in range(len(header)):
        rulers.append("---:" if is_numeric_column(row[index] for row in rows) else "---")
    cells = [[escape_markdown(cell) for cell in row] for row in (header, *rows)]
    table_lines = [f"| {' | '.join(row)} |" for row in cells]
    return [table_lines[0], f"|{'|'.join(rulers)}|", *table_lines[1:]]


def _count_longest_ticks(lines: Sequence[str]) -> int:
    """The length of the longest run of backticks; 0 if there is none."""
    longest = 0
    for line in lines:
        for ticks in re.findall(r"`+", line):
            longest = max(longest, len(ticks))
    return longest


def escape_unencodable_output() -> None:
    """Make stdout and stderr print characters that the locale lacks as `\\u2192`.

    Otherwise such a character in a program's line would raise UnicodeEncodeError and end the run.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
