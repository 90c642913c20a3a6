"""A run of a profile inside a flow, as far as it goes without a job."""

import resource
from collections.abc import Iterator

import pytest

from tests.conftest import Write
from torchyard.pods import seal
from torchyard.tasks.train import train_flow_run


@pytest.fixture(autouse=True)
def restored_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the limit of open files and the source of keys for the other tests."""
    monkeypatch.setattr(seal, "key_source", seal.key_source)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_mistake_in_a_profile_is_a_failed_run(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    """The run fails with one sentence, which is also logged, and starts nothing."""
    state = train_flow_run(str(write(nodez=2)))
    assert (state.type.value, "unknown key nodez: did you mean nodes?" in str(state.message)) == ("FAILED", True)
    assert "unknown key nodez" in caplog.text
    assert "Traceback" not in caplog.text


def test_secret_in_the_parameters_is_a_warning(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    """The log names a secret among the overrides, which everyone can read in Prefect, and does not show it."""
    assert train_flow_run(str(write()), {"env.HF_TOKEN": "abcdef0123", "nodez": 2}).is_failed()
    assert "overrides: HF_TOKEN: looks like a secret" in caplog.text
    assert "abcdef0123" not in caplog.text
