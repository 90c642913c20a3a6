"""A run's reporter that keeps the pages that it publishes."""

from collections.abc import Callable

from torchyard.run.reporter import LocalReporter


class PageReporter(LocalReporter):
    """Keeps the last page of each name."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: dict[str, str] = {}

    def show_page(self, name: str, render: Callable[[], str]) -> None:
        self.pages[name] = render()
