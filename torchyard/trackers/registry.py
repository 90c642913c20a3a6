"""The trackers by name, and the requirements of each.

A new tracker is one module in this folder, its model in torchyard/model/observe.py, and its entry here.
"""

import os
from collections.abc import Iterator
from importlib.util import find_spec

from torchyard.model.finding import Finding, failed_check, passed_check
from torchyard.model.observe import TRACKER_NAMES, TrackerName, Trackers
from torchyard.trackers.mlflow import URI_VARIABLE, MlflowRun
from torchyard.trackers.tensorboard import TensorBoardRun
from torchyard.trackers.tracker import Tracker
from torchyard.trackers.wandb import WandbRun


def create_trackers(settings: Trackers) -> dict[TrackerName, Tracker]:
    """The trackers that a profile names."""
    trackers: dict[TrackerName, Tracker] = {}
    if settings.tensorboard:
        trackers["tensorboard"] = TensorBoardRun(settings.tensorboard)
    if settings.mlflow:
        trackers["mlflow"] = MlflowRun(settings.mlflow)
    if settings.wandb:
        trackers["wandb"] = WandbRun(settings.wandb)
    return trackers


def check_trackers(settings: Trackers) -> Iterator[Finding]:
    """Preflight's findings: whether the packages are installed, and whether MLflow has an address."""
    for name in TRACKER_NAMES:
        if getattr(settings, name) is None:
            continue
        if find_spec(name) is None:
            remedy = f"pip install 'torchyard[{name}]' where the launcher runs, or remove it from metrics_to"
            yield failed_check(f"metrics_to {name}", f"the package {name} is not installed", remedy)
        else:
            yield passed_check(f"metrics_to {name}", f"the package {name} is installed")
    if settings.mlflow and not (settings.mlflow.uri or os.environ.get(URI_VARIABLE)):
        remedy = f"set metrics_to: [{{mlflow: {{uri: http://…}}}}], or {URI_VARIABLE} where the launcher runs"
        yield failed_check("metrics_to mlflow", "no tracking server is named", remedy)
