"""What a node's recorder prints of its ranks."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from torchyard.host.black_box import node_recorder
from torchyard.host.black_box.node_recorder import NodeRecorder
from torchyard.host.black_box.processes import read_state
from torchyard.host.black_box.slot import RecordSlot
from torchyard.model.hang import RECORD_PREFIX, RankRecord

FRAME = {"function": "load", "file": "/app/train.py", "line": 88}


class Node:
    """A node with one rank, a process that sleeps; the test writes its record, and sets the clock."""

    def __init__(self, folder: Path) -> None:
        self.rank = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
        until(lambda: read_state(self.rank.pid) == "S")
        slot = RecordSlot.claim(str(folder), 0)
        assert slot
        self.slot, self.recorder = slot, NodeRecorder(str(folder))
        self.start = time.monotonic()

    def turn(self, after: float, **facts: Any) -> list[RankRecord]:
        """The records printed at a moment, in which the rank's thread has just run unless `tick` says otherwise."""
        now = self.start + after
        record: dict[str, Any] = {
            "rank": 0,
            "world": 2,
            "pid": self.rank.pid,
            "tid": 0,
            "tick": now,
            "moved": now,
            "usual": 0.2,
        }
        record |= {"torch": True, "threads": [self.rank.pid]}
        self.slot.write({**record, "groups": {"0": {"ranks": [], "called": 5, "completed": 5}}, "waited": 0.1, **facts})
        lines = [line.decode() for line in self.recorder.poll(now)]
        return [RankRecord.model_validate(json.loads(line.removeprefix(RECORD_PREFIX))) for line in lines]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.rank.kill()
    node.rank.wait()


def test_mark_is_the_one_that_readers_look_for() -> None:
    """The recorder, which knows no other module, writes the mark of the models."""
    assert node_recorder.RECORD_PREFIX == RECORD_PREFIX


def test_healthy_rank_has_a_pulse_now_and_then(node: Node) -> None:
    """A rank that makes progress is said after 15 s, and not in between."""
    assert [node.turn(at) for at in (0, 5, 14)] == [[], [], []]
    assert [record.kind for record in node.turn(15.5)] == ["pulse"]


def test_rank_that_stalls_is_said_every_half_second(node: Node) -> None:
    """A rank without progress for longer than its rhythm is said at once, and again while that lasts."""
    moved = node.start
    said = [node.turn(at, moved=moved, stack=[FRAME]) for at in (1.0, 1.6, 2.0, 2.2)]
    assert [[record.kind for record in each] for each in said] == [[], ["stall"], [], ["stall"]]
    assert (str(said[3][0].stack[0]), said[3][0].stalled_s, said[3][0].state) == ("load (train.py:88)", 2.2, "S")


def test_long_stall_is_said_less_often(node: Node) -> None:
    """After 12 s every two seconds are enough, after 40 s every ten."""
    times = (13.0, 14.5, 15.1, 41.0, 50.0, 51.1)
    assert [len(node.turn(at, moved=node.start)) for at in times] == [1, 0, 1, 1, 0, 1]


def test_pause_within_the_rhythm_is_no_stall(node: Node) -> None:
    """A rank that usually pauses for 20 s may do so again."""
    assert node.turn(30, moved=node.start, usual=20.0) == []


def test_start_of_a_program_is_no_stall(node: Node) -> None:
    """Before the first process group a rank may import and download for some seconds."""
    assert node.turn(9, moved=node.start, groups={}, usual=0.0) == []


def test_program_without_torch_is_not_spoken_of(node: Node) -> None:
    """A Python that is no rank of torch may do nothing for as long as it likes."""
    assert node.turn(100, moved=node.start, groups={}, torch=False) == []


def test_rank_that_goes_on_is_said_once(node: Node) -> None:
    """After a stall the first progress is said."""
    node.turn(2, moved=node.start)
    assert [record.kind for record in node.turn(3)] == ["resume"]
    assert node.turn(4) == []


def test_stopped_rank_is_blind(node: Node) -> None:
    """A rank whose thread does not run any more is said with its state in the kernel."""
    os.kill(node.rank.pid, signal.SIGSTOP)
    until(lambda: read_state(node.rank.pid) == "T")
    (record,) = node.turn(4, moved=node.start, tick=node.start)
    assert (record.state, round(record.blind_s, 2)) == ("T", 3.75)


def test_end_of_a_rank_is_said_once(node: Node) -> None:
    """A rank whose process is gone is said with the last that is known of it."""
    node.turn(0)
    node.rank.kill()
    node.rank.wait()
    assert [record.kind for record in node.turn(1)] == ["end"]
    assert node.turn(2) == []


def test_line_fits_into_a_pipe(node: Node) -> None:
    """A long stack loses its outer frames, so that lines of several writers are not mixed."""
    stack = [{**FRAME, "file": "/app/" + "x" * 115, "line": line} for line in range(24)]
    node.turn(2, moved=node.start, stack=stack)
    (record,) = node.turn(4.5, moved=node.start, stack=stack)
    assert 10 < len(record.stack) < 24
    assert record.stack[0].line == 0


def test_many_groups_fit_into_a_line(node: Node) -> None:
    """Members of large groups are left out before any line is longer than a pipe takes at once."""
    groups = {str(name): {"ranks": list(range(200)), "called": 5, "completed": 5} for name in range(12)}
    node.turn(2, moved=node.start, groups=groups, stack=[FRAME] * 24)
    (record,) = node.turn(4.5, moved=node.start, groups=groups, stack=[FRAME] * 24)
    assert (len(record.stack), record.groups["0"].called) == (8, 5)
