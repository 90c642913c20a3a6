"""The trackers by name, and what each of them needs here.

A new tracker is one module in this folder, its model in torchyard/model/observe.py, and its entry here.
"""

import os
from collections.abc import Iterator
from importlib.util import find_spec

from torchyard.model.observe import TRACKER_NAMES, TrackerName, Trackers
from torchyard.model.requirements import Check, failed_check, passed_check
from torchyard.trackers.mlflow import URI_VARIABLE, MlflowRun
from torchyard.trackers.tensorboard import TensorBoardRun
from torchyard.trackers.tracker import Tracker
from torchyard.trackers.wandb import WandbRun


def make_trackers(wanted: Trackers) -> dict[TrackerName, Tracker]:
    """The trackers that a profile names."""
    found: dict[TrackerName, Tracker] = {}
    if wanted.tensorboard:
        found["tensorboard"] = TensorBoardRun(wanted.tensorboard)
    if wanted.mlflow:
        found["mlflow"] = MlflowRun(wanted.mlflow)
    if wanted.wandb:
        found["wandb"] = WandbRun(wanted.wandb)
    return found


def check_trackers(wanted: Trackers) -> Iterator[Check]:
    """Preflight's findings: whether the packages are here, and whether MLflow has an address."""
    for name in TRACKER_NAMES:
        if getattr(wanted, name) is None:
            continue
        if find_spec(name) is None:
            remedy = f"pip install 'torchyard[{name}]' where the launcher runs, or leave it out of metrics_to"
            yield failed_check(f"metrics_to {name}", f"the package {name} is not installed", remedy)
        else:
            yield passed_check(f"metrics_to {name}", f"the package {name} is installed")
    if wanted.mlflow and not (wanted.mlflow.uri or os.environ.get(URI_VARIABLE)):
        said = "set metrics_to: [{mlflow: {uri: http://…}}], or " + URI_VARIABLE + " where the launcher runs"
        yield failed_check("metrics_to mlflow", "no tracking server is named", said)
