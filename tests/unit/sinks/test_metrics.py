"""MetricsSink writes the rows of each attempt, and the end of the run, to every tracker."""

import json
from pathlib import Path

from tests.builders.reports import short_report
from tests.conftest import RUN_ID, Write, load
from torchyard.model.event import AttemptStarted, EndReached, RowsRead
from torchyard.run.folder import RunFolder
from torchyard.sinks.metrics import MetricsSink


def read_written(folder: RunFolder) -> dict[str, int]:
    """The attempt and the number of the last row that the tracker has."""
    written: dict[str, int] = json.loads((folder.path / "metrics-to-tensorboard.json").read_text())
    return written


def test_rows_of_the_attempt_are_written(write: Write, folder: RunFolder, tmp_path: Path) -> None:
    """The rows of an attempt and the end of the run are written to the tracker by the end."""
    profile = load(write(metrics_to=[{"tensorboard": {"folder": str(tmp_path / "boards")}}]))
    sink = MetricsSink(profile, RUN_ID, folder)
    sink.take(AttemptStarted(2, "sample-2"))
    sink.take(RowsRead(({"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}, {"comment": "no number"})))
    sink.take(EndReached(short_report()))
    assert sink.finish(30) == []
    assert read_written(folder) == {"attempt": 2, "row": 2}
    assert list((tmp_path / "boards").rglob("events.out.*"))


def test_run_without_an_attempt_leaves_nothing_in_the_trackers(write: Write, folder: RunFolder, tmp_path: Path) -> None:
    """A run that ends before its first attempt creates no experiment."""
    profile = load(write(metrics_to=[{"tensorboard": {"folder": str(tmp_path / "boards")}}]))
    sink = MetricsSink(profile, RUN_ID, folder)
    sink.take(EndReached(short_report()))
    assert sink.finish(30) == []
    assert not (tmp_path / "boards").exists()


def test_missing_tracker_is_a_finding(write: Write, folder: RunFolder) -> None:
    """Preflight reports a tracker without an address."""
    sink = MetricsSink(load(write(metrics_to=["mlflow"])), RUN_ID, folder)
    assert "failed" in {check.verdict for check in sink.check()}
