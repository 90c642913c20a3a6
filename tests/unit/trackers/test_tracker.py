"""What holds for every tracker: it fulfils the protocol, and a run that comes back is the same run."""

import inspect

import pytest

from torchyard.model.observe import TRACKER_NAMES, TrackerName, Trackers
from torchyard.trackers.registry import make_trackers
from torchyard.trackers.tracker import Tracker


@pytest.mark.parametrize("name", TRACKER_NAMES)
def test_tracker_has_the_calls_of_the_protocol(name: TrackerName) -> None:
    """Each tracker can be opened, written to and closed with the same arguments."""
    (made,) = make_trackers(Trackers.model_validate({name: {}})).values()
    for call in ("open", "write", "close"):
        wanted = list(inspect.signature(getattr(Tracker, call)).parameters)[1:]
        assert list(inspect.signature(getattr(made, call)).parameters) == wanted
