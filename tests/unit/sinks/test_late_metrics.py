"""Rows and ends that a tracker did not take: a sweep writes them, or the launcher that continues the run."""

import threading
from pathlib import Path

import pytest

from tests.builders.reports import short_report
from tests.conftest import RUN_ID, Write, load
from tests.support.waiting import wait_until
from torchyard.model.event import AttemptStarted, EndReached, RowsRead
from torchyard.model.observe import Trackers
from torchyard.model.profile import Profile
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.sinks import late_metrics
from torchyard.sinks.late_metrics import LATE_METRICS, send_late_metrics, take_over_late_rows
from torchyard.sinks.metrics import MetricsSink
from torchyard.trackers.registry import create_trackers
from torchyard.trackers.tracker import Tracker

pytest.importorskip("tensorboard", reason="there is no tensorboard")


@pytest.fixture
def boards(tmp_path: Path) -> Path:
    """The folder of TensorBoard's data, where there is a file as long as the tracker does not work."""
    boards = tmp_path / "boards"
    boards.write_text("a file")
    return boards


@pytest.fixture
def profile(write: Write, boards: Path) -> Profile:
    return load(write(metrics_to=[{"tensorboard": {"folder": str(boards)}}]))


def keep_metrics(profile: Profile, name: str = "sample-a1b2c3d4") -> RunFolder:
    """The folder of a failed run, whose tracker has not taken its two rows and its end."""
    folder = RunFolder(runs_folder() / name)
    folder.path.mkdir(parents=True)
    folder.record_event("start", entry="fresh")
    sink = MetricsSink(profile, RUN_ID, folder)
    sink.take(AttemptStarted(1, "sample-1"))
    sink.take(RowsRead(({"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25})))
    sink.take(EndReached(short_report("failed")))
    (loss,) = sink.finish(0.1)
    assert "tensorboard has not recorded 2 rows and the end of the run" in loss
    wait_until(lambda: "metrics_to: tensorboard" not in {thread.name for thread in threading.enumerate()})
    folder.record_event("end", end="failed", by="flow", sentence="it broke", left=[])
    return folder


def read_steps(boards: Path, name: str = "sample-a1b2c3d4") -> list[int]:
    """The steps of the loss, as TensorBoard reads them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(boards / name))
    events.Reload()
    return [point.step for point in events.Scalars("loss")]


def test_metrics_are_written_once_their_tracker_works(profile: Profile, boards: Path) -> None:
    """The rows and the end are written by the first sweep that the tracker accepts, once."""
    folder = keep_metrics(profile)
    send_late_metrics()
    assert [len(item.rows) for item in LATE_METRICS.read(folder.path) or ()] == [2]
    boards.unlink()
    send_late_metrics()
    send_late_metrics()
    assert (read_steps(boards), LATE_METRICS.list_folders()) == ([1, 2], [])


def test_run_that_goes_on_is_left_to_its_launcher(profile: Profile, boards: Path) -> None:
    """A sweep writes nothing of a run that was continued; its launcher writes the rows that were kept, once."""
    folder = keep_metrics(profile)
    folder.record_event("start", entry="retry")
    boards.unlink()
    send_late_metrics()
    assert not boards.exists()
    sink = MetricsSink(profile, RUN_ID, folder)
    sink.take(AttemptStarted(2, "sample-2"))
    sink.take(RowsRead(({"step": 3, "loss": 0.125},)))
    sink.take(EndReached(short_report()))
    assert sink.finish(30) == []
    assert (read_steps(boards), LATE_METRICS.list_folders()) == ([1, 2, 3], [])


def test_kept_end_does_not_hold_for_a_continued_run(profile: Profile) -> None:
    """A launcher that continues the run keeps the rows until they are written, but not the end."""
    folder = keep_metrics(profile)
    rows = take_over_late_rows(folder.path)["tensorboard"]
    assert [(row.number, row.point.step) for row in rows] == [((1, 1), 1), ((1, 2), 2)]
    assert [(item.rows, item.end) for item in LATE_METRICS.read(folder.path) or ()] == [(rows, None)]


def test_tracker_that_fails_costs_one_try(profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs with one tracker that does not work cost one try of it in a sweep."""
    folders = [keep_metrics(profile), keep_metrics(profile, "sample-00000000")]
    tried: list[Trackers] = []

    def create_counted(settings: Trackers) -> dict[str, Tracker]:
        tried.append(settings)
        return create_trackers(settings)

    monkeypatch.setattr(late_metrics, "create_trackers", create_counted)
    send_late_metrics()
    assert len(tried) == 1
    assert [bool(LATE_METRICS.read(folder.path)) for folder in folders] == [True, True]


def test_old_metrics_are_dropped(profile: Profile, boards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics of a week ago are not written any more."""
    keep_metrics(profile)
    monkeypatch.setattr(late_metrics, "_MAX_AGE_S", 0.0)
    boards.unlink()
    send_late_metrics()
    assert (boards.exists(), LATE_METRICS.list_folders()) == (False, [])


def test_unreadable_journal_keeps_the_metrics(profile: Profile, boards: Path) -> None:
    """Metrics of a run whose journal cannot be read wait: it may go on."""
    folder = keep_metrics(profile)
    journal = folder.path / "journal"
    journal.unlink()
    journal.mkdir()
    boards.unlink()
    send_late_metrics()
    assert (boards.exists(), LATE_METRICS.list_folders()) == (False, [folder.path])
