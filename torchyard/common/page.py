"""A page as data: its blocks are rendered as text for a terminal, as Markdown for Prefect, and as JSON for programs."""

import base64
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torchyard.common.escaping import (
    escape_markdown,
    escape_paragraph,
    fold_lines,
    format_code,
    format_code_block,
    format_markdown_table,
    single_line,
)
from torchyard.common.text import align_columns

_LABEL_CHARS = 12  # the width of the labels of entries on a terminal
_INDENT = "  "


class Block(Protocol):
    """A part of a page. Its fields are data, and their texts may come from programs: the renderers escape them."""

    def render_text(self) -> list[str]:
        """The lines for a terminal, without control codes."""

    def render_markdown(self) -> list[str]:
        """The lines as Markdown of GitHub's kind, in which no text is markup."""

    def _asdict(self) -> dict[str, Any]: ...


class Heading(NamedTuple):
    """The title of a section."""

    text: str

    def render_text(self) -> list[str]:
        return [f"{_INDENT}{single_line(self.text)}"]

    def render_markdown(self) -> list[str]:
        return [f"## {escape_markdown(self.text)}"]


class Paragraph(NamedTuple):
    """One or several lines of text. `label`: what it is; "" if nothing precedes it."""

    text: str
    label: str = ""

    def render_text(self) -> list[str]:
        label = f"{self.label:<{_LABEL_CHARS}} " if self.label else ""
        first, *others = self.text.split("\n")
        # Further lines are indented, so that none of them looks like an entry.
        return [f"{_INDENT}{label}{single_line(first)}", *(f"      {single_line(line)}" for line in others)]

    def render_markdown(self) -> list[str]:
        label = f"**{escape_markdown(self.label)}**: " if self.label else ""
        return [f"{label}{escape_paragraph(self.text)}"]


class Entries(NamedTuple):
    """Rows that begin with a label of few characters, such as the steps of a run. There is at least one row.

    header: of the table as Markdown; a terminal shows none.
    label: of all rows on a terminal, if they do not contain their own; Markdown has the header instead.
    code_column: the column of each row that Markdown shows as code; None if none is code.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    label: str = ""
    code_column: int | None = None

    def render_text(self) -> list[str]:
        rows = [(self.label, *row) for row in self.rows] if self.label else self.rows
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines: list[str] = []
        for label, *cells in rows:
            padded = [single_line(cell).ljust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            lines.append(f"{_INDENT}{single_line(label):<{_LABEL_CHARS}} {_INDENT.join(padded).rstrip()}")
        return lines

    def render_markdown(self) -> list[str]:
        table = format_markdown_table(self.header, self.rows)
        if self.code_column is None:
            return table
        return [*table[:2], *map(self._render_code_row, self.rows)]

    def _render_code_row(self, row: Sequence[str]) -> str:
        cells: list[str] = []
        for column, cell in enumerate(row):
            cells.append(format_code(cell) if column == self.code_column else escape_markdown(cell))
        return f"| {' | '.join(cells)} |"


class Table(NamedTuple):
    """Rows in columns under a header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def render_text(self) -> list[str]:
        rows = [[single_line(cell) for cell in row] for row in (self.header, *self.rows)]
        return align_columns(rows)

    def render_markdown(self) -> list[str]:
        return format_markdown_table(self.header, self.rows)


class Items(NamedTuple):
    """A list of short texts."""

    texts: Sequence[str]

    def render_text(self) -> list[str]:
        return [f"{_INDENT}- {single_line(text)}" for text in self.texts]

    def render_markdown(self) -> list[str]:
        return [f"- {escape_markdown(text)}" for text in self.texts]


class Code(NamedTuple):
    """Lines that are shown unchanged."""

    lines: Sequence[str]

    def render_text(self) -> list[str]:
        return [f"{_INDENT}| {single_line(line)}" for line in self.lines]

    def render_markdown(self) -> list[str]:
        return format_code_block(self.lines)


class Folded(NamedTuple):
    """Lines that a reader may unfold; a terminal shows only the summary."""

    summary: str
    lines: Sequence[str]

    def render_text(self) -> list[str]:
        return [f"{_INDENT}{single_line(self.summary)}"]

    def render_markdown(self) -> list[str]:
        return [fold_lines(self.summary, self.lines)]


class Picture(NamedTuple):
    """A picture as SVG; neither a terminal nor JSON shows it."""

    name: str
    svg: str

    def render_text(self) -> list[str]:
        return []

    def render_markdown(self) -> list[str]:
        data = base64.b64encode(self.svg.encode()).decode()
        return [f"![{escape_markdown(self.name)}](data:image/svg+xml;base64,{data})"]


class Page(NamedTuple):
    """A title, and blocks in their order."""

    title: str
    blocks: Sequence[Block]


def render_text(page: Page) -> str:
    """The page for a terminal, without control codes."""
    lines = [single_line(page.title)]
    for block in page.blocks:
        lines += block.render_text()
    return "\n".join(lines)


def render_markdown(page: Page) -> str:
    """The page as Markdown of GitHub's kind, in which no text is markup."""
    paragraphs = [f"# {escape_markdown(page.title)}"]
    paragraphs += ["\n".join(block.render_markdown()) for block in page.blocks]
    return "\n\n".join(paragraphs)


def build_document(page: Page) -> dict[str, object]:
    """The page as a document for json.dumps: each block is an object with its kind and its fields; no pictures."""
    blocks: list[dict[str, object]] = []
    for block in page.blocks:
        if not isinstance(block, Picture):
            document: dict[str, object] = {"kind": type(block).__name__.lower()}
            blocks.append(document | block._asdict())
    return {"title": page.title, "blocks": blocks}
