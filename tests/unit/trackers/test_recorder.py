"""What a run writes to a tracker: each row once, and a failing tracker does not delay the run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

import pytest

from tests.builders.experiments import build_experiment, build_experiment_end, build_points
from tests.support.waiting import wait_until
from torchyard.common.outbox import OutboxSettings
from torchyard.trackers import recorder as recorder_module
from torchyard.trackers.recorder import TrackerRecorder, Unrecorded
from torchyard.trackers.tracker import Experiment, ExperimentEnd, MetricPoint


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


SETTINGS = OutboxSettings(collect_s=0.01, retry_s=0.01, last_retry_s=0.01, max_batch=500)


def start_recorder(tmp_path: Path, tracker: FakeTracker, attempt: int, *steps: int) -> TrackerRecorder:
    """A recorder for `tracker`, which gets a row for each step."""
    recorder = TrackerRecorder("fake", tracker, build_experiment(tmp_path), SETTINGS)
    for point in build_points(*steps):
        recorder.add(attempt, point)
    return recorder


def end_run(recorder: TrackerRecorder, timeout_s: float = 10) -> str | None:
    """Write the end of the run; the sentence about what is not recorded."""
    recorder.end(build_experiment_end())
    unrecorded = recorder.finish(timeout_s)
    return unrecorded.sentence if unrecorded else None


def test_rows_and_end_are_written_in_order(tmp_path: Path) -> None:
    """Rows are written while the run is open, the remaining rows and the end when it ends."""
    tracker = FakeTracker()
    recorder = start_recorder(tmp_path, tracker, 1, 1, 2)
    wait_until(lambda: tracker.steps == [1, 2])
    recorder.add(1, build_points(3)[0])
    assert end_run(recorder) is None
    assert (tracker.open_count, tracker.steps, tracker.end) == (1, [1, 2, 3], "succeeded")


def test_process_that_takes_over_repeats_no_row(tmp_path: Path) -> None:
    """A new process reads the job's log from its beginning, and writes only the rows that were not written."""
    start_recorder(tmp_path, FakeTracker(), 2, 1, 2)
    wait_until(lambda: [path for path in tmp_path.glob("metrics-to-fake.json") if '"row": 2' in path.read_text()])
    successor = FakeTracker()
    recorder = start_recorder(tmp_path, successor, 2, 1, 2, 3)
    assert end_run(recorder) is None
    assert successor.steps == [3]


def keep_rows(tmp_path: Path, *steps: int) -> Unrecorded:
    """What a tracker that is down has not recorded of the first attempt of a run."""

    def refuse(method: str) -> None:
        raise ConnectionError("no server")

    recorder = start_recorder(tmp_path, FakeTracker(refuse), 1, *steps)
    recorder.end(build_experiment_end("failed"))
    unrecorded = recorder.finish(0.2)
    assert unrecorded
    return unrecorded


def test_rows_that_were_not_written_are_returned(tmp_path: Path) -> None:
    """What a tracker did not take is returned in order, with the end of the run."""
    unrecorded = keep_rows(tmp_path, 1, 2)
    assert [(row.number, row.point.step) for row in unrecorded.rows] == [((1, 1), 1), ((1, 2), 2)]
    assert unrecorded.end == build_experiment_end("failed")


def test_late_rows_are_written_first_and_once(tmp_path: Path) -> None:
    """A launcher that continues the run writes the rows that were kept, and reads none of them again from the log."""
    late_rows = keep_rows(tmp_path, 1, 2).rows
    tracker = FakeTracker()
    recorder = TrackerRecorder("fake", tracker, build_experiment(tmp_path), SETTINGS, late_rows)
    for point in build_points(1, 2, 3):
        recorder.add(1, point)
    assert end_run(recorder) is None
    assert tracker.steps == [1, 2, 3]


def test_late_rows_that_were_written_meanwhile_are_skipped(tmp_path: Path) -> None:
    """Rows that another process has written since they were kept are not written again."""
    late_rows = keep_rows(tmp_path, 1, 2).rows
    assert end_run(start_recorder(tmp_path, FakeTracker(), 1, 1)) is None
    tracker = FakeTracker()
    assert end_run(TrackerRecorder("fake", tracker, build_experiment(tmp_path), SETTINGS, late_rows)) is None
    assert tracker.steps == [2]


def test_next_attempt_starts_with_its_first_row(tmp_path: Path) -> None:
    """Rows of another attempt are written, also if there are as many of them."""
    tracker = FakeTracker()
    recorder = start_recorder(tmp_path, tracker, 1, 1, 2)
    for point in build_points(1, 2, 3):
        recorder.add(2, point)
    assert end_run(recorder) is None
    assert tracker.steps == [1, 2, 1, 2, 3]


def test_tracker_that_was_down_gets_every_row(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The first failure is logged as a warning, and the rows are written later."""
    caplog.set_level("INFO")
    failures = iter(["open", "open", "write"])

    def fail(method: str) -> None:
        if next(failures, None):
            raise ConnectionError("no server")

    tracker = FakeTracker(fail)
    recorder = start_recorder(tmp_path, tracker, 1, 1, 2)
    wait_until(lambda: tracker.steps)
    assert end_run(recorder) is None
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

    recorder = start_recorder(tmp_path, FakeTracker(fail), 1, 1, 2)
    assert hangs or failed.wait(30)
    assert end_run(recorder, 0.2) == f"fake has not recorded 2 rows and the end of the run: {reason}"
    stop_event.set()


def test_rows_beyond_the_limit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows above the limit are dropped, so that memory is bounded, and the loss is reported."""
    monkeypatch.setattr(recorder_module, "MAX_WAITING_ROWS", 2)
    stop_event = Event()
    recorder = start_recorder(tmp_path, FakeTracker(lambda _: stop_event.wait(60)), 1, 1, 2, 3, 4, 5)
    stop_event.set()
    assert end_run(recorder) == "fake has not recorded 3 rows: too many rows at once"
