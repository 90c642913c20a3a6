"""Markdown as a page shows it."""


def render_html(text: str) -> str:
    """The HTML of CommonMark with tables and tags: what Prefect's pages render."""
    from markdown_it import MarkdownIt

    return str(MarkdownIt("commonmark", {"html": True}).enable("table").render(text))
