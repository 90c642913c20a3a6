"""The log of a run: rows as lines, and the report."""

import logging
import time
from types import SimpleNamespace

import pytest

from tests.builders.reports import short_report
from torchyard.model.event import AttemptStarted, EndReached, ReportWritten, RowsRead, WaitEnded
from torchyard.sinks import progress
from torchyard.sinks.log import LogSink


def test_rows_and_report_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The first row of each attempt is a line at once, the last one at the end of the wait, and the report follows."""
    caplog.set_level(logging.INFO)
    sink = LogSink()
    for number in (1, 2):
        sink.take(AttemptStarted(number, "job"))
        sink.take(RowsRead(({"epoch": 1, "loss": 0.25},)))
        sink.take(RowsRead(({"epoch": 2, "loss": 0.125},)))
        sink.take(WaitEnded())
    report = short_report()
    sink.take(EndReached(report))
    assert caplog.messages == ["epoch 1: loss 0.25", "epoch 2: loss 0.125"] * 2
    sink.take(ReportWritten(report))
    assert report.sentence in caplog.messages[-1]


@pytest.mark.parametrize(("end", "level"), [("succeeded", "INFO"), ("cancelled", "INFO"), ("failed", "ERROR")])
def test_report_of_a_failed_run_is_an_error(caplog: pytest.LogCaptureFixture, end: str, level: str) -> None:
    """A failed report is logged as an error, which filters of logs find; a cancel is what the user wanted."""
    caplog.set_level(logging.INFO)
    LogSink().take(ReportWritten(short_report().model_copy(update={"end": end})))
    assert [record.levelname for record in caplog.records] == [level]


def test_job_without_metrics_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a minute without rows the log has rank 0's last line."""
    caplog.set_level(logging.INFO)
    sink = LogSink()
    sink.take(AttemptStarted(1, "job"))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 60))
    sink.take(RowsRead((), "step 3", 12))
    assert caplog.messages == ["rank 0: 12 collectives done; its last line: step 3"]
