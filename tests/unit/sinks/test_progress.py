"""The progress of a running job: rows that come fast are summarized, with the finished percentage."""

import time
from types import SimpleNamespace

import pytest

from torchyard.model.event import RowsRead
from torchyard.sinks import progress
from torchyard.sinks.progress import OutputProgress, Progress, ProgressUpdate


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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of the module, whose `now` a test sets."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_program_without_metrics_is_summarized_once_a_minute(clock: SimpleNamespace) -> None:
    """After each minute with news there is one summary: the last state of rank 0's last line, and its collectives."""
    summary = OutputProgress()
    bar = "\r 10%|█ | 10/100\r 20%|██ | 20/100\r   "
    updates: list[str | None] = []
    for now, event in [
        (1.0, RowsRead((), ("start",), 5)),
        (59.0, RowsRead((), (bar,), 1204)),
        (60.0, RowsRead(())),
        (119.0, RowsRead((), ("end",), 1300)),
        (120.0, RowsRead(())),
        (240.0, RowsRead(())),
    ]:
        clock.now = now
        updates.append(summary.add(event))
    assert updates == [
        None,
        None,
        "rank 0: 1,204 collectives done; its last line: 20%|██ | 20/100",
        None,
        "rank 0: 1,300 collectives done; its last line: end",
        None,
    ]


def test_summary_is_short_and_has_no_secret(clock: SimpleNamespace) -> None:
    """A line of any length is cut, and a secret in it is masked; without a record the collectives are left out."""
    summary = OutputProgress()
    clock.now = 60.0
    text = summary.add(RowsRead((), (f"API_TOKEN=hunter2hunter2 \x1b[2J{'x' * 9000}",)))
    assert text is not None
    assert text.startswith("rank 0: its last line: API_TOKEN=**** ")
    assert len(text) < 250
    assert "\x1b" not in text


def test_rows_end_the_summaries(clock: SimpleNamespace) -> None:
    """A program whose rows are read reports its progress by them."""
    summary = OutputProgress()
    clock.now = 60.0
    assert summary.add(RowsRead(({"epoch": 1},), ("epoch 1",), 7)) is None
    clock.now = 120.0
    assert summary.add(RowsRead((), ("epoch 1",), 9)) is None
