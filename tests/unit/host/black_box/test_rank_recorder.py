"""A rank's record from what torch says at each tick."""

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchyard.common.project_root import ROOT
from torchyard.host.black_box import torch_facts
from torchyard.host.black_box.rank_recorder import TICK_S, RankRecorder
from torchyard.host.black_box.slot import RecordSlot

Counts = dict[str, tuple[int, int]]


class Played:
    """A recorder whose torch says what the test wants, and whose clock it sets."""

    def __init__(self, folder: Path) -> None:
        slot = RecordSlot.claim(str(folder), 1)
        assert slot
        self.counts: Counts = {}
        self.recorder, self.now = RankRecorder(slot, 1, 4), 1000.0

    def tick(self, seconds: float, called: int, completed: int) -> Any:
        self.now += seconds
        self.counts.clear()
        self.counts["0"] = (called, completed)
        return self.recorder.tick(self.now)


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    made = Played(tmp_path)
    monkeypatch.setattr(torch_facts, "count_collectives", lambda: dict(made.counts))
    return made


def test_rhythm_is_the_longest_pause_between_collectives(played: Played) -> None:
    """`usual` is the longest time without progress that the rank has lived through."""
    played.tick(1, 1, 1)
    played.tick(2, 2, 2)
    assert played.tick(0.5, 3, 3)["usual"] == 2.0


def test_pause_before_the_first_collective_is_no_rhythm(played: Played) -> None:
    """The start of the program does not count."""
    assert played.tick(60, 1, 1)["usual"] == 0.0


def test_moved_is_when_the_counts_changed_last(played: Played) -> None:
    """Time without progress is counted from the last collective that was called or completed."""
    played.tick(1, 1, 0)
    moved = played.tick(1, 1, 1)["moved"]
    assert (played.tick(5, 1, 1)["moved"], moved) == (1002.0, 1002.0)


def test_call_that_torch_has_not_counted_is_complete(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pause torch's list of calls decides; a torch that cannot be asked any more costs the groups alone."""
    call = {"process_group": ["0", "default_pg"], "pg_id": 0, "collective_seq_id": 3, "retired": True}
    monkeypatch.setattr(torch_facts, "list_entries", lambda: [call])
    played.tick(1, 3, 2)
    record = played.tick(5, 3, 2)
    assert (record["groups"]["0"]["completed"], record["waits"]) == (3, None)
    monkeypatch.setattr(torch_facts, "count_collectives", lambda: 1 // 0)
    assert played.tick(1, 3, 2)["groups"] == {}


def test_waited_is_the_share_of_ticks_inside_a_collective(played: Played) -> None:
    """A rank that is in a collective at one of four ticks has waited for a quarter of the time."""
    for number in (1, 2, 3):
        played.tick(TICK_S, number, number)
    assert played.tick(TICK_S, 4, 3)["waited"] == 0.25


def test_stack_is_kept_once_the_pause_is_unusual(played: Played) -> None:
    """A pause within the rhythm costs nothing; a longer one shows the main thread, innermost frame first."""
    played.tick(1, 1, 1)
    played.tick(2, 2, 2)
    assert "stack" not in played.tick(2.5, 2, 2)
    assert played.tick(1, 2, 2)["stack"][1]["function"] == "_read_stack"


@pytest.mark.parametrize("enabled", [True, False])
def test_collector_is_as_the_program_has_it(played: Played, enabled: bool) -> None:
    """Reading the stacks leaves the garbage collector switched on, or off."""
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        played.tick(1, 1, 1)
        played.tick(5, 1, 1)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_stack_signal_is_answered_into_the_file(tmp_path: Path) -> None:
    """The handler writes all stacks, without Python's help."""
    code = f"""
import signal
from torchyard.host.black_box.rank_recorder import STACK_SIGNAL, register_stack_signal
def train():
    signal.raise_signal(STACK_SIGNAL)
register_stack_signal({str(tmp_path / "stack")!r})
train()
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert "in train" in (tmp_path / "stack").read_text()
