"""A Prefect server that hangs, for calls that do not wait for it."""

import pytest

from tests.doubles.fake_prefect import FakePrefect
from torchyard.tasks.flow_run import control, requests, states


@pytest.fixture
def server(fake_prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch) -> FakePrefect:
    """A server that hangs until `answering` is set."""
    monkeypatch.setattr(states, "CALL_TIMEOUT_S", 0.3)
    monkeypatch.setattr(control, "_SIGNAL_TIMEOUT_S", 0.3)
    monkeypatch.setattr(requests, "_SETTINGS", requests._SETTINGS._replace(retry_s=0.3, tick_s=0.3))
    fake_prefect.answering.clear()
    return fake_prefect
