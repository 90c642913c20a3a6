"""Text of programs and hosts, escaped for a terminal and for Markdown."""

import html

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.markdown import render_html
from torchyard.common.escaping import (
    escape_markdown,
    escape_paragraph,
    fold_lines,
    format_code,
    format_code_block,
    shorten_text,
    single_line,
    strip_control_codes,
)


@pytest.mark.parametrize(
    "text",
    [
        "# head",
        "- item",
        "1. one",
        "+ x",
        "> quoted",
        "===",
        "<b>x</b>",
        "&lt;b&gt;",
        "[a](b)",
        "![a](b)",
        "*a*",
        "_a_",
        "**a**",
        "`a`",
        "a|b",
        "<https://x.org>",
        "\\*a\\*",
        "    code",
        "~~a~~",
        "a_b_c",
    ],
)
def test_a_quoted_line_is_shown_as_it_was_written(text: str) -> None:
    """Escaped text is rendered by Markdown exactly as it was written."""
    assert html.unescape(render_html(escape_markdown(text))).strip() == f"<p>{text.strip()}</p>"


@given(st.text(max_size=60))
@settings(max_examples=200)
def test_a_fence_shows_any_text(text: str) -> None:
    """A code block's fence is longer than any run of backticks inside."""
    assert render_html("\n".join(format_code_block([text, "end"]))).count("<pre>") == 1


@given(
    st.lists(
        st.text(max_size=30) | st.sampled_from(["", " ", "\t", "</pre>", "[a](https://x.org)", "# head"]), max_size=6
    )
)
@settings(max_examples=200)
def test_folded_lines_stay_text(lines: list[str]) -> None:
    """Folded lines are shown as they were written, also after a blank line, which ends other HTML blocks."""
    shown = "".join(html.escape(single_line(line)) + "\n" for line in lines)
    expected = f"<details><summary>log</summary>\n<pre>\n{shown}</pre>\n</details>"
    assert render_html(fold_lines("log", lines)).strip() == expected


def test_code_holds_backticks_and_bars() -> None:
    """Inline code may contain any character, as a path may."""
    assert render_html(format_code("a`b")) == "<p><code>a`b</code></p>\n"
    assert format_code("a|b") == "`a\\|b`"


def test_addresses_and_mentions_are_not_links() -> None:
    """URLs and addresses are escaped, because GitHub's Markdown turns them into links."""
    assert escape_markdown("see https://x.org, www.x.org, a@x.org") == "see https\\://x.org, www\\.x.org, a\\@x.org"


def test_several_lines_stay_several_lines() -> None:
    """A text of several lines, such as preflight's findings, keeps its line breaks."""
    assert render_html(escape_paragraph("2 failed\n  # a: b")) == "<p>2 failed<br />\n# a: b</p>\n"


def test_control_codes_except_tab_and_newline_are_removed() -> None:
    """Escape sequences for colours, titles and links are removed, incomplete ones too; text in any alphabet stays."""
    text = "a\tb\nc \x1b[1;31mred\x1b[0m \x1b]8;;http://x\x1b\\link\x1b]8;;\x07 \x1bc \x1b] \x9d0;t\x9c \u6f22 e\u0301"
    assert strip_control_codes(text) == "a\tb\nc red link    \u6f22 e\u0301"


def test_shortened_text_keeps_both_ends() -> None:
    """The middle of a text that is too long is left out; 0 is no limit."""
    assert shorten_text("abcdefghijkl", 11) == "abc ... jkl"
    assert shorten_text("abc", 11) == "abc"
    assert shorten_text("abc", 0) == "abc"
