"""Tests of the black box: the lines of recorders as the latest record of each rank."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders.rank_records import build_record
from torchyard.diagnosis.hang.records import BlackBox, parse_line, parse_records
from torchyard.model.hang import RECORD_PREFIX, GroupProgress


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def line(rank: int = 0, **fields: Any) -> str:
    return RECORD_PREFIX + build_record(rank, **({"node": ""} | fields)).model_dump_json()


@pytest.mark.parametrize("prefix", ["", "[default0]:", "[1,0]<stdout>:", "\x1b[32m[rank3]: ", "2026-01-01T00:00:00Z "])
def test_prefixes_before_the_mark(prefix: str) -> None:
    """Whatever a launcher puts before the mark, the record is read."""
    assert parse_line(prefix + line(2)) == [build_record(2, node="")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        RECORD_PREFIX,
        line()[:-5],
        line().replace('"world":4', '"world":0'),
        line().replace('"rank":0', '"rank":-1'),
        line().replace('"stalled_s":12.0', '"stalled_s":NaN'),
        line().replace('"stalled_s":12.0', '"stalled_s":Infinity'),
        line().replace('"idle_s":12.0', '"idle_s":NaN'),
        line(wchan="x" * 5000),
        line(wchan="a\nb"),
        line(wchan="a\x1bb"),
        line().replace('"S"', '"\\ud800"'),
        RECORD_PREFIX + "[" * 3000,
        RECORD_PREFIX + json.dumps({"kind": "stall", "unknown": 1}),
    ],
)
def test_malformed_lines_are_ignored(text: str) -> None:
    """A line that is torn, malformed or too long is no record."""
    assert parse_line(text) == []


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    """No text breaks the reader."""
    assert not list(parse_records(RECORD_PREFIX + text))


def test_carriage_returns_end_lines() -> None:
    """A progress bar before a record does not hide it."""
    assert next(parse_records(f"50%\r60%\r{line(1)}\r\n")).rank == 1


PULSE: dict[str, Any] = {
    "kind": "pulse",
    "timestamp": 5.0,
    "world": 4,
    "ranks": [[0, 70, 0.25, 0.5, 1.5, {"0": [9, 8], "1": [3, 3, 0, 2]}], [1, 71, 0, 0, 0, {}]],
}


def format_pulse(**fields: Any) -> str:
    return RECORD_PREFIX + json.dumps(PULSE | fields)


def test_pulse_of_a_node_has_a_record_for_each_rank() -> None:
    """The healthy ranks of a node share one line, with their groups."""
    first, second = parse_line("[default0]:" + format_pulse())
    assert (first.rank, first.pid, first.world, first.timestamp) == (0, 70, 4, 5.0)
    assert (first.waiting_share, first.stalled_s, first.typical_pause_s) == (0.25, 0.5, 1.5)
    assert first.groups == {
        "0": GroupProgress(enqueued=9, completed=8),
        "1": GroupProgress(enqueued=3, completed=3, ranks=(0, 2)),
    }
    assert (second.rank, second.kind, second.stalled_s, second.groups) == (1, "pulse", 0.0, {})


@pytest.mark.parametrize(
    "ranks",
    [
        [[0]],
        [[0, 70, 0.1, 0.0, 0.0, {"0": [9]}]],
        [[0, 70, 0.1, 0.0, 0.0, {"0": ["x", 1]}]],
        [[9, 70, 0.1, 0.0, 0.0, {}]],
        [0],
        {},
    ],
)
def test_malformed_pulses_are_ignored(ranks: object) -> None:
    """A pulse whose rank lacks a number, or is not in the job, has no records."""
    assert parse_line(format_pulse(ranks=ranks)) == []


def test_latest_record_and_node_of_a_rank() -> None:
    """The last record of a rank counts, with the node whose log holds it."""
    box = BlackBox(Clock())
    box.process_text("node-1", f"{line(2)}\n{line(2, stalled_s=15.0)}\n")
    assert (box.latest[2].stalled_s, box.latest[2].node, box.world) == (15.0, "node-1", 4)


def test_records_of_checkpoints_are_not_of_ranks() -> None:
    """A recorder's line about a checkpoint is no news of a rank, and hides none."""
    box = BlackBox(Clock())
    checkpoint = {"kind": "checkpoint", "timestamp": 5.0, "path": "/c/step_5.pt", "step": 5, "state": "complete"}
    text = f"{RECORD_PREFIX}{json.dumps(checkpoint)}\n"
    assert not box.process_text("n", text)
    assert box.process_text("n", f"{line(2)}\n{text}")
    assert not box.process_text("n", text)
    assert list(box.latest) == [2]


