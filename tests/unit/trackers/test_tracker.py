"""Every tracker implements the protocol."""

import inspect

import pytest

from torchyard.model.observe import TRACKER_NAMES, TrackerName, Trackers
from torchyard.trackers.registry import create_trackers
from torchyard.trackers.tracker import Tracker


@pytest.mark.parametrize("name", TRACKER_NAMES)
def test_tracker_has_the_calls_of_the_protocol(name: TrackerName) -> None:
    """Each tracker can be opened, written to and closed with the same arguments."""
    (tracker,) = create_trackers(Trackers.model_validate({name: {}})).values()
    for method in ("open", "write", "close"):
        expected = list(inspect.signature(getattr(Tracker, method)).parameters)[1:]
        assert list(inspect.signature(getattr(tracker, method)).parameters) == expected
