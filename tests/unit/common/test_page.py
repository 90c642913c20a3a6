"""A page is data: each block is rendered for a terminal, as Markdown and as JSON, and no text is markup."""

import json

from tests.support.markdown import render_html
from torchyard.common.page import (
    Block,
    Code,
    Entries,
    Folded,
    Heading,
    Items,
    Page,
    Paragraph,
    Picture,
    Table,
    build_document,
    render_markdown,
    render_text,
)

PAGE = Page(
    "a run",
    [
        Paragraph("it broke\nin two places", label="failed"),
        Heading("numbers"),
        Entries(("step", "took", ""), [("submit", "0.5 s", "2 agents"), ("wait", "12.5 s", "")]),
        Entries(("log",), [("/runs/x/log",)], label="log", code_column=0),
        Table(("epoch", "loss"), [("1", "0.5"), ("10", "0.25")]),
        Items(["one", "two"]),
        Code(["Boom: 1"]),
        Folded("the whole plan", ["kind: Job"]),
        Picture("metrics", "<svg>"),
    ],
)


def test_terminal_shows_every_block_but_pictures() -> None:
    """Labels, columns and lists are aligned; what is folded is only named."""
    assert render_text(PAGE).split("\n") == [
        "a run",
        "  failed       it broke",
        "      in two places",
        "  numbers",
        "  submit       0.5 s   2 agents",
        "  wait         12.5 s",
        "  log          /runs/x/log",
        "    epoch  loss",
        "        1   0.5",
        "       10  0.25",
        "  - one",
        "  - two",
        "  | Boom: 1",
        "  the whole plan",
    ]


def test_markdown_shows_every_block() -> None:
    """Each block has its form in Prefect: heading, table, list, code, folded lines and picture."""
    html = render_html(render_markdown(PAGE))
    for part in (
        "<h1>a run</h1>",
        "<strong>failed</strong>: it broke",
        "<h2>numbers</h2>",
        "<td>2 agents</td>",
        "<code>/runs/x/log</code>",
        "<li>two</li>",
        "Boom: 1\n</code></pre>",
        "<summary>the whole plan</summary>",
        "base64,PHN2Zz4=",
    ):
        assert part in html, part


def test_no_text_is_markup() -> None:
    """What a program has printed is neither markup nor a control code, in any block."""
    evil = "\x1b[2J<img src=x> | **a** `b`\n# big"
    blocks: list[Block] = [
        Paragraph(evil),
        Heading(evil),
        Entries((evil, "b"), [(evil, evil)], code_column=1),
        Table((evil,), [(evil,)]),
        Items([evil]),
        Code([evil]),
        Folded(evil, [evil]),
        Picture(evil, ""),
    ]
    page = Page(evil, blocks)
    assert "\x1b" not in render_text(page)
    assert "\n# big" not in render_text(page)
    markdown = render_markdown(page)
    html = render_html(markdown)
    assert "\x1b" not in markdown
    assert "<img src=x" not in html
    assert "<strong>" not in html
    assert html.count("<h1>") == 1


def test_document_is_json_without_pictures() -> None:
    """The JSON of a page has the kind and the fields of each block; a picture is left out."""
    document = json.loads(json.dumps(build_document(PAGE)))
    assert document["title"] == "a run"
    kinds = [block["kind"] for block in document["blocks"]]
    assert kinds == ["paragraph", "heading", "entries", "entries", "table", "items", "code", "folded"]
    assert document["blocks"][4]["rows"] == [["1", "0.5"], ["10", "0.25"]]
