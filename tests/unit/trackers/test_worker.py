"""The thread between a run and a tracker: each row is written once, and a failing tracker does not delay the run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

import pytest

from tests.experiments import build_experiment, build_experiment_end, build_points
from tests.waiting import wait_until
from torchyard.trackers import worker as worker_module
from torchyard.trackers.tracker import Experiment, ExperimentEnd, MetricPoint
from torchyard.trackers.worker import TrackerWorker


class FakeTracker:
    """Keeps the steps that it gets; `on_call` is called first with the method's name, and may raise or hang."""

    def __init__(self, on_call: Callable[[str], object] | None = None) -> None:
        self.steps: list[int] = []
        self.open_count = 0
        self.end = ""
        self._on_call = on_call or (lambda _: None)

    def open(self, experiment: Experiment) -> None:
        self._on_call("open")
        self.open_count += 1

    def write(self, points: Sequence[MetricPoint]) -> None:
        self._on_call("write")
        self.steps += [point.step for point in points]

    def close(self, end: ExperimentEnd) -> None:
        self._on_call("close")
        self.end = end.end


@pytest.fixture(autouse=True)
def short_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_BATCH_INTERVAL_S", "_RETRY_INTERVAL_S", "_LAST_RETRY_INTERVAL_S"):
        monkeypatch.setattr(worker_module, name, 0.01)


def start_worker(tmp_path: Path, tracker: FakeTracker, attempt: int, *steps: int) -> TrackerWorker:
    """A worker for `tracker`, which gets a row for each step."""
    worker = TrackerWorker("fake", tracker, build_experiment(tmp_path))
    for point in build_points(*steps):
        worker.add(attempt, point)
    return worker


def test_rows_and_end_are_written_in_order(tmp_path: Path) -> None:
    """Rows are written while the run is open, the remaining rows and the end when it ends."""
    tracker = FakeTracker()
    worker = start_worker(tmp_path, tracker, 1, 1, 2)
    wait_until(lambda: tracker.steps == [1, 2])
    worker.add(1, build_points(3)[0])
    assert worker.finish(build_experiment_end(), 10) is None
    assert (tracker.open_count, tracker.steps, tracker.end) == (1, [1, 2, 3], "succeeded")


def test_process_that_takes_over_repeats_no_row(tmp_path: Path) -> None:
    """A new process reads the job's log from its beginning, and writes only the rows that were not written."""
    start_worker(tmp_path, FakeTracker(), 2, 1, 2)
    wait_until(lambda: [path for path in tmp_path.glob("metrics-to-fake.json") if '"rows": 2' in path.read_text()])
    successor = FakeTracker()
    worker = start_worker(tmp_path, successor, 2, 1, 2, 3)
    assert worker.finish(build_experiment_end(), 10) is None
    assert successor.steps == [3]


def test_next_attempt_starts_with_its_first_row(tmp_path: Path) -> None:
    """Rows of another attempt are written, also if there are as many of them."""
    tracker = FakeTracker()
    worker = start_worker(tmp_path, tracker, 1, 1, 2)
    for point in build_points(1, 2, 3):
        worker.add(2, point)
    assert worker.finish(build_experiment_end(), 10) is None
    assert tracker.steps == [1, 2, 1, 2, 3]


def test_tracker_that_was_down_gets_every_row(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first failure is logged as a warning, and the rows are written later."""
    caplog.set_level("INFO")
    failures = iter(["open", "open", "write"])

    def fail(method: str) -> None:
        if next(failures, None):
            raise ConnectionError("no server")

    tracker = FakeTracker(fail)
    worker = start_worker(tmp_path, tracker, 1, 1, 2)
    wait_until(lambda: tracker.steps)
    assert worker.finish(build_experiment_end(), 10) is None
    assert (tracker.steps, tracker.end) == ([1, 2], "succeeded")
    warnings = [message for message in caplog.messages if "ConnectionError" in message]
    assert warnings == ["metrics_to: fake: ConnectionError: no server (retrying; the job is not affected)"]
    assert "metrics_to: fake works again" in caplog.messages


@pytest.mark.parametrize(("hangs", "reason"), [(True, "no answer for 0 s"), (False, "ConnectionError: no server")])
def test_rows_that_were_not_written_are_reported(tmp_path: Path, hangs: bool, reason: str) -> None:
    """A tracker that hangs delays the end of the run only by the timeout, and is reported."""
    stop_event = Event()
    failed = Event()

    def fail(method: str) -> None:
        if hangs:
            stop_event.wait(60)
        failed.set()
        raise ConnectionError("no server")

    worker = start_worker(tmp_path, FakeTracker(fail), 1, 1, 2)
    assert hangs or failed.wait(30)
    assert (
        worker.finish(build_experiment_end(), 0.2) == f"fake has not recorded 2 rows and the end of the run: {reason}"
    )
    stop_event.set()


def test_rows_beyond_the_limit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows above the limit are dropped, so that memory is bounded, and the loss is reported."""
    monkeypatch.setattr(worker_module, "MAX_WAITING_ROWS", 2)
    stop_event = Event()
    worker = start_worker(tmp_path, FakeTracker(lambda _: stop_event.wait(60)), 1, 1, 2, 3, 4, 5)
    stop_event.set()
    assert worker.finish(build_experiment_end(), 10) == "fake has not recorded 3 rows: too many rows at once"
