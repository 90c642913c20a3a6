"""The log of a run: rows as lines, and the report."""

import io
import logging
import time
from types import SimpleNamespace

import pytest

from tests.builders.reports import short_report
from torchyard.model.event import AttemptStarted, EndReached, RankFailed, ReportWritten, RowsRead, WaitEnded
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
    sink.take(RowsRead((), ("step 3", " "), 12))
    assert caplog.messages == ["rank 0: 12 collectives done; its last line: step 3"]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (
            RankFailed("node-0", 1, 1, None, False, ("Traceback", "KeyError: 1"), (0, 2, 3)),
            "rank 1 on node-0 printed a traceback; ranks 0, 2-3 print the same:\n  | Traceback\n  | KeyError: 1",
        ),
        (
            RankFailed("node-0", 1, 1, 1, True, (), (2,)),
            "rank 1 on node-0 has ended with exit code 1; rank 2 prints the same",
        ),
        (
            RankFailed("node-0", 1, None, -9, True, ("epoch 3",)),
            "local rank 1 on node-0 was ended by SIGKILL; its last lines:\n  | epoch 3",
        ),
        (RankFailed("node-0", 1, 1, None, True, ("x",)), "rank 1 on node-0 has ended; its last lines:\n  | x"),
        (RankFailed("worker-1", None, None, 3, True, ()), "worker-1 has ended with exit code 3"),
    ],
)
def test_failed_rank_is_one_record(caplog: pytest.LogCaptureFixture, event: RankFailed, message: str) -> None:
    """A rank that failed is one record: how it ended, which ranks print the same, and its lines."""
    LogSink().take(event)
    assert caplog.messages == [message]


class Terminal(io.StringIO):
    """An output that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("output", "printed"),
    [(io.StringIO(), "epoch \x1b[1m1\nAPI_TOKEN=****\n"), (Terminal(), "epoch 1\nAPI_TOKEN=****\n")],
)
def test_followed_lines_replace_the_summaries(
    caplog: pytest.LogCaptureFixture, output: io.StringIO, printed: str
) -> None:
    """Rank 0's lines are printed as they are, masked and on a terminal without control codes; no row is a log line."""
    caplog.set_level(logging.INFO)
    sink = LogSink(output)
    sink.take(RowsRead(({"epoch": 1},), ("epoch \x1b[1m1", "API_TOKEN=hunter2hunter2")))
    sink.take(RowsRead(()))
    sink.take(WaitEnded())
    assert output.getvalue() == printed
    assert caplog.messages == []
