"""A sink that keeps the pages that it publishes."""

from collections.abc import Callable

from torchyard.sinks.pages import PageSink


class KeptPages(PageSink):
    """Keeps the last page of each name, and every progress."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: dict[str, str] = {}
        self.sentences: dict[str, str] = {}
        self.progress: list[tuple[str, float]] = []

    def show_page(self, name: str, sentence: str, render: Callable[[], str]) -> None:
        self.sentences[name] = sentence
        self.pages[name] = render()

    def show_progress(self, progress: str, percent: float) -> None:
        self.progress.append((progress, percent))
