"""The metrics of a run for its experiment trackers (`metrics_to`): rank 0's rows, and how the run ended."""

import time
from collections.abc import Iterator

from torchyard.common.log import get_log
from torchyard.common.outbox import share_timeout
from torchyard.model.event import AttemptStarted, EndReached, RowsRead, RunEvent
from torchyard.model.finding import Finding
from torchyard.model.profile import Profile
from torchyard.model.run import Row
from torchyard.run.folder import RunFolder
from torchyard.run.services import Sink
from torchyard.sinks.late_metrics import LATE_METRICS, LateMetrics, take_over_late_rows
from torchyard.trackers.experiment import RowSteps, describe_end, describe_experiment
from torchyard.trackers.recorder import TrackerRecorder
from torchyard.trackers.registry import check_trackers, create_trackers
from torchyard.trackers.tracker import Experiment


class MetricsSink(Sink):
    """Write the rows of each attempt, and the end of the run, to every tracker of the profile.

    The trackers are created at the first attempt: a run that ends before it leaves nothing in them. What a tracker has
    not recorded at the end is kept in the run's folder, for the next sweep or for a launcher that continues the run.
    """

    purpose = "record metrics"

    def __init__(self, profile: Profile, run_id: str, folder: RunFolder, link: str = "") -> None:
        """`link`: the run's address in the orchestrator; empty if it has none."""
        self._profile = profile
        self._run_id = run_id
        self._folder = folder
        self._link = link
        self._recorders: dict[str, TrackerRecorder] = {}
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
                for recorder in self._recorders.values():
                    recorder.end(end)
            case _:
                pass

    def _describe_experiment(self) -> Experiment:
        folder = self._folder
        return describe_experiment(self._profile, folder.name, self._run_id, str(folder.path), self._link)

    def _create_recorders(self) -> dict[str, TrackerRecorder]:
        """A recorder for each tracker, which first writes what an earlier process of the run could not."""
        experiment = self._describe_experiment()
        late_rows = take_over_late_rows(self._folder.path)
        recorders: dict[str, TrackerRecorder] = {}
        for name, tracker in create_trackers(self._profile.metrics_to).items():
            recorders[name] = TrackerRecorder(name, tracker, experiment, late_rows=late_rows.get(name, ()))
        return recorders

    def _add_row(self, row: Row) -> None:
        point = self._steps.convert(row)
        if point:
            for recorder in self._recorders.values():
                recorder.add(self._attempt, point)

    def finish(self, timeout_s: float) -> list[str]:
        losses: list[str] = []
        late_metrics: list[LateMetrics] = []
        recorders = self._recorders
        self._recorders = {}
        for (name, recorder), remaining_s in share_timeout(recorders.items(), timeout_s):
            unrecorded = recorder.finish(remaining_s)
            if unrecorded is None:
                continue
            get_log().warning("metrics_to: %s", unrecorded.sentence)
            losses.append(unrecorded.sentence)
            if unrecorded.rows or unrecorded.end:
                settings = self._profile.metrics_to
                experiment = self._describe_experiment()
                late_metrics.append(
                    LateMetrics(name, settings, experiment, unrecorded.rows, unrecorded.end, time.time())
                )
        if recorders:
            LATE_METRICS.keep(self._folder.path, late_metrics)
        return losses
