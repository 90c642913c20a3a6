"""RankRecorder: a rank's record from torch's counters at each tick."""

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from torchyard.host.black_box import torch_facts
from torchyard.host.black_box.rank_recorder import TICK_S, RankRecorder
from torchyard.host.black_box.slot import RecordSlot, read_slots
from torchyard.host.black_box.stacks import Position, TrainingThread

Counts = dict[str, tuple[int, int]]


class ScriptedRank:
    """A recorder with torch's counters and a clock that the test sets."""

    def __init__(self, folder: Path) -> None:
        slot = RecordSlot.claim(str(folder), 1)
        assert slot
        self.counts: Counts = {}
        self.thread_ids: list[int] = []
        self.recorder = RankRecorder(slot, 1, 4, self.thread_ids)
        self.now = 1000.0

    def tick(self, elapsed_s: float, enqueued: int, completed: int) -> Any:
        """The record after `elapsed_s` more seconds, with the counters of the default group."""
        self.now += elapsed_s
        self.counts.clear()
        self.counts["0"] = (enqueued, completed)
        with ThreadPoolExecutor(1) as recorder_thread:
            return recorder_thread.submit(self.recorder.tick, self.now).result()


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedRank:
    rank = ScriptedRank(tmp_path)
    monkeypatch.setattr(torch_facts, "count_collectives", lambda: dict(rank.counts))
    return rank


def read_record(folder: Path) -> Any:
    return read_slots(str(folder))[1]


