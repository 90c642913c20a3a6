"""What a lost keeper means: the host was started again, or somebody killed it."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.test_keep import folder, keep, start
from torchyard.diagnosis.process_status import read_status
from torchyard.host.state import _STATE_BYTES, read_boot_id, view_state, write_state
from torchyard.model.run import Observation

__all__ = ["folder"]


def lose(folder: Path) -> None:
    """Kill the keeper of a living process, as a power cut does."""
    start(folder, "sleep 60")
    os.kill(view_state(str(folder))["keeper"], signal.SIGKILL)
    assert keep("status", folder)["phase"] == "unkept"


def test_killed_keeper_is_told_from_a_restart(folder: Path) -> None:
    """A keeper that was killed under a host that lives on is no restart of the host."""
    lose(folder)
    assert (view_state(str(folder))["phase"], view_state(str(folder))["rebooted"]) == ("unkept", False)


def test_restart_of_the_host_is_known(folder: Path) -> None:
    """What was kept before the host was started again says so: the kernel's word for this start is another one."""
    lose(folder)
    write_state(str(folder), boot="0190c7f0-before")
    assert view_state(str(folder))["rebooted"]


def test_keeper_of_the_version_before_was_killed(folder: Path) -> None:
    """A state without the word for the host's start is no proof of a restart."""
    lose(folder)
    known = {key: value for key, value in json.loads((folder / "state").read_text()).items() if key != "boot"}
    (folder / "state").write_text(json.dumps(known).ljust(_STATE_BYTES))
    assert (read_boot_id() != "", view_state(str(folder))["rebooted"]) == (True, False)


@pytest.mark.parametrize(
    ("rebooted", "cause", "sentence"),
    [
        (True, "host-rebooted", "the host of node-1 was started again, and nothing of the job lives there"),
        (False, "keeper-killed", "the keeper of node-1 was killed"),
    ],
)
def test_lost_keeper_is_worth_an_attempt(rebooted: bool, cause: str, sentence: str) -> None:
    """Neither is a fault of the program: with a checkpoint the next attempt goes on."""
    seen: dict[str, dict[str, Any]] = {
        "node-0": {"phase": "running"},
        "node-1": {"phase": "unkept", "exit": None, "rebooted": rebooted},
    }
    failure = read_status(Observation(seen, frozenset(seen))).failure
    assert failure
    assert (failure.cause, failure.sentence, failure.node, failure.retry) == (cause, sentence, "node-1", True)
