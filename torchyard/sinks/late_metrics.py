"""Rows and ends that a tracker did not take: they wait in the run's folder for the next sweep."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import ConfigDict, TypeAdapter

from torchyard.common.log import get_log
from torchyard.common.outbox import OutboxSettings
from torchyard.model.errors import FolderError
from torchyard.model.observe import Trackers
from torchyard.run.folder import RunFolder
from torchyard.run.late_items import LateItems
from torchyard.run.sweep import is_run_open
from torchyard.trackers.recorder import NumberedRow, TrackerRecorder
from torchyard.trackers.registry import create_trackers
from torchyard.trackers.tracker import Experiment, ExperimentEnd

_TIMEOUT_S = 30.0  # for one tracker of one run
_MAX_AGE_S = 7 * 24 * 3600.0  # a tracker that has not answered for so long was probably removed
_SETTINGS = OutboxSettings(last_retry_s=None, max_batch=500, is_quiet=True)


class LateMetrics(NamedTuple):
    """What one tracker has not recorded of a run.

    tracker: its name.
    settings: the profile's `metrics_to`.
    end: None if the run goes on, or if its end was recorded.
    created_at: in seconds since the epoch.
    """

    tracker: str
    settings: Trackers
    experiment: Experiment
    rows: tuple[NumberedRow, ...]
    end: ExperimentEnd | None
    created_at: float


_METRICS = TypeAdapter(list[LateMetrics], config=ConfigDict(defer_build=True))  # few processes need it
LATE_METRICS = LateItems("late-metrics.json", _METRICS, "metrics")


def send_late_metrics() -> None:
    """Write what the ended runs of this machine have kept. Nothing is raised: what fails again is kept for a week.

    A tracker that fails is not tried again in this call, so that one that hangs costs one timeout.
    """
    failed_trackers: list[tuple[str, Trackers]] = []
    for folder in LATE_METRICS.list_folders():
        items = LATE_METRICS.read(folder) if _is_over(folder) else None  # until then the launcher writes them
        if items is not None:
            LATE_METRICS.keep(folder, [item for item in items if not _send_late(item, failed_trackers)])


def _is_over(folder: Path) -> bool:
    try:
        return not is_run_open(RunFolder(folder))
    except FolderError as error:
        get_log().debug("metrics of %s are not sent: %s", folder.name, error)
        return False


def _send_late(item: LateMetrics, failed_trackers: list[tuple[str, Trackers]]) -> bool:
    """Write kept metrics; whether they are done with: written now, or too old."""
    if time.time() - item.created_at > _MAX_AGE_S:
        return True
    if (item.tracker, item.settings) in failed_trackers:
        return False
    tracker = create_trackers(item.settings)[item.tracker]
    recorder = TrackerRecorder(item.tracker, tracker, item.experiment, _SETTINGS, late_rows=item.rows)
    if item.end:
        recorder.end(item.end)
    unrecorded = recorder.finish(_TIMEOUT_S)
    if unrecorded:
        get_log().debug("metrics_to: %s: %s", item.experiment.run, unrecorded.sentence)
        failed_trackers.append((item.tracker, item.settings))
        return False
    get_log().info("metrics_to: %s has the metrics of %s now", item.tracker, item.experiment.run)
    return True


def take_over_late_rows(folder: Path) -> dict[str, Sequence[NumberedRow]]:
    """The rows that an earlier process of a run has kept, by tracker, for a launcher that continues the run.

    The end that was kept with them no longer holds.
    """
    items = LATE_METRICS.read(folder) or []
    if items:
        LATE_METRICS.keep(folder, [item._replace(end=None) for item in items])
    return {item.tracker: item.rows for item in items}
