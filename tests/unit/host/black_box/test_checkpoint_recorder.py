"""CheckpointRecorder: where it prints records, and that the end of the process waits for the last ones."""

import os
import threading
from pathlib import Path

import pytest

from tests.builders.checkpoints import write_torch
from torchyard.host.black_box import checkpoint_recorder
from torchyard.host.black_box.checkpoint_recorder import CheckpointRecorder
from torchyard.host.black_box.slot import RecordSlot


class Recorder:
    """A recorder in a thread, the folder of checkpoints that it watches, and the lines that it has printed."""

    def __init__(self, folder: Path, *, rank: int) -> None:
        self.checkpoints = folder / "checkpoints"
        self.lines: list[bytes] = []
        assert RecordSlot.claim(str(folder), rank)
        self.recorder = CheckpointRecorder(str(folder), str(self.checkpoints), self.lines.append)
        self.thread = threading.Thread(target=self.recorder.run, daemon=True)
        self.thread.start()


def test_last_save_is_printed_when_the_process_ends(tmp_path: Path) -> None:
    """A save that has ended immediately before the process does is printed before that."""
    recorder = Recorder(tmp_path, rank=0)
    write_torch(recorder.checkpoints / "step_5.pt")
    recorder.recorder.print_last()
    (line,) = recorder.lines
    assert b'"step":5' in line
    assert b'"state":"complete"' in line
    recorder.thread.join(10)
    assert not recorder.thread.is_alive()


def test_only_the_node_of_rank_0_prints(tmp_path: Path) -> None:
    """On a node without rank 0 nothing is printed."""
    recorder = Recorder(tmp_path, rank=1)
    write_torch(recorder.checkpoints / "step_5.pt")
    recorder.recorder.print_last()
    assert recorder.lines == []


def test_end_does_not_wait_for_a_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that does not answer delays the end of the process for a limited time."""
    monkeypatch.setattr(checkpoint_recorder, "_LAST_POLL_TIMEOUT_S", 0.05)
    is_called = threading.Event()
    is_released = threading.Event()

    def wait(*_: object) -> bool:
        is_called.set()
        return is_released.wait(60)

    monkeypatch.setattr(checkpoint_recorder, "has_slot", wait)
    recorder = Recorder(tmp_path, rank=0)
    recorder.recorder.print_last()
    assert is_called.wait(10)
    assert recorder.thread.is_alive()
    is_released.set()
    recorder.thread.join(10)


def test_fork_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was forked from the agent has no recorder to wait for."""
    lines: list[bytes] = []
    recorder = CheckpointRecorder(str(tmp_path), str(tmp_path), lines.append)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(checkpoint_recorder, "_LAST_POLL_TIMEOUT_S", 3600.0)
    recorder.print_last()
