"""The lease of a supervised process: it ends if no launcher renews the lease."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes.supervised import (
    call_supervisor,
    read_log_texts,
    send_line,
    start_script,
    start_watch,
    wait_for_exit,
)
from torchyard.host import lease
from torchyard.host.log import ProcessLog
from torchyard.host.processes import find_labelled
from torchyard.host.state import write_state

_LEASE_S = 8.0  # a machine whose processors and disk are busy may stop a process for seconds


class Clock:
    """A monotonic clock that the test sets."""

    now_s = 0.0


class CheckedLease:
    """A lease of 10 s with a grace of 3 s; `signals` are those that its process has got besides SIGTERM."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = Clock()
        self.signals: list[int] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.clock.now_s)
        monkeypatch.setattr(lease, "ask_to_end", lambda *_: 0.0)
        monkeypatch.setattr(lease, "send_signal", lambda _, signal_number: self.signals.append(signal_number))
        folder = tmp_path / "node-0"
        folder.mkdir()
        self.process_lease = lease.ProcessLease(str(folder), {"lease": 10.0, "grace": 3.0})
        self._log = ProcessLog(str(folder), "node-0")

    @property
    def has_expired(self) -> bool:
        return self.process_lease.has_expired

    def check(self) -> None:
        self.process_lease.enforce(0, self._log)

    def check_until(self, end_s: float) -> None:
        """Check as often as the supervisor does."""
        while self.clock.now_s < end_s:
            self.clock.now_s = min(self.clock.now_s + self.process_lease.check_interval_s, end_s)
            self.check()


@pytest.fixture
def checked_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckedLease:
    """A lease of 10 s whose clock the test sets, and whose file is in `tmp_path`."""
    (tmp_path / "owner").touch()
    return CheckedLease(tmp_path, monkeypatch)


class WatchingLauncher:
    """A launcher that renews a lease through a watch; `state` is the last one that it sent, with any other owner."""

    def __init__(self, folder: Path) -> None:
        self.process = start_watch(folder)
        assert self.process.stdout
        os.set_blocking(self.process.stdout.fileno(), False)
        self.state: Any = {}

    def send_heartbeat(self, owner: str) -> Any:
        assert self.process.stdout
        send_line(self.process, {"owner": owner})
        self.state.pop("other_owner", None)
        time.sleep(0.2)
        for text in (self.process.stdout.read() or b"").splitlines():
            line = json.loads(text)
            self.state.update(line.pop("state", {}))
            self.state.update(line)
        return self.state

    def wait_until(self, owner: str, condition: Callable[[Any], bool]) -> bool:
        return any(condition(self.send_heartbeat(owner)) for _ in range(50))

    def renew_for(self, duration_s: float) -> None:
        deadline = time.monotonic() + duration_s
        while time.monotonic() < deadline:
            self.send_heartbeat("here:/runs/a")

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


@pytest.fixture
def start_watched(folder: Path) -> Iterator[Callable[[float], WatchingLauncher]]:
    """Start a process that sleeps, with a lease, and a status command that can renew it."""
    status_callers: list[WatchingLauncher] = []

    def start_leased(lease_s: float) -> WatchingLauncher:
        start_script(folder, "sleep 60", lease=lease_s)
        status_callers.append(WatchingLauncher(folder))
        return status_callers[-1]

    yield start_leased
    status_callers[-1].close()


def test_process_ends_with_its_lease(folder: Path) -> None:
    """A process whose lease is not renewed gets SIGTERM, and SIGKILL after the grace; log and state give the reason."""
    start_script(folder, "trap 'echo bye' TERM; while :; do sleep 0.05; done", lease=2.0, grace=3.0)
    state = wait_for_exit(folder)
    assert (state["exit"], state["abandoned"]) == (-9, 2.0)
    assert read_log_texts(folder) == [
        "ended by its supervisor: its lease was not renewed for 2 s (deadlines.lease)",
        "bye",
    ]
    assert find_labelled(str(folder)) == []


def test_renewed_lease_keeps_a_process_alive(folder: Path, start_watched: Callable[[float], WatchingLauncher]) -> None:
    """Renewals through its status command keep a process alive; reading its status alone does not."""
    status_caller = start_watched(_LEASE_S)
    status_caller.renew_for(1.3 * _LEASE_S)
    assert call_supervisor("status", folder)["phase"] == "running"
    assert wait_for_exit(folder)["abandoned"] == _LEASE_S


@pytest.mark.parametrize("jump_s", [-1e7, 1e7])
def test_clock_change_does_not_end_a_lease(tmp_path: Path, checked_lease: CheckedLease, jump_s: float) -> None:
    """A renewal counts from when the supervisor saw it, whatever the clock of the renewing process shows."""
    for now_s in (6.0, 12.0):
        checked_lease.check_until(now_s)
        os.utime(tmp_path / "owner", (time.time() + jump_s + now_s,) * 2)
        checked_lease.check()
    checked_lease.check_until(21.0)
    assert not checked_lease.has_expired
    checked_lease.check_until(23.0)
    assert checked_lease.has_expired


