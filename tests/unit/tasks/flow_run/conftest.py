"""A Prefect server that hangs, for calls that do not wait for it."""

import pytest

from tests.fake_prefect import FakePrefect
from torchyard.tasks.flow_run import reporter, states


@pytest.fixture
def server(fake_prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch) -> FakePrefect:
    """A server that hangs until `answering` is set."""
    monkeypatch.setattr(states, "CALL_TIMEOUT_S", 0.3)
    for name in ("_POLL_INTERVAL_S", "_RETRY_INTERVAL_S", "_SIGNAL_TIMEOUT_S"):
        monkeypatch.setattr(reporter, name, 0.3)
    fake_prefect.answering.clear()
    return fake_prefect
