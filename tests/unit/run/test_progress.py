"""The progress of a running job: rows as log lines, and the finished percentage."""

import logging
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from torchyard.run import progress
from torchyard.run.progress import Progress
from torchyard.run.reporter import LocalReporter


class RecordingReporter(LocalReporter):
    """Records the calls of `show_`."""

    def __init__(self) -> None:
        super().__init__()
        self.percents: list[tuple[str, float]] = []
        self.pages: list[tuple[str, str]] = []

    def show_progress(self, progress: str, percent: float) -> None:
        self.percents.append((progress, percent))

    def show_page(self, name: str, render: Callable[[], str]) -> None:
        self.pages.append((name, render()))


@pytest.fixture
def reporter(caplog: pytest.LogCaptureFixture) -> RecordingReporter:
    caplog.set_level(logging.INFO)
    return RecordingReporter()


def test_row_is_logged_and_shown_as_a_percentage(reporter: RecordingReporter, caplog: pytest.LogCaptureFixture) -> None:
    """Epoch 1 of 8 is shown as 12.5 percent, and its values as one log line."""
    Progress("sample-1", "json-lines", reporter).add_lines(["no row", '{"epoch": 1, "epochs": 8, "loss": 0.25}'])
    assert reporter.percents == [("epoch 1 of 8", 12.5)]
    assert caplog.messages == ["epoch 1: loss 0.25"]


def test_progress_names_the_key_that_has_a_total(reporter: RecordingReporter) -> None:
    """If a row has a total only for its steps, the progress counts steps."""
    Progress("sample-1", "json-lines", reporter).add_lines(['{"epoch": 3, "step": 50, "steps": 200}'])
    assert reporter.percents == [("step 50 of 200", 25.0)]


def test_rows_that_come_fast_are_shown_together(reporter: RecordingReporter, caplog: pytest.LogCaptureFixture) -> None:
    """Of the rows between two reports only the last one is shown, at the latest when the job has ended."""
    progress_reporter = Progress("sample-1", "json-lines", reporter, report_interval_s=60.0)
    for epoch in (1, 2, 3, 4):
        progress_reporter.add_lines([f'{{"epoch": {epoch}, "epochs": 4}}'])
    assert [percent for _, percent in reporter.percents] == [25.0]
    progress_reporter.close()
    progress_reporter.close()
    assert [percent for _, percent in reporter.percents] == [25.0, 100.0]
    assert len(caplog.messages) == 2


def test_progress_includes_the_remaining_time(reporter: RecordingReporter, monkeypatch: pytest.MonkeyPatch) -> None:
    """After one more epoch of 60 s, the remaining six take about six minutes, and the curves are drawn."""
    now = time.monotonic()
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(progress, "time", clock)
    progress_reporter = Progress("sample-1", "json-lines", reporter)
    progress_reporter.add_lines(['{"epoch": 1, "epochs": 8, "loss": 0.5}'])
    now += 60
    progress_reporter.add_lines(['{"epoch": 2, "epochs": 8, "loss": 0.25}'])
    assert [text for text, _ in reporter.percents] == ["epoch 1 of 8", "epoch 2 of 8, about 6 min 00 s left"]
    ((name, page),) = reporter.pages
    assert name == "metrics"
    assert r"| 2 | 0\.25 |" in page
    assert "data:image/svg+xml" in page


def test_line_without_a_row_shows_nothing(reporter: RecordingReporter, caplog: pytest.LogCaptureFixture) -> None:
    """Output without a row is only in the job's log."""
    progress_reporter = Progress("sample-1", "json-lines", reporter)
    progress_reporter.add_lines(["rank 0 of 2"])
    progress_reporter.close()
    assert (reporter.percents, caplog.messages) == ([], [])


def test_long_row_is_cut_and_loses_its_escapes(reporter: RecordingReporter, caplog: pytest.LogCaptureFixture) -> None:
    """A program cannot fill or change the terminal: a line has at most 500 characters and no control codes."""
    Progress("sample-1", "json-lines", reporter).add_lines([f'{{"epoch": 1, "said": "\\u001b[2J{"x" * 9000}"}}'])
    assert len(caplog.messages[0]) <= 500
    assert "\x1b" not in caplog.messages[0]
