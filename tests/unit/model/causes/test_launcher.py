"""Causes that torchyard itself detects."""

from torchyard.model.causes.launcher import LauncherCause


def test_end_by_the_launcher_is_not_retried() -> None:
    """A job that the launcher has ended is not started again, unless it hung or lost its host or supervisor."""
    retried = {cause.value for cause in LauncherCause if cause.retry}
    assert retried == {"supervisor-killed", "host-rebooted", "host-silent", "rank-hangs"}
