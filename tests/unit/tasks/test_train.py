"""A run of a profile inside a flow, as far as it goes without a job."""

import resource
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests.conftest import Write
from torchyard.model.errors import ProfileError
from torchyard.model.profile import Profile
from torchyard.pods import seal
from torchyard.run.folder import list_run_folders
from torchyard.run.services import Sink
from torchyard.tasks import train
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


@pytest.mark.parametrize("is_parameter", [True, False])
def test_unknown_run_to_resume_from_is_a_failed_run(
    write: Write, monkeypatch: pytest.MonkeyPatch, is_parameter: bool
) -> None:
    """A new flow run with an unknown run, as the parameter or the key `resume`, fails before it starts anything."""
    monkeypatch.setattr(train, "flow_run", SimpleNamespace(id=UUID(int=1), run_count=1))
    monkeypatch.setattr(train, "PrefectSink", lambda *_, **__: Sink())
    if is_parameter:
        state = train_flow_run(str(write()), resume="nosuch")
    else:
        state = train_flow_run(str(write(resume="nosuch")))
    assert state.type.value == "FAILED"
    assert "resume: there is no run nosuch in" in str(state.message)
    assert list_run_folders() == []


def test_secret_in_the_parameters_is_a_warning(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    """The log names a secret among the overrides, which everyone can read in Prefect, and does not show it."""
    assert train_flow_run(str(write()), {"env.HF_TOKEN": "abcdef0123", "nodez": 2}).is_failed()
    assert "overrides: HF_TOKEN: looks like a secret" in caplog.text
    assert "abcdef0123" not in caplog.text


@pytest.mark.parametrize(
    ("overrides", "resume", "changes"),
    [
        (None, None, {}),
        ({"nodes": 2}, "sample-1", {"nodes": 2, "resume": "sample-1"}),
        ({"resume": "sample-1"}, "sample-2", {"resume": "sample-2"}),
        ({"resume": "sample-1"}, None, {"resume": "sample-1"}),
    ],
)
def test_run_to_continue_is_a_key_of_the_profile(
    monkeypatch: pytest.MonkeyPatch,
    overrides: dict[str, Any] | None,
    resume: str | None,
    changes: dict[str, Any],
) -> None:
    """The parameter `resume` is the profile's key, and counts before one among the overrides."""
    loaded: list[object] = []

    def load_profile(name: str, overrides: dict[str, Any]) -> Profile:
        loaded.append(overrides)
        raise ProfileError(name, ())

    monkeypatch.setattr(train, "load_profile", load_profile)
    assert train.train_flow_run("sample", overrides, resume=resume).is_failed()
    assert loaded == [changes]
