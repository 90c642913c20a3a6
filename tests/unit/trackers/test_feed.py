"""The thread between a run and a tracker: rows arrive once, and a tracker's failure delays nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

import pytest

from tests.experiments import ending, experiment, points
from tests.waiting import until
from torchyard.trackers import feed
from torchyard.trackers.feed import TrackerWorker
from torchyard.trackers.tracker import Experiment, ExperimentEnd, Point


class Kept:
    """Keeps what it is given; `before` is called first, and may raise or hang."""

    def __init__(self, before: Callable[[str], object] = lambda _: None) -> None:
        self.steps: list[int] = []
        self.opened, self.end, self._before = 0, "", before

    def open(self, experiment: Experiment) -> None:
        self._before("open")
        self.opened += 1

    def write(self, points: Sequence[Point]) -> None:
        self._before("write")
        self.steps += [point.step for point in points]

    def close(self, end: ExperimentEnd) -> None:
        self._before("close")
        self.end = end.end


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_BATCH_INTERVAL_S", "_RETRY_INTERVAL_S", "_LAST_RETRY_INTERVAL_S"):
        monkeypatch.setattr(feed, name, 0.01)


def fed(tmp_path: Path, kept: Kept, attempt: int, *steps: int) -> TrackerWorker:
    made = TrackerWorker("kept", kept, experiment(tmp_path))
    for point in points(*steps):
        made.add(attempt, point)
    return made


def test_rows_and_end_are_written_in_order(tmp_path: Path) -> None:
    """While the run lives its rows are written, and at its end what is left and how it ended."""
    kept = Kept()
    made = fed(tmp_path, kept, 1, 1, 2)
    until(lambda: kept.steps == [1, 2])
    made.add(1, points(3)[0])
    assert made.finish(ending(), 10) == ""
    assert (kept.opened, kept.steps, kept.end) == (1, [1, 2, 3], "succeeded")


def test_process_that_takes_over_writes_no_row_again(tmp_path: Path) -> None:
    """It reads the job's log from its beginning, and writes only what the lost process has not."""
    lost, heir = Kept(), Kept()
    fed(tmp_path, lost, 2, 1, 2)
    until(lambda: [path for path in tmp_path.glob("metrics-to-kept.json") if '"rows": 2' in path.read_text()])
    made = fed(tmp_path, heir, 2, 1, 2, 3)
    assert made.finish(ending(), 10) == ""
    assert heir.steps == [3]


def test_next_attempt_begins_its_rows_anew(tmp_path: Path) -> None:
    """The rows of another attempt are others, although there are as many of them."""
    kept = Kept()
    made = fed(tmp_path, kept, 1, 1, 2)
    for point in points(1, 2, 3):
        made.add(2, point)
    assert made.finish(ending(), 10) == ""
    assert kept.steps == [1, 2, 1, 2, 3]


def test_tracker_that_was_away_gets_every_row(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A failure is a warning, once, and the rows wait."""
    caplog.set_level("INFO")
    failures = iter(["open", "open", "write"])

    def fail(what: str) -> None:
        if next(failures, None):
            raise ConnectionError("no server")

    kept = Kept(fail)
    made = fed(tmp_path, kept, 1, 1, 2)
    until(lambda: kept.steps)
    assert made.finish(ending(), 10) == ""
    assert (kept.steps, kept.end) == ([1, 2], "succeeded")
    warned = [each for each in caplog.messages if "ConnectionError" in each]
    assert warned == ["metrics_to: kept: ConnectionError: no server; the job goes on, and it is tried again"]
    assert "metrics_to: kept works again" in caplog.messages


@pytest.mark.parametrize(("hangs", "why"), [(True, "no answer for 0 s"), (False, "ConnectionError: no server")])
def test_what_a_tracker_has_not_got_is_told(tmp_path: Path, hangs: bool, why: str) -> None:
    """A tracker that never answers costs the run a moment at its end, and a sentence."""
    over, failed = Event(), Event()

    def fail(what: str) -> None:
        if hangs:
            over.wait(60)
        failed.set()
        raise ConnectionError("no server")

    made = fed(tmp_path, Kept(fail), 1, 1, 2)
    assert hangs or failed.wait(30)
    assert made.finish(ending(), 0.2) == f"kept has not recorded 2 rows and the end of the run: {why}"
    over.set()


def test_rows_beyond_the_limit_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that prints faster than a tracker takes its rows costs no memory, and the loss is told."""
    monkeypatch.setattr(feed, "_MAX_WAITING", 2)
    over = Event()
    made = fed(tmp_path, Kept(lambda _: over.wait(60)), 1, 1, 2, 3, 4, 5)
    over.set()
    assert made.finish(ending(), 10) == "kept has not recorded 3 rows: too many rows at once"
