"""Makes text from programs, hosts and clusters harmless where it is shown: on terminals, in Markdown."""

import html
import re
import sys
from collections.abc import Iterable, Sequence

# Sequences that a terminal obeys (CSI; OSC, DCS and the like up to their end), then what is left of them: the control
# characters C0 except tab and newline, C1, and those that change the direction of writing.
_CONTROL_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]{0,4096}(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]{0,8}[0-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
# Everything that is more than text in GitHub's Markdown, which Prefect's pages use; bare addresses too.
_MARKDOWN_MARK = re.compile(r"[\\`*_\[\]<|~&@]|:(?=//)|(?<=www)\.", re.IGNORECASE)
_BLOCK_MARK = re.compile(r"^(?:(?P<mark>[-+=#>])|(?P<number>\d{1,9})(?=[.)]))")


def strip_control_codes(text: str) -> str:
    """The text for a terminal: of its control codes only tabs and newlines are kept."""
    return _CONTROL_SEQUENCE.sub("", text)


def single_line(text: str, max_chars: int = 0) -> str:
    """The text in one line, without control codes; if it is longer than `max_chars`, it loses its middle."""
    short = shorten_text(text, 2 * max_chars) if max_chars else text  # what others wrote may be a megabyte
    return shorten_text(" ".join(strip_control_codes(short).split("\n")), max_chars)


def shorten_text(text: str, max_chars: int) -> str:
    """The text, or its two ends if it is longer than `max_chars`; 0 is no limit."""
    if not max_chars or len(text) <= max_chars:
        return text
    head_chars, tail_chars = (max_chars - 4) // 2, (max_chars - 5) // 2
    return f"{text[:head_chars]} ... {text[-tail_chars:]}"


def escape_markdown(text: str, max_chars: int = 0) -> str:
    """The text as one line of a page, or one cell of its tables, in which nothing is markup."""
    escaped = _MARKDOWN_MARK.sub(r"\\\g<0>", single_line(text, max_chars).lstrip())
    return _BLOCK_MARK.sub(lambda match: f"{match['number'] or ''}\\{match['mark'] or ''}", escaped)


def escape_paragraph(text: str, max_chars: int = 0) -> str:
    """The text as lines of a page, each in a line of its own."""
    return "  \n".join(escape_markdown(line) for line in shorten_text(text, max_chars).split("\n"))


def format_code(text: str, max_chars: int = 0) -> str:
    """The text as inline code, in a page or in a cell of a table."""
    content = single_line(text, max_chars)
    ticks = "`" * (_count_longest_ticks([content]) + 1)
    space = " " if content[:1] in ("", "`") or content[-1:] == "`" else ""
    return f"{ticks}{space}{content}{space}{ticks}".replace("|", "\\|")


def format_code_block(lines: Sequence[str], max_chars: int = 0) -> list[str]:
    """A code block of a page, which shows lines as they are."""
    safe_lines = [single_line(line, max_chars) for line in lines]
    ticks = "`" * max(3, _count_longest_ticks(safe_lines) + 1)
    return [ticks, *safe_lines, ticks]


def fold_lines(summary: str, lines: Sequence[str]) -> str:
    """Lines of a page that are shown as they are, once a reader unfolds them: an HTML block has no empty line."""
    safe_lines = [html.escape(single_line(line)) or " " for line in lines]
    return "\n".join([f"<details><summary>{html.escape(summary)}</summary><pre>", *safe_lines, "</pre></details>"])


def format_markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], ruler: str = "---") -> list[str]:
    """The lines of a table of a page; `ruler` aligns its columns."""
    cells = [[escape_markdown(cell) for cell in row] for row in (header, *rows)]
    table_lines = [f"| {' | '.join(row)} |" for row in cells]
    return [table_lines[0], f"|{ruler}" * len(header) + "|", *table_lines[1:]]


def _count_longest_ticks(lines: Sequence[str]) -> int:
    return max((len(run) for line in lines for run in re.findall(r"`+", line)), default=0)


def escape_unencodable_output() -> None:
    """Let stdout and stderr write letters that the locale lacks as `\\u2192`: they must not end a run."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
