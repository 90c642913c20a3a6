"""Markdown, rendered as Prefect's pages render it."""


def render_html(text: str) -> str:
    """The HTML of CommonMark with tables and inline HTML, which Prefect's pages allow."""
    from markdown_it import MarkdownIt

    return str(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))
