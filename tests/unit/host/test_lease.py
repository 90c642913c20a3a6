"""The lease of a supervised process: it ends if no launcher renews the lease."""

import json
import os
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

_LEASE_S = 4.0  # a loaded machine may need two seconds until the status command renews it for the first time


class Clock:
    """A monotonic clock that the test sets."""

    now_s = 0.0


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
def test_clock_change_does_not_end_a_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float) -> None:
    """A renewal counts from when the supervisor saw it, whatever the clock of the renewing process shows."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now_s)
    monkeypatch.setattr(lease, "ask_to_end", lambda *_: 0.0)
    folder = tmp_path / "node-0"
    folder.mkdir()
    process_lease = lease.ProcessLease(str(folder), {"lease": 10.0})
    log = ProcessLog(str(folder), "node-0")
    for clock.now_s in (6.0, 12.0):
        (tmp_path / "owner").touch()
        os.utime(tmp_path / "owner", (time.time() + jump_s + clock.now_s,) * 2)
        process_lease.enforce(0, log)
    clock.now_s = 21.0
    process_lease.enforce(0, log)
    assert process_lease.expired_at is None
    clock.now_s = 23.0
    process_lease.enforce(0, log)
    assert process_lease.expired_at == 23.0


def test_file_that_cannot_be_read_renews_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat file that is away for a moment counts as unchanged, then and when it is back."""
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now_s)
    monkeypatch.setattr(lease, "ask_to_end", lambda *_: 0.0)
    folder = tmp_path / "node-0"
    folder.mkdir()
    (tmp_path / "owner").touch()
    process_lease = lease.ProcessLease(str(folder), {"lease": 10.0})
    log = ProcessLog(str(folder), "node-0")
    for clock.now_s, old_name, new_name in ((6.0, "owner", "away"), (8.0, "away", "owner")):
        (tmp_path / old_name).rename(tmp_path / new_name)
        process_lease.enforce(0, log)
    clock.now_s = 11.0
    process_lease.enforce(0, log)
    assert process_lease.expired_at == 11.0


def test_lease_is_renewed_on_a_full_disk(folder: Path, start_watched: Callable[[float], WatchingLauncher]) -> None:
    """A lease can be renewed on a full disk: the mtime of its file is the heartbeat."""
    (folder.parent / "owner").symlink_to("/dev/full")
    status_caller = start_watched(_LEASE_S)
    status_caller.renew_for(1.3 * _LEASE_S)
    assert call_supervisor("status", folder)["phase"] == "running"


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