def test_only_the_last_record_proves_that_there_was_no_collective(
    rank: ScriptedRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick does not know the collectives between two ticks: only the record at the program's end has their number."""
    monkeypatch.setattr(torch_facts, "count_calls", lambda: 0)
    rank.counts.clear()
    assert rank.recorder.tick(1000.0)["collectives"] is None
    rank.recorder.write_last()
    assert read_record(tmp_path)["collectives"] == 0


def test_collectives_of_a_destroyed_group_are_remembered(
    rank: ScriptedRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collectives that a tick has seen, and the program's number of ranks, are in the record of its end."""
    monkeypatch.setattr(torch_facts, "count_calls", lambda: None)
    monkeypatch.setattr(torch_facts, "read_world_size", lambda: 4 if rank.counts else None)
    rank.tick(1, 7, 7)
    rank.counts.clear()
    rank.recorder.write_last()
    record = read_record(tmp_path)
    assert (record["collectives"], record["program_world"], record["groups"]) == (7, 4, {})


def test_exception_is_dated_by_the_tick_before_it(rank: ScriptedRank, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record with an exception has the time of the last tick before it: the exception is printed later than that."""
    times = iter((50.0, 50.25))
    monkeypatch.setattr("time.time", lambda: next(times))
    assert [rank.tick(0.25, 1, 1)["raised_after"] for _ in range(2)] == [None, None]
    monkeypatch.setattr(TrainingThread, "has_ended_by_exception", lambda _: True)
    assert [rank.tick(0.25, 1, 1)["raised_after"] for _ in range(2)] == [50.25, 50.25]


def test_fork_does_not_write_the_last_record(
    rank: ScriptedRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork of the rank, which runs the same functions at its exit, leaves the record as it is."""
    rank.recorder.write_last()
    record = read_record(tmp_path)
    monkeypatch.setattr("os.getpid", lambda: record["pid"] + 1)
    rank.recorder.write_last()
    assert read_record(tmp_path) == record


def test_typical_pause_is_the_longest_between_collectives(rank: ScriptedRank) -> None:
    """`typical_pause_s` is the longest time without progress at the line where the program stands."""
    rank.tick(1, 1, 1)
    rank.tick(2, 2, 2)
    assert rank.tick(0.5, 3, 3)["typical_pause_s"] == 2.0


def test_each_line_has_its_own_rhythm(rank: ScriptedRank, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses of an evaluation do not count in the steps, and those of the steps not in the evaluation."""
    line = ("train.py", 40)
    monkeypatch.setattr(TrainingThread, "locate", lambda _: Position(1, line))
    rank.tick(1, 1, 1)
    rank.tick(0.5, 2, 2)
    line = ("train.py", 90)
    assert rank.tick(0.5, 3, 3)["typical_pause_s"] == 0.0
    assert rank.tick(45, 4, 4)["typical_pause_s"] == 45.0
    line = ("train.py", 40)
    assert rank.tick(1, 5, 5)["typical_pause_s"] == 0.5


def test_rhythm_forgets_the_start(rank: ScriptedRank) -> None:
    """The first step, which compiles and connects, is not usual once three more have been made."""
    rank.tick(1, 1, 1)
    rank.tick(60, 2, 2)
    assert rank.tick(2, 3, 3)["typical_pause_s"] == 60.0
    rank.tick(2, 4, 4)
    assert rank.tick(2, 5, 5)["typical_pause_s"] == 2.0


def test_rhythm_is_that_of_the_last_pauses(rank: ScriptedRank) -> None:
    """A slower time is forgotten after twenty pauses."""
    for number in range(10):
        rank.tick(5, number, number)
    pauses = [rank.tick(1, number, number)["typical_pause_s"] for number in range(10, 40)]
    assert (pauses[0], pauses[-1]) == (5.0, 1.0)


def test_pause_before_the_first_collective_does_not_count(rank: ScriptedRank) -> None:
    """The time before the first collective is not a pause."""
    assert rank.tick(60, 1, 1)["typical_pause_s"] == 0.0


def test_moved_is_when_the_counts_changed_last(rank: ScriptedRank) -> None:
    """Time without progress is counted from the last collective that was called or completed."""
    rank.tick(1, 1, 0)
    moved = rank.tick(1, 1, 1)["moved"]
    assert (rank.tick(5, 1, 1)["moved"], moved) == (1002.0, 1002.0)


@pytest.mark.parametrize(
    ("group", "pending"),
    [
        ("0", {"group": "0", "sequence": 4, "operation": "gather", "root": 2}),
        ("7", {"group": "7", "sequence": 1, "operation": "gather", "root": 2}),
    ],
)
def test_call_that_blocks_before_torch_records_it_is_pending(
    rank: ScriptedRank, monkeypatch: pytest.MonkeyPatch, group: str, pending: dict[str, object]
) -> None:
    """NCCL's first call in a group blocks until all ranks have connected: it is the next call of that group."""
    call = {"operation": "gather", "root": 2, "unrecorded": group}
    monkeypatch.setattr(torch_facts, "list_entries", list)
    monkeypatch.setattr(torch_facts, "_list_members", lambda: {"7": [0, 1]})
    monkeypatch.setattr(torch_facts, "find_call", lambda frames: call)
    rank.tick(1, 3, 3)
    record = rank.tick(5, 3, 3)
    assert record["pending"] == pending
    assert record["groups"]["7"]["ranks"] == [0, 1] if group == "7" else "7" not in record["groups"]


def test_pending_group_has_its_members_before_it_is_counted(
    rank: ScriptedRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that torch has recorded, and not counted, is in a group with all its members, not in one of waiters."""
    call = {"process_group": ["7", "dp"], "pg_id": 1, "collective_seq_id": 1, "profiling_name": "gloo:barrier"}
    monkeypatch.setattr(torch_facts, "list_entries", lambda: [call])
    monkeypatch.setattr(torch_facts, "_list_members", lambda: {"7": [0, 1]})
    rank.tick(1, 3, 3)
    record = rank.tick(5, 3, 3)
    assert record["pending"]["group"] == "7"
    assert record["groups"]["7"] == {"ranks": [0, 1], "enqueued": 1, "completed": 0}


def test_call_that_torch_has_not_counted_is_complete(rank: ScriptedRank, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pause torch's list of calls decides, and if torch's counters cannot be read, the record has no groups."""
    call = {"process_group": ["0", "default_pg"], "pg_id": 0, "collective_seq_id": 3, "retired": True}
    monkeypatch.setattr(torch_facts, "list_entries", lambda: [call])
    rank.tick(1, 3, 2)
    record = rank.tick(5, 3, 2)
    assert (record["groups"]["0"]["completed"], record["pending"]) == (3, None)
    monkeypatch.setattr(torch_facts, "count_collectives", lambda: 1 // 0)
    assert rank.tick(1, 3, 2)["groups"] == {}


def test_record_has_the_threads_of_all_recorders(rank: ScriptedRank) -> None:
    """The node's recorder may start after the rank's, in the same process: the next record has its thread."""
    rank.thread_ids.append(41)
    assert rank.tick(1, 1, 1)["recorder_threads"] == [41]
    rank.thread_ids.append(42)
    assert rank.tick(1, 1, 1)["recorder_threads"] == [41, 42]


def test_waiting_share_is_that_of_ticks_inside_a_collective(rank: ScriptedRank) -> None:
    """A rank that is in a collective at one of four ticks has waited for a quarter of the time."""
    for number in (1, 2, 3):
        rank.tick(TICK_S, number, number)
    assert rank.tick(TICK_S, 4, 3)["waiting_share"] == 0.25


def test_stack_is_kept_once_the_pause_is_unusual(rank: ScriptedRank) -> None:
    """Only in a longer pause than usual the record contains the main thread's stack, innermost frame first."""
    rank.tick(1, 1, 1)
    rank.tick(2, 2, 2)
    assert "stack" not in rank.tick(2.5, 2, 2)
    assert "tick" in [frame["function"] for frame in rank.tick(1, 2, 2)["stack"]]


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collector_stays_as_it_was(rank: ScriptedRank, enabled: bool) -> None:
    """Reading the stacks leaves the garbage collector enabled or disabled, as it was."""
    was_enabled = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        rank.tick(1, 1, 1)
        rank.tick(5, 1, 1)
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
