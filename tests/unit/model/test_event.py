"""The events of a run."""

from typing import get_args

from torchyard.model import event as event_module
from torchyard.model.event import JobEvent, RunEvent


def test_every_event_is_one_of_a_job_or_of_a_run() -> None:
    """A type checker knows all events: each class of the module is a member of one of the two unions."""
    classes = {value for value in vars(event_module).values() if isinstance(value, type) and hasattr(value, "_fields")}
    own_classes = {value for value in classes if value.__module__ == event_module.__name__}
    assert own_classes <= {*get_args(JobEvent), *get_args(RunEvent)}
    assert len(own_classes) > 8
