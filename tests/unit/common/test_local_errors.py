"""Local errors: which errors are local, how long an action is repeated, and how often an error is reported."""

import pytest

from torchyard.common import local_errors
from torchyard.common.local_errors import LocalErrorGuard, is_local_error, retry_step
from torchyard.model.errors import ClusterError, RunInUseError


@pytest.mark.parametrize(
    ("error", "is_local"),
    [(OSError(24, "x"), True), (RuntimeError("can't start new thread"), True), (RuntimeError("x"), False)],
)
def test_local_error_is_recognized(error: Exception, is_local: bool) -> None:
    """A lack of descriptors or threads is a local error; any other RuntimeError is not."""
    assert is_local_error(error) is is_local


@pytest.mark.parametrize(("status", "is_local"), [(0, True), (401, True), (503, True), (403, False), (404, False)])
def test_api_server_that_may_respond_later_is_a_local_error(status: int, is_local: bool) -> None:
    """An API server that cannot be reached, or whose token has expired, is a local error; a refusal is not."""
    assert is_local_error(ClusterError("https://x", "get Pod", "no", status)) is is_local


def test_step_is_repeated_until_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that a full disk prevents is repeated, and fails with the disk's own error after the timeout."""
    monkeypatch.setattr(local_errors, "RETRY_PAUSE_S", 0.001)
    call_count = 0

    def write(failure_count: int) -> str:
        nonlocal call_count
        call_count += 1
        if call_count <= failure_count:
            raise OSError(28, "No space left on device")
        return "written"

    assert retry_step(30.0)(write)(2) == "written"
    assert call_count == 3
    call_count = 0
    with pytest.raises(OSError, match="No space left"):
        retry_step(0.0)(write)(99)
    assert call_count == 1


def test_retries_are_logged_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of twelve failures of a step, the first, second, fourth and eighth are logged."""
    monkeypatch.setattr(local_errors, "RETRY_PAUSE_S", 0.001)
    failures = iter(range(1, 13))

    def write() -> None:
        for number in failures:
            raise OSError(28, f"failure {number}")

    retry_step(30.0)(write)()
    assert [message.partition("failure ")[2] for message in caplog.messages] == [
        f"{number}; trying again" for number in (1, 2, 4, 8)
    ]


def test_fault_of_the_program_is_not_repeated() -> None:
    """A step that fails for another reason is not repeated."""
    call_count = 0

    def fail() -> None:
        nonlocal call_count
        call_count += 1
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        retry_step(30.0)(fail)()
    assert call_count == 1


def test_local_error_is_reported_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    """A persistent error is logged once, and its end is logged too; RunInUseError is always raised."""
    caplog.set_level("INFO")
    guard = LocalErrorGuard()
    for error in (OSError(28, "No space left on device"), OSError(28, "No space left on device"), None):
        with guard.tolerate("write a log"):
            if error:
                raise error
    messages = [record.getMessage() for record in caplog.records]
    assert [message.partition(":")[0] for message in messages] == [
        "cannot write a log",
        "can write a log again",
    ]
    with pytest.raises(RunInUseError), guard.tolerate("write a log", ignore_errors=True):
        raise RunInUseError("sample-a1b2c3d4", "elsewhere:/runs")
