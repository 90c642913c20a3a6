"""The interface of an experiment tracker, and the values that it gets."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from torchyard.model.run import End


class Experiment(NamedTuple):
    """A run as a tracker records it; `folder` is for the files that the tracker writes on this machine."""

    run: str
    run_id: str
    profile: str
    folder: str
    parameters: Mapping[str, str]
    tags: Mapping[str, str]


class MetricPoint(NamedTuple):
    """The numbers of one row; `timestamp` in seconds since the epoch."""

    step: int
    timestamp: float
    numbers: Mapping[str, float]


class ExperimentEnd(NamedTuple):
    """The end of a run; `numbers` hold for the whole run, `timestamp` is in seconds since the epoch."""

    end: End
    timestamp: float
    numbers: Mapping[str, float]
    tags: Mapping[str, str]


class Tracker(Protocol):
    """One run in one tracker. Every method may raise and is then called again, so each must be repeatable."""

    def open(self, experiment: Experiment) -> None:
        """Find the run, or create it: a resumed run is the same run."""

    def write(self, points: Sequence[MetricPoint]) -> None:
        """Write the numbers of some rows."""

    def close(self, end: ExperimentEnd) -> None:
        """Write the end of the run."""
