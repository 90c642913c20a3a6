"""Which host a state belongs to: this PID namespace, another one, an earlier boot, or another machine."""

import time
from pathlib import Path

import pytest

from torchyard.host import identity
from torchyard.host.identity import (
    EARLIER_BOOT,
    HERE,
    OTHER_MACHINE,
    OTHER_NAMESPACE,
    identify_host,
    is_on_local_filesystem,
    locate_host,
    measure_time_since,
    read_boot_clock,
    read_uptime,
)

OTHER_BOOT = "0190c7f0-0000-4000-8000-000000000000"


@pytest.mark.parametrize(("changes", "is_local", "location"), [
    ({}, True, HERE),
    ({"pid_namespace": "pid:[4026530000]"}, True, OTHER_NAMESPACE),
    ({"boot": OTHER_BOOT}, True, EARLIER_BOOT),
    ({"boot": OTHER_BOOT, "hostname": "renamed"}, True, EARLIER_BOOT),
    ({"boot": OTHER_BOOT}, False, EARLIER_BOOT),
    ({"boot": OTHER_BOOT, "hostname": "gpu2"}, False, OTHER_MACHINE),
    ({"boot": ""}, True, OTHER_MACHINE),
])  # fmt: skip
def test_host_of_a_state_is_located(
    changes: dict[str, str], is_local: bool, location: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A state of another boot is of this machine if no other machine can have written it, or if the names are equal."""
    monkeypatch.setattr(identity, "is_on_local_filesystem", lambda _: is_local)
    assert locate_host(identify_host() | changes, str(tmp_path)) == location


def test_state_without_a_host_is_located_elsewhere(tmp_path: Path) -> None:
    """A state that does not name its host proves nothing about the processes of this one."""
    assert locate_host({}, str(tmp_path)) == OTHER_MACHINE


@pytest.mark.parametrize(("mounts", "is_local"), [
    ("22 1 8:1 / / rw - ext4 /dev/sda1 rw", True),
    ("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:44 / /runs rw shared:1 - nfs4 nas:/runs rw", False),
    ("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 22 0:44 / /run rw - nfs4 nas:/runs rw", True),
    ("30 22 0:44 / /runs rw - nfs4 nas:/runs rw\n31 30 0:50 / /runs rw - tmpfs none rw", True),
    ("", False),
])  # fmt: skip
def test_local_filesystem_is_recognized(mounts: str, is_local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The innermost mount decides: another machine may have written a network filesystem, or an unknown one."""
    monkeypatch.setattr(identity, "_read_mounts", mounts.splitlines)
    assert is_on_local_filesystem("/runs/sample") == is_local


def test_moment_that_was_rounded_up_has_no_negative_age() -> None:
    """A moment of this boot that lies ahead, because it was stored with fewer digits, is as old as nothing."""
    boot, seconds = read_boot_clock()
    assert measure_time_since((boot, seconds + 1000)) == 0.0
    assert measure_time_since((boot, seconds - 1000)) >= 1000


def test_uptime_advances_and_counts_suspended_time() -> None:
    """The seconds since boot are those of the kernel's clock since boot, which are at least the monotonic ones."""
    earlier = read_uptime()
    assert time.monotonic() - 1 <= earlier <= read_uptime()
