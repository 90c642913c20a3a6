"""The lease of a run's folder is renewed for as long as a process watches the run."""

import os
import threading
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from torchyard.run import folder_lease
from torchyard.run.folder import RunFolder
from torchyard.run.folder_lease import hold_folder_lease, read_renewal_time


def test_missing_folder_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A lease that cannot be renewed is reported once, and the step continues."""
    with hold_folder_lease(RunFolder(tmp_path / "none"), 60.0):
        wait_until(lambda: "the run's lease is not renewed" in caplog.text)
    assert len(caplog.records) == 1


def test_lease_is_renewed_while_it_is_held_and_no_longer(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lease is renewed during a step of any length, and no longer after it."""
    monkeypatch.setattr(folder_lease, "RENEW_INTERVAL_S", 0.02)
    with hold_folder_lease(folder, 60.0):
        wait_until(lambda: read_renewal_time(folder))
        os.utime(folder.path / "lease", (1, 1))
        wait_until(lambda: read_renewal_time(folder) > 1)
        assert 30 < folder.remaining_lease_s() <= 60
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "lease"])
    os.utime(folder.path / "lease", (1, 1))
    assert read_renewal_time(folder) == 1.0


def test_lease_that_was_never_renewed_has_no_time(folder: RunFolder) -> None:
    """The renewal time of a run that was lost before its first renewal is 0."""
    assert read_renewal_time(folder) == 0.0
