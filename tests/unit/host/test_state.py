"""The state of a process for an observer: its supervisor was killed, its host was restarted, or it is elsewhere."""

import errno
import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.processes.supervised import call_supervisor, start_script
from torchyard.host import identity, state
from torchyard.host.state import STATE_BYTES, measure_age, read_state, view_state, write_state


def kill_supervisor(folder: Path) -> None:
    """Kill the supervisor of a living process, as a power cut does."""
    start_script(folder, "sleep 60")
    os.kill(view_state(str(folder))["supervisor"], signal.SIGKILL)
    assert call_supervisor("status", folder)["phase"] == "unsupervised"


def test_killed_supervisor_is_not_a_reboot(folder: Path) -> None:
    """A supervisor that was killed on a running host does not look like a restart of the host."""
    kill_supervisor(folder)
    assert (view_state(str(folder))["phase"], view_state(str(folder))["rebooted"]) == ("unsupervised", False)


def test_reboot_of_the_host_is_detected(folder: Path) -> None:
    """A restart of the host is detected by the kernel's boot id, which differs from the one in the state."""
    kill_supervisor(folder)
    write_state(str(folder), boot="0190c7f0-before")
    assert view_state(str(folder))["rebooted"]


def test_reboot_during_the_start_is_detected(folder: Path) -> None:
    """A power cut before the program was executed leaves the state of a starting process, which names the boot."""
    kill_supervisor(folder)
    write_state(str(folder), phase="starting", boot="0190c7f0-before")
    view = view_state(str(folder))
    assert (view["phase"], view["rebooted"]) == ("unsupervised", True)


def test_torn_state_without_a_supervisor_is_unsupervised(folder: Path) -> None:
    """A state that a power cut has left empty is not that of a process which is starting: nothing holds the lock."""
    kill_supervisor(folder)
    (folder / "state").write_bytes(b"")
    assert view_state(str(folder))["phase"] == "unsupervised"


def test_torn_state_of_another_machine_proves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a state the host of a process is unknown, and its lock is not always visible on another machine."""
    kill_supervisor(folder)
    (folder / "state").write_bytes(b"")
    monkeypatch.setattr(state, "is_on_local_filesystem", lambda _: False)
    assert view_state(str(folder))["phase"] == "starting"


def test_first_state_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first state is on disk before anything is started; later ones overwrite the same block."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    for phase in ("starting", "running"):
        write_state(str(tmp_path), phase=phase)
    assert len(synced) == 1


def test_state_without_a_boot_id_is_not_judged(folder: Path) -> None:
    """A state that does not name its host proves neither a restart nor the death of its supervisor."""
    kill_supervisor(folder)
    fields = {key: value for key, value in json.loads((folder / "state").read_text()).items() if key != "boot"}
    (folder / "state").write_text(json.dumps(fields).ljust(STATE_BYTES))
    view = view_state(str(folder))
    assert (view["phase"], "on another machine" in view["detail"]) == ("running", True)


def test_free_lock_of_another_machine_proves_nothing(folder: Path) -> None:
    """Machines that share a disk do not always share its locks: the supervisor there may be alive."""
    kill_supervisor(folder)
    write_state(str(folder), boot="0190c7f0-before", hostname="gpu2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "is_on_local_filesystem", lambda _: False)
        view = view_state(str(folder))
    assert (view["phase"], view["elsewhere"]) == ("running", "on another machine, whose host name is gpu2")


def test_free_lock_of_another_container_shows_a_killed_supervisor(folder: Path) -> None:
    """A lock of this kernel is free only if its supervisor is dead; its process may still run in that container."""
    kill_supervisor(folder)
    write_state(str(folder), pid_namespace="pid:[4026530000]")
    view = view_state(str(folder))
    assert (view["phase"], view["rebooted"], "in another PID namespace" in view["elsewhere"]) == (
        "unsupervised",
        False,
        True,
    )


def test_state_on_a_read_only_file_system_is_readable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An observer opens no file for writing: a file system that was mounted read-only after an error has a state."""
    start_script(folder, "sleep 60")
    real_open = os.open

    def open_read_only(path: str, flags: int, *args: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return real_open(path, flags, *args)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_read_only)
        assert view_state(str(folder))["phase"] == "running"


# --- the age of a process


def test_age_does_not_depend_on_the_clock(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The age of a process is measured by the kernel's clock, so that a clock a day ahead makes no job old."""
    start_script(folder, "sleep 60")
    real_time = time.time
    monkeypatch.setattr(time, "time", lambda: real_time() + 86400)
    age_s = measure_age(read_state(str(folder)))
    assert age_s is not None
    assert 0 <= age_s < 60


def test_age_on_another_kernel_is_unknown(folder: Path) -> None:
    """A start time of another boot or machine cannot be compared with this kernel's clock."""
    start_script(folder, "exit 0")
    assert measure_age(read_state(str(folder)) | {"boot": "0190c7f0-before"}) is None
