"""The state of a process without its supervisor: the host was restarted, or the supervisor was killed."""

import json
import os
import signal
from pathlib import Path

from tests.processes.supervised import call_supervisor, start_script
from torchyard.host.state import STATE_BYTES, read_boot_id, view_state, write_state


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


def test_state_without_a_boot_id_is_not_a_reboot(folder: Path) -> None:
    """A state without a boot id does not prove a restart."""
    kill_supervisor(folder)
    state = {key: value for key, value in json.loads((folder / "state").read_text()).items() if key != "boot"}
    (folder / "state").write_text(json.dumps(state).ljust(STATE_BYTES))
    assert (read_boot_id() != "", view_state(str(folder))["rebooted"]) == (True, False)
