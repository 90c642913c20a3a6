"""The exit codes of the command."""

import pytest

from torchyard.cli.exit_codes import ExitCode, UsageError, get_error_code, get_run_code
from torchyard.model.errors import (
    ClusterError,
    DetachedError,
    ExtensionError,
    HandedOverError,
    HolderGoneError,
    NoRunError,
    ProfileError,
    RunInUseError,
    SettingError,
    TorchyardError,
)
from torchyard.model.run import End


def test_codes_are_a_contract() -> None:
    """Scripts rely on these numbers."""
    assert [code.value for code in ExitCode] == [0, 1, 2, 3, 4, 130]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("usage: torchyard\n", "no verb"), ExitCode.USAGE),
        (ProfileError("x", ()), ExitCode.INVALID),
        (SettingError("A", "", "set it"), ExitCode.INVALID),
        (ExtensionError("no launcher x", "install it"), ExitCode.INVALID),
        (NoRunError("x-1", ()), ExitCode.INVALID),
        (DetachedError("the disk is full"), ExitCode.STILL_RUNNING),
        (HandedOverError("stopped"), ExitCode.STILL_RUNNING),
        (RunInUseError("/runs/x", "process 12"), ExitCode.STILL_RUNNING),
        (HolderGoneError("gpu-1", 60), ExitCode.STILL_RUNNING),
        (ClusterError("api", "GET /", "refused", 403), ExitCode.FAILED),
        (TorchyardError("another"), ExitCode.FAILED),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_has_its_code(error: Exception, code: ExitCode) -> None:
    """Invalid input, and a job that may be running, differ from a failure."""
    assert get_error_code(error) is code


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("succeeded", 0),
        ("failed", 1),
        ("swept", 1),
        ("gave-up", 1),
        ("stopped", 130),
        ("cancelled", 130),
    ],
)
def test_end_of_a_run_has_its_code(end: End, code: int) -> None:
    """Only success is 0; a run that a person has stopped did not fail."""
    assert get_run_code(end) == code