def test_collectives_of_a_rank_are_those_of_all_its_groups() -> None:
    """Completed collectives count; a rank without groups, or without a record, has no number."""
    box = BlackBox(Clock())
    box.process_text("node-1", format_pulse() + "\n")
    assert [box.count_collectives(rank) for rank in (0, 1, 2)] == [11, None, None]
    assert box.count_all_collectives() == 11


def test_last_collective_is_as_long_ago_as_the_rank_has_stalled() -> None:
    """Its time is that of the record without the stall; a rank whose record shows no collective has none."""
    box = BlackBox(Clock())
    box.process_text("n", line(1, kind="end", timestamp=50.0, stalled_s=2.0, groups={}, collectives=7) + "\n")
    box.process_text("n", line(2, timestamp=50.0, stalled_s=2.0, groups={}) + "\n")
    assert box.get_last_collectives() == {1: 48.0}


def test_healthy_pulses_are_no_news() -> None:
    """A pulse after a pulse is no news; a stall is, and so is the pulse after it."""
    box = BlackBox(Clock())
    kinds = ["pulse", "pulse", "stall", "stall", "pulse", "pulse", "end"]
    assert [box.process_text("n", line(kind=kind) + "\n") for kind in kinds] == [
        True,
        False,
        True,
        True,
        True,
        False,
        True,
    ]


def test_a_line_in_two_pieces() -> None:
    """A line that was read in two pieces is one record."""
    box = BlackBox(Clock())
    text = line(1)
    assert not box.process_text("n", text[:200])
    assert box.process_text("n", text[200:] + "\n")


def test_an_endless_line_is_dropped() -> None:
    """A line without an end is not kept."""
    box = BlackBox(Clock())
    tracemalloc.start()
    for _ in range(100):
        box.process_text("n", RECORD_PREFIX + "x" * 4000)
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 20_000


def test_ages_are_by_our_clock() -> None:
    """A node's clock may be wrong: a record's age counts from its arrival."""
    clock = Clock()
    box = BlackBox(clock)
    box.process_text("a", line(0, timestamp=5.0))
    box.process_text("b", line(2, timestamp=9e9))
    clock.now = 4.0
    assert box.get_record_ages() == {0: 4.0, 2: 4.0}


def test_a_record_that_comes_late_is_old() -> None:
    """A log stream that was held up delivers old records, and they count as old."""
    clock = Clock()
    box = BlackBox(clock)
    box.process_text("a", line(0, timestamp=1000.0))
    clock.now = 40.0
    box.process_text("a", line(0, timestamp=1010.0))
    assert box.get_record_ages() == {0: 30.0}


def test_a_clock_that_is_set_back_is_forgotten() -> None:
    """A node whose clock was set back is seen as fresh again after ten minutes."""
    clock = Clock()
    box = BlackBox(clock)
    for clock.now in range(0, 1000, 50):
        box.process_text("a", line(0, timestamp=1000.0 + clock.now - (30 if clock.now else 0)))
    assert box.get_record_ages()[0] == 0.0


def test_a_new_process_forgets_ended_ones() -> None:
    """If torchrun starts the workers again, those that had ended do not count."""
    box = BlackBox(Clock())
    box.process_text("n", line(0, kind="end") + "\n" + line(1) + "\n")
    box.process_text("n", line(1, pid=999) + "\n")
    assert set(box.latest) == {1}


def test_memory_is_bounded_by_ranks() -> None:
    """However many records come, one for each rank is kept, and twelve windows."""
    box = BlackBox(Clock())
    for turn in range(20):
        box.process_text("n", "".join(line(rank, kind="pulse", waiting_share=turn / 100) + "\n" for rank in range(4)))
    assert len(box.latest) == 4
    assert [window.waited_share for window in box.windows[3]] == [round(0.08 + turn / 100, 2) for turn in range(12)]


def test_stack_that_is_left_out_is_that_of_the_record_before() -> None:
    """A record without its stack has that of the rank's previous record, if that is the one it refers to."""
    box = BlackBox(clock=Clock())
    box.process_text("node-0", line(0, stack_id=7) + "\n" + line(0, stack_id=7, stack=()) + "\n")
    assert box.latest[0].stack == build_record(0).stack
    box.process_text("node-0", line(0, stack_id=8, stack=()) + "\n")
    assert box.latest[0].stack == ()
