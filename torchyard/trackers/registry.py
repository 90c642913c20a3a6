"""The trackers by name, and the requirements of each.

A new tracker is one module in this folder, its model in torchyard/model/observe.py, and its entry here. A tracker of
another package is an entry point that names a TrackerFactory.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torchyard.common.extensions import Extension, find_extension, list_extensions, load_function
from torchyard.common.packages import need
from torchyard.model.errors import ExtensionError, MissingPackageError
from torchyard.model.finding import Finding, failed_check, passed_check
from torchyard.model.observe import TRACKER_NAMES, Trackers
from torchyard.trackers.mlflow import URI_VARIABLE, MlflowRun
from torchyard.trackers.tensorboard import TensorBoardRun
from torchyard.trackers.tracker import Experiment, ExperimentEnd, MetricPoint, Tracker
from torchyard.trackers.wandb import WandbRun

TrackerFactory = Callable[[Mapping[str, Any]], Tracker]
"""Makes a tracker from its options in the profile, without I/O. It raises an error if they are wrong."""


def create_trackers(settings: Trackers) -> dict[str, Tracker]:
    """The trackers that a profile names."""
    trackers: dict[str, Tracker] = {}
    if settings.tensorboard:
        trackers["tensorboard"] = TensorBoardRun(settings.tensorboard)
    if settings.mlflow:
        trackers["mlflow"] = MlflowRun(settings.mlflow)
    if settings.wandb:
        trackers["wandb"] = WandbRun(settings.wandb)
    for tracker_name, options in settings.package_trackers.items():
        trackers[tracker_name] = _PackageTracker(tracker_name, options)
    return trackers


def check_trackers(settings: Trackers) -> Iterator[Finding]:
    """Preflight's findings: whether the packages are installed, and whether MLflow has an address."""
    for name in TRACKER_NAMES:
        if getattr(settings, name) is None:
            continue
        try:
            need("metrics_to", name)
        except MissingPackageError as error:
            yield failed_check(f"metrics_to {name}", error.problem, f"{error.remedy}, or remove it from metrics_to")
        else:
            yield passed_check(f"metrics_to {name}", f"the package {name} is installed")
    if settings.mlflow and not (settings.mlflow.uri or os.environ.get(URI_VARIABLE)):
        remedy = f"set metrics_to: [{{mlflow: {{uri: http://…}}}}], or {URI_VARIABLE} where the launcher runs"
        yield failed_check("metrics_to mlflow", "no tracking server is named", remedy)
    for tracker_name, options in settings.package_trackers.items():
        yield _check_package_tracker(tracker_name, options)


def find_unusable_tracker(name: str) -> ExtensionError | None:
    """Why there is no tracker of this name that is not one of torchyard's; None if there is one. Nothing is imported.

    Preflight loads it (`check_trackers`), where the launcher runs.
    """
    try:
        _get_extension(name)
    except ExtensionError as error:
        return error
    return None


def _check_package_tracker(name: str, options: Mapping[str, Any]) -> Finding:
    """Preflight's finding about a tracker of another package: it can be imported, and accepts its options."""
    try:
        extension = _get_extension(name)
        create_tracker = load_function(extension, "makes a tracker")
    except ExtensionError as error:
        return failed_check(f"metrics_to {name}", error.problem, error.remedy)
    try:
        create_tracker(options)
    except Exception as error:  # another package's function may raise anything
        reason = f"{extension.origin} does not accept its options: {type(error).__name__}: {error}"
        return failed_check(f"metrics_to {name}", reason, f"change metrics_to: [{{{name}: {{…}}}}]")
    return passed_check(f"metrics_to {name}", f"{extension.origin} is installed")


def _get_extension(name: str) -> Extension:
    """The tracker of another package. ExtensionError if there is none of this name, or several."""
    extension = find_extension("tracker", name)
    if extension is None:
        names = [extension.name for extension in list_extensions("tracker")]
        choices = ", ".join(dict.fromkeys([*TRACKER_NAMES, *names]))
        raise ExtensionError(f"unknown tracker {name}", f"use {choices}, or install the package that has it")
    return extension


class _PackageTracker:
    """A tracker of another package, which is made when it is opened: the worker tries again after an error."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._name = name
        self._options = options
        self._tracker: Tracker | None = None

    def open(self, experiment: Experiment) -> None:
        create_tracker: TrackerFactory = load_function(_get_extension(self._name), "makes a tracker")
        tracker = create_tracker(self._options)
        tracker.open(experiment)
        self._tracker = tracker

    def write(self, points: Sequence[MetricPoint]) -> None:
        self._get_open_tracker().write(points)

    def close(self, end: ExperimentEnd) -> None:
        self._get_open_tracker().close(end)

    def _get_open_tracker(self) -> Tracker:
        if self._tracker is None:
            raise RuntimeError(f"the tracker {self._name} is not open")
        return self._tracker
