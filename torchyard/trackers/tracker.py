"""What every experiment tracker is given, and what it must do with it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from torchyard.model.run import End


class Experiment(NamedTuple):
    """A run of torchyard as a tracker knows it; `folder` is for what the tracker keeps on this machine."""

    run: str
    run_id: str
    profile: str
    folder: str
    parameters: Mapping[str, str]
    tags: Mapping[str, str]


class Point(NamedTuple):
    """The numbers of one row."""

    step: int
    at: float
    numbers: Mapping[str, float]


class ExperimentEnd(NamedTuple):
    """How a run ended; `numbers` hold for the whole run."""

    end: End
    at: float
    numbers: Mapping[str, float]
    tags: Mapping[str, str]


class Tracker(Protocol):
    """One run in one tracker. Every call may raise, and is then made again: each can be repeated."""

    def open(self, experiment: Experiment) -> None:
        """Find the run, or create it: a run that has come back is the same run."""

    def write(self, points: Sequence[Point]) -> None:
        """Write the numbers of some rows."""

    def close(self, end: ExperimentEnd) -> None:
        """Write how the run ended."""
