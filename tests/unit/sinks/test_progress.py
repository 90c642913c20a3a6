"""The progress of a running job: rows that come fast are summarized, with the finished percentage."""

import time
from types import SimpleNamespace

import pytest

from torchyard.sinks import progress
from torchyard.sinks.progress import Progress, ProgressUpdate


def test_row_is_a_line_and_a_percentage() -> None:
    """Epoch 1 of 8 is 12.5 percent, and its values are one line."""
    assert Progress().add([{"epoch": 1, "epochs": 8, "loss": 0.25}]) == ProgressUpdate(
        "epoch 1: loss 0.25", "epoch 1 of 8", 12.5
    )


def test_progress_names_the_key_that_has_a_total() -> None:
    """If a row has a total only for its steps, the progress counts steps; without a total there is none."""
    update = Progress().add([{"epoch": 3, "step": 50, "steps": 200}])
    assert update
    assert update[1:3] == ("step 50 of 200", 25.0)
    update = Progress().add([{"epoch": 3}])
    assert update
    assert update[1:3] == (None, None)


def test_rows_that_come_fast_are_one_update() -> None:
    """Of the rows between two updates only the last one counts, at the latest when the job has ended."""
    summary = Progress(report_interval_s=60.0)
    updates = [summary.add([{"epoch": epoch, "epochs": 4}]) for epoch in (1, 2, 3, 4)]
    updates += [summary.flush(), summary.flush()]
    assert [update and update.percent for update in updates] == [25.0, None, None, None, 100.0, None]


def test_progress_includes_the_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After one more epoch of 60 s, the remaining six take about six minutes."""
    now = time.monotonic()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    summary = Progress()
    first = summary.add([{"epoch": 1, "epochs": 8, "loss": 0.5}])
    now += 60
    second = summary.add([{"epoch": 2, "epochs": 8, "loss": 0.25}])
    assert first
    assert second
    assert (first.sentence, second.sentence) == ("epoch 1 of 8", "epoch 2 of 8, about 6 min 00 s left")


def test_poll_without_rows_is_no_update() -> None:
    """A poll without rows has nothing to show, and neither has the end of a job without rows."""
    summary = Progress()
    assert (summary.add([]), summary.flush()) == (None, None)


def test_long_row_is_cut_and_loses_its_escapes() -> None:
    """A program cannot fill or change the terminal: a line has at most 500 characters and no control codes."""
    update = Progress().add([{"epoch": 1, "comment": f"\x1b[2J{'x' * 9000}"}])
    assert update
    assert len(update.line) <= 500
    assert "\x1b" not in update.line
