"""A run and its metrics, in the form that trackers receive."""

from collections.abc import Mapping
from pathlib import Path

from torchyard.trackers.tracker import Experiment, ExperimentEnd, MetricPoint

RUN_ID = "0190c7f0-0000-7000-8000-0000a1b2c3d4"


def build_experiment(folder: Path) -> Experiment:
    parameters = {"nodes.min": "2", "args": "--epochs 3"}
    return Experiment("mine-a1b2c3d4", RUN_ID, "mine", str(folder), parameters, {"torchyard.run": "mine-a1b2c3d4"})


def build_points(*steps: int, name: str = "loss") -> list[MetricPoint]:
    """Points, one per step, whose value is a tenth of the step."""
    return [MetricPoint(step, 1_700_000_000.0 + step, {name: step / 10}) for step in steps]


def build_experiment_end(end: str = "succeeded", numbers: Mapping[str, float] | None = None) -> ExperimentEnd:
    return ExperimentEnd(end, 1_700_000_100.0, numbers or {}, {"torchyard.end": end})  # type: ignore[arg-type]
