"""The metrics of a run for its experiment trackers (`metrics_to`): rank 0's rows, and how the run ended."""

from collections.abc import Iterator

from torchyard.model.event import AttemptStarted, EndReached, RowsRead, RunEvent
from torchyard.model.finding import Finding
from torchyard.model.profile import Profile
from torchyard.model.run import Row
from torchyard.run.folder import RunFolder
from torchyard.run.services import Sink
from torchyard.trackers.experiment import RowSteps, describe_end, describe_experiment
from torchyard.trackers.recorder import TrackerRecorder
from torchyard.trackers.registry import check_trackers, create_trackers


class MetricsSink(Sink):
    """Write the rows of each attempt, and the end of the run, to every tracker of the profile.

    The trackers are created at the first attempt: a run that ends before it leaves nothing in them.
    """

    purpose = "record metrics"

    def __init__(self, profile: Profile, run_id: str, folder: RunFolder, link: str = "") -> None:
        """`link`: the run's address in the orchestrator; empty if it has none."""
        self._profile = profile
        self._run_id = run_id
        self._folder = folder
        self._link = link
        self._recorders: list[TrackerRecorder] = []
        self._steps = RowSteps()
        self._attempt = 0

    def check(self) -> Iterator[Finding]:
        return check_trackers(self._profile.metrics_to)

    def take(self, event: RunEvent) -> None:
        match event:
            case AttemptStarted():
                self._attempt = event.number
                self._steps = RowSteps()
                self._recorders = self._recorders or self._create_recorders()
            case RowsRead():
                for row in event.rows:
                    self._add_row(row)
            case EndReached():
                end = describe_end(event.report)
                for recorder in self._recorders:
                    recorder.end(end)
            case _:
                pass

    def _create_recorders(self) -> list[TrackerRecorder]:
        folder = self._folder
        experiment = describe_experiment(self._profile, folder.name, self._run_id, str(folder.path), self._link)
        trackers = create_trackers(self._profile.metrics_to)
        return [TrackerRecorder(name, tracker, experiment) for name, tracker in trackers.items()]

    def _add_row(self, row: Row) -> None:
        point = self._steps.convert(row)
        if point:
            for recorder in self._recorders:
                recorder.add(self._attempt, point)

    def finish(self, timeout_s: float) -> list[str]:
        recorders = self._recorders
        self._recorders = []
        losses = [recorder.finish(timeout_s) for recorder in recorders]
        return [loss for loss in losses if loss]