def test_file_that_cannot_be_read_renews_no_lease(tmp_path: Path, checked_lease: CheckedLease) -> None:
    """A heartbeat file that is away for a moment counts as unchanged, then and when it is back."""
    for now_s, old_name, new_name in ((6.0, "owner", "away"), (8.0, "away", "owner")):
        (tmp_path / old_name).rename(tmp_path / new_name)
        checked_lease.check_until(now_s)
    checked_lease.check_until(11.0)
    assert checked_lease.has_expired


def test_supervisor_that_was_stopped_waits_for_a_heartbeat(tmp_path: Path, checked_lease: CheckedLease) -> None:
    """The time in which a supervisor was frozen with its container does not count: no heartbeat could come then."""
    checked_lease.check_until(1.0)
    checked_lease.clock.now_s = 1000.0
    checked_lease.check()
    assert not checked_lease.has_expired
    os.utime(tmp_path / "owner", (0, 0))
    checked_lease.check_until(1009.0)
    assert not checked_lease.has_expired
    checked_lease.check_until(1012.0)
    assert checked_lease.has_expired


@pytest.mark.parametrize(("now_s", "has_expired"), [(10_055.0, False), (10_065.0, True)])
def test_long_lease_is_short_after_a_freeze(checked_lease: CheckedLease, now_s: float, *, has_expired: bool) -> None:
    """After a freeze that was longer than its lease, a process waits for a minute: another attempt may run by now."""
    checked_lease.process_lease.lease_s = 1800.0
    checked_lease.check_until(1.0)
    checked_lease.clock.now_s = 10_000.0
    checked_lease.check()
    checked_lease.check_until(now_s)
    assert checked_lease.has_expired is has_expired


def test_process_that_was_stopped_keeps_its_grace(checked_lease: CheckedLease) -> None:
    """A process that is frozen after its SIGTERM has the rest of its grace when it continues."""
    checked_lease.check_until(11.0)
    checked_lease.clock.now_s = 1000.0
    checked_lease.check()
    assert (checked_lease.has_expired, checked_lease.signals) == (True, [])
    checked_lease.check_until(1004.0)
    assert set(checked_lease.signals) == {signal.SIGKILL}


def test_lease_is_renewed_on_a_full_disk(folder: Path, start_watched: Callable[[float], WatchingLauncher]) -> None:
    """A lease can be renewed on a full disk: the mtime of its file is the heartbeat."""
    (folder.parent / "owner").symlink_to("/dev/full")
    status_caller = start_watched(_LEASE_S)
    status_caller.renew_for(1.3 * _LEASE_S)
    assert call_supervisor("status", folder)["phase"] == "running"


def test_lease_is_renewed_without_its_file(folder: Path, start_watched: Callable[[float], WatchingLauncher]) -> None:
    """Where the heartbeat file cannot be opened, the supervisor gets heartbeats as signals, and the reason is sent."""
    (folder.parent / "owner").mkdir()
    status_caller = start_watched(_LEASE_S)
    status_caller.renew_for(1.3 * _LEASE_S)
    assert call_supervisor("status", folder)["phase"] == "running"
    assert status_caller.state["problem"].startswith(
        "the owner of the run cannot be recorded: [Errno 21] Is a directory"
    )


def test_lease_that_cannot_be_renewed_is_reported(
    folder: Path, start_watched: Callable[[float], WatchingLauncher]
) -> None:
    """Without its file, the lease of a process in another container cannot be renewed from here, and is named."""
    (folder.parent / "owner").mkdir()
    status_caller = start_watched(60)
    write_state(str(folder), pid_namespace="pid:[4026530000]")
    assert status_caller.wait_until(
        "here:/runs/a", lambda state: "the lease of node-0 is not renewed" in state.get("problem", "")
    )
    write_state(str(folder), pid_namespace=os.readlink("/proc/self/ns/pid"))


def test_second_launcher_gets_the_name_of_the_owner(
    folder: Path, start_watched: Callable[[float], WatchingLauncher]
) -> None:
    """A second launcher gets the name of the one that renews a process's lease, until that one counts as dead."""
    status_caller = start_watched(60)
    heartbeat_file = folder.parent / "owner"
    assert status_caller.wait_until("here:/runs/a", lambda _: "here:/runs/a" in heartbeat_file.read_text())
    assert status_caller.wait_until("there:/runs/a", lambda state: state.get("other_owner") == "here:/runs/a")
    os.utime(heartbeat_file, (time.time() - 61,) * 2)
    assert status_caller.wait_until("there:/runs/a", lambda _: heartbeat_file.read_text().strip() == "there:/runs/a")
