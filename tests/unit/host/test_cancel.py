"""Cancelling a supervised process: SIGTERM, SIGKILL after the grace, and what is reported as left over."""

import os
import signal
import time
from pathlib import Path

from tests.processes.supervised import call_supervisor, read_log_texts, start_script
from torchyard.host.processes import find_labelled


def test_cancel_sends_sigterm_first(folder: Path) -> None:
    """A process that ends on SIGTERM is not killed, and its last lines are in the log."""
    start_script(folder, "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.05; done")
    while not (folder / "log").exists() or "ready" not in read_log_texts(folder):
        time.sleep(0.01)
    assert call_supervisor("cancel", folder, grace=10)["exit"] == 5
    assert read_log_texts(folder)[-1] == "bye"


def test_cancel_kills_after_the_grace(folder: Path) -> None:
    """A process that ignores SIGTERM is killed, and nothing is left."""
    start_script(folder, "trap '' TERM; while :; do sleep 0.05; done")
    result = call_supervisor("cancel", folder, grace=0.2)
    assert (result["exit"], result["left"]) == (-9, [])


def test_cancel_of_nothing_is_a_success(folder: Path) -> None:
    """Cancelling a process that was never started succeeds and leaves nothing behind."""
    assert call_supervisor("cancel", folder, grace=1) == {"phase": "absent", "left": []}


def test_killed_supervisor_is_detected(folder: Path) -> None:
    """The status shows that a supervisor was killed, and cancel still removes its process."""
    os.kill(start_script(folder, "sleep 60")["supervisor"], signal.SIGKILL)
    assert call_supervisor("status", folder)["phase"] == "unsupervised"
    assert call_supervisor("cancel", folder, grace=1)["left"] == []
    assert find_labelled(str(folder)) == []


def test_rendezvous_file_is_removed_with_its_process(folder: Path, tmp_path: Path) -> None:
    """The rendezvous file is removed with the processes: those of another attempt would wait forever on it."""
    start_script(folder, f"touch {tmp_path}/meet; echo ready; sleep 60", meeting=str(tmp_path / "meet"))
    while not (folder / "log").exists() or "ready" not in read_log_texts(folder):
        time.sleep(0.01)
    assert call_supervisor("cancel", folder, grace=1)["left"] == []
    assert not (tmp_path / "meet").exists()
