"""NodeRecorder: which records of a node's ranks it prints, and when."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.processes.python_commands import running_python
from tests.support.waiting import wait_until
from torchyard.diagnosis.hang import judge
from torchyard.diagnosis.hang.records import parse_records
from torchyard.host.black_box import activity, node_recorder, processes
from torchyard.host.black_box.activity import Activity
from torchyard.host.black_box.node_recorder import NodeRecorder
from torchyard.host.black_box.processes import read_state, read_wchan
from torchyard.host.black_box.slot import RecordSlot
from torchyard.model.hang import RECORD_PREFIX, RankRecord

WAIT_FOR_FIFO = "wait_for_partner"
FRAME = {"function": "load", "file": "/app/train.py", "line": 88}


def build_healthy_record(rank: int, now: float) -> dict[str, Any]:
    """What a rank of two writes at this moment if it makes progress; it lacks the ids of its process."""
    return {
        "rank": rank,
        "world": 2,
        "pid": 0,
        "recorder_threads": [],
        "tick": now,
        "moved": now,
        "typical_pause_s": 0.2,
        "torch": True,
        "trainer": 0,
        "store_port": 0,
        "groups": {"0": {"ranks": [], "enqueued": 5, "completed": 5}},
        "waiting_share": 0.1,
    }


class Node:
    """A node with one rank, which sleeps and handles a signal; the test writes its record and sets the clock."""

    def __init__(self, folder: Path) -> None:
        code = "import signal, time; signal.signal(60, lambda *_: None); time.sleep(60)"
        self.rank = subprocess.Popen([sys.executable, "-S", "-c", code])
        wait_until(lambda: read_state(self.rank.pid) == "S")
        slot = RecordSlot.claim(str(folder), 0)
        assert slot
        self.slot = slot
        self.recorder = NodeRecorder(str(folder))
        self.start = time.monotonic()

    def poll(self, elapsed_s: float, **fields: Any) -> list[RankRecord]:
        """The records printed after so many seconds; the rank's thread has just run unless `tick` is set."""
        now = self.start + elapsed_s
        record = build_healthy_record(0, now) | {"pid": self.rank.pid, "trainer": self.rank.pid}
        self.slot.write(record | fields)
        return list(parse_records("".join(line.decode() for line in self.recorder.poll(now))))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.rank.kill()
    node.rank.wait()


def test_recorder_writes_the_prefix_that_readers_expect() -> None:
    """The recorder, which imports no other module, writes the prefix of the model."""
    assert node_recorder.RECORD_PREFIX == RECORD_PREFIX


def test_healthy_rank_has_a_pulse(node: Node) -> None:
    """A rank that makes progress has its first record after 15 s."""
    assert [node.poll(elapsed_s) for elapsed_s in (0, 5, 14)] == [[], [], []]
    assert [record.kind for record in node.poll(15.5)] == ["pulse"]


def test_rank_that_has_raised_has_one_line_at_once(node: Node) -> None:
    """A rank whose program an exception has ended has a line at the next poll, and later one for its end."""
    records = node.poll(0.5, raised_after=1000.25)
    assert [(record.kind, record.raised_after) for record in records] == [("raised", 1000.25)]
    assert node.poll(1.0, raised_after=1000.25) == []
    node.rank.kill()
    node.rank.wait()
    records = node.poll(1.5, raised_after=1000.25)
    assert [(record.kind, record.raised_after) for record in records] == [("end", 1000.25)]


def test_rank_that_has_raised_is_not_healthy(node: Node) -> None:
    """A rank whose program an exception has ended has no pulse, which would report that it goes on."""
    node.poll(0.5, raised_after=1000.25)
    assert [node.poll(elapsed_s, raised_after=1000.25) for elapsed_s in (15.5, 40.0)] == [[], []]


def test_healthy_ranks_share_one_short_line(tmp_path: Path) -> None:
    """Eight healthy ranks print fewer than 450 bytes a minute, once the first minute is over."""
    recorder = NodeRecorder(str(tmp_path))
    start = time.monotonic()
    lines = []
    slots = [RecordSlot.claim(str(tmp_path), rank) for rank in range(8)]
    for elapsed_s in range(0, 301, 5):
        for rank, slot in enumerate(slots):
            assert slot
            record = build_healthy_record(rank, start + elapsed_s) | {"world": 8, "pid": os.getpid()}
            slot.write(record)
        lines += [(elapsed_s, line) for line in recorder.poll(start + elapsed_s)]
    assert [elapsed_s for elapsed_s, _ in lines] == [15, 30, 45, 60, 120, 180, 240, 300]
    assert all(len(line) < 450 for _, line in lines)
    assert [record.rank for record in parse_records(lines[-1][1].decode())] == list(range(8))


def test_pulse_of_large_groups_takes_several_lines(tmp_path: Path) -> None:
    """No line of a pulse is longer than a pipe takes at once, and every rank is in one of them."""
    recorder = NodeRecorder(str(tmp_path))
    start = time.monotonic()
    members = {0: 600, 1: 600, 2: 1200}
    for rank, count in members.items():
        slot = RecordSlot.claim(str(tmp_path), rank)
        assert slot
        group = {"ranks": list(range(count)), "enqueued": 5, "completed": 5}
        record = build_healthy_record(rank, start + 20) | {"world": 5000, "pid": os.getpid(), "groups": {"1": group}}
        slot.write(record)
    lines = recorder.poll(start + 20)
    assert (len(lines), max(map(len, lines)) <= 4096) == (3, True)
    records = list(parse_records("".join(line.decode() for line in lines)))
    assert [(record.rank, len(record.groups["1"].ranks)) for record in records] == [(0, 600), (1, 600), (2, 0)]


def test_stalled_rank_is_printed_every_half_second(node: Node) -> None:
    """A rank without progress for longer than usual is printed immediately, and then every half second."""
    polls = [node.poll(elapsed_s, moved=node.start, stack=[FRAME]) for elapsed_s in (1.0, 1.6, 2.0, 2.2)]
    assert [[record.kind for record in records] for records in polls] == [[], ["stall"], [], ["stall"]]
    assert str(polls[1][0].stack[0]) == "load (train.py:88)"
    assert (polls[-1][0].stalled_s, polls[-1][0].state) == (2.2, "S")


def test_stack_is_printed_again_only_if_it_is_another(node: Node) -> None:
    """A rank that stays at one line has its stack in the first line only; later lines refer to it, for a minute."""
    other = FRAME | {"line": 89}
    polls = [(2.0, FRAME), (2.5, FRAME), (3.0, other), (3.5, other), (4.0, other), (50.0, other), (64.0, other)]
    records = [node.poll(elapsed_s, moved=node.start, stack=[frame])[0] for elapsed_s, frame in polls]
    assert [[frame.line for frame in record.stack] for record in records] == [[88], [], [], [89], [], [], [89]]
    assert records[0].stack_id == records[2].stack_id != records[3].stack_id == records[5].stack_id


def test_stack_that_changes_all_the_time_is_printed_every_ten_seconds(node: Node) -> None:
    """A rank that imports or compiles is at another line at every poll."""
    polls = [(2.0 + poll / 2, FRAME | {"line": poll}) for poll in range(40)]
    records = [node.poll(elapsed_s, moved=node.start, stack=[frame]) for elapsed_s, frame in polls]
    stacks = [printed[0].stack[0].line for printed in records if printed and printed[0].stack]
    assert stacks == [0, 20]


def test_stack_is_printed_in_each_stall(node: Node) -> None:
    """A rank that has resumed has its stack in the first line of the next stall."""
    polls = [(2.0, 0.0), (3.0, 3.0), (6.5, 3.0)]
    records = [node.poll(now, moved=node.start + moved, stack=[FRAME])[0] for now, moved in polls]
    assert [(record.kind, len(record.stack)) for record in records] == [("stall", 1), ("resume", 0), ("stall", 1)]


def test_active_rank_is_printed_every_20_seconds(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that computes for long, and therefore does not hang, has its first line at once and then few."""
    computing = Activity(is_active=True, uses_files=False, is_polling=False)
    monkeypatch.setattr(activity, "compare_samples", lambda *_: computing)
    times = [elapsed_s for elapsed_s in range(2, 70) if node.poll(elapsed_s, moved=node.start)]
    assert times == [2, 22, 42, 62]
    assert max(later - earlier for earlier, later in pairwise(times)) < judge.FRESH_S


def test_rank_that_waits_in_nccl_is_printed_as_one_that_is_idle(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's thread computes while it waits: the rank's lines must stay young enough for a verdict to stand."""
    spinning = Activity(is_active=True, uses_files=False, is_polling=False)
    monkeypatch.setattr(activity, "compare_samples", lambda *_: spinning)
    waiting = {"0": {"ranks": [], "enqueued": 26, "completed": 25}}
    times = [elapsed_s for elapsed_s in range(2, 70) if node.poll(elapsed_s, moved=node.start, groups=waiting)]
    assert times[:5] == [2, 3, 4, 5, 6]
    assert max(later - earlier for earlier, later in pairwise(times)) <= 10


def test_waits_of_children_are_printed_while_the_rank_is_idle(node: Node, tmp_path: Path) -> None:
    """The record of an idle rank contains in which kernel functions its children sleep: one may wait for a file."""
    os.mkfifo(tmp_path / "fifo")
    code = f"import subprocess; subprocess.run(['cat', {str(tmp_path / 'fifo')!r}])"
    with running_python(code) as pid:
        wait_until(lambda: any(read_wchan(child, child) == WAIT_FOR_FIFO for child in activity.list_descendants(pid)))
        printed = [node.poll(elapsed_s, moved=node.start, pid=pid, trainer=pid) for elapsed_s in (1.0, 2.0, 3.0)]
    assert f"S {WAIT_FOR_FIFO}" in printed[-1][0].kernel_waits


def test_poll_some_seconds_ago_is_printed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that was woken while it was idle polls in all later records of that idle time."""
    waiting = Activity(is_active=False, uses_files=False, is_polling=False)
    woken_at = node.start + 6.0
    monkeypatch.setattr(
        activity, "compare_samples", lambda _, after, __: waiting._replace(is_polling=after.taken_at == woken_at)
    )
    records = [record for elapsed_s in range(9) for record in node.poll(elapsed_s, moved=node.start)]
    assert [record.stalled_s for record in records if record.is_polling] == [6.0, 7.0, 8.0]


def test_wait_for_a_gpu_is_printed(node: Node) -> None:
    """The record of a rank that waits for its GPU shows it, and that the rank is not idle."""
    frame = {"function": "synchronize", "file": "/v/site-packages/torch/cuda/__init__.py", "line": 1162}
    node.poll(1.0, moved=node.start, stack=[frame])
    (record,) = node.poll(1.6, moved=node.start, stack=[frame])
    assert (record.waits_for_device, record.idle_s) == (True, 0.0)
    assert not node.poll(2.4, moved=node.start, stack=[FRAME])[0].waits_for_device


def test_long_stall_is_printed_less_often(node: Node) -> None:
    """A stalled rank is printed every two seconds after 12 s, and every ten after 40 s."""
    times = (13.0, 14.5, 15.1, 41.0, 50.0, 51.1)
    assert [len(node.poll(elapsed_s, moved=node.start)) for elapsed_s in times] == [1, 0, 1, 1, 0, 1]


def test_usual_pause_is_not_a_stall(node: Node) -> None:
    """A rank that usually pauses for 20 s may do so again."""
    assert [record.kind for record in node.poll(30, moved=node.start, typical_pause_s=20.0)] == ["pulse"]


def test_pauses_of_the_last_minutes_are_no_stalls(node: Node) -> None:
    """A rank that has paused for two seconds, at another line, may do so again; for four seconds it may not."""

    def list_kinds(started_s: float, *polls: float) -> list[str]:
        printed = [node.poll(started_s + elapsed_s, moved=node.start + started_s) for elapsed_s in polls]
        return [record.kind for records in printed for record in records]

    assert list_kinds(0.0, 0.0, 1.0, 2.1) == ["stall"]
    assert list_kinds(2.2, 0.0, 1.0, 2.1) == ["resume"]
    assert list_kinds(4.4, 0.0, 2.1, 4.0) == ["stall"]
    assert list_kinds(9.0, 0.0) == ["resume"]
    assert list_kinds(300.0, 0.0, 2.1)[-1] == "stall"


def test_start_of_a_program_is_not_a_stall(node: Node) -> None:
    """Before the first process group a rank may import and download for some seconds."""
    assert node.poll(9, moved=node.start, groups={}, typical_pause_s=0.0) == []


def test_program_without_torch_is_not_printed(node: Node) -> None:
    """A process that does not use torch.distributed has no records."""
    assert node.poll(100, moved=node.start, groups={}, torch=False) == []


def test_rank_that_resumes_is_printed_once(node: Node) -> None:
    """The first progress after a stall is printed, and nothing after it."""
    node.poll(2, moved=node.start)
    assert [record.kind for record in node.poll(3)] == ["resume"]
    assert node.poll(4) == []


def test_stopped_rank_is_blind(node: Node) -> None:
    """A rank whose recorder thread no longer runs is printed with its state in the kernel."""
    os.kill(node.rank.pid, signal.SIGSTOP)
    wait_until(lambda: read_state(node.rank.pid) == "T")
    (record,) = node.poll(4, moved=node.start, tick=node.start)
    assert (record.state, round(record.frozen_s, 2)) == ("T", 3.75)


def test_end_of_a_rank_is_printed_once(node: Node) -> None:
    """A rank whose process has ended is printed once more, with its last record."""
    node.poll(0)
    node.rank.kill()
    node.rank.wait()
    (record,) = node.poll(1, collectives=0, program_world=1)
    assert (record.kind, record.collectives, record.program_world) == ("end", 0, 1)
    assert node.poll(2) == []


def test_failed_read_is_no_end(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that has run out of descriptors for a moment does not end a rank, whose later stalls are printed."""
    node.poll(0)

    def fail_to_open(path: str) -> str:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE), path)

    with monkeypatch.context() as patch:
        patch.setattr(processes, "_read_text", fail_to_open)
        assert node.poll(1) == []
        assert [record.state for record in node.poll(3, moved=node.start)] == ["?"]
    assert [record.kind for record in node.poll(5, moved=node.start)] == ["stall"]


def test_end_is_printed_when_the_agent_ends(tmp_path: Path, node: Node) -> None:
    """An agent that ends before its next poll prints the end of its rank first."""
    node.poll(0)
    node.rank.kill()
    node.rank.wait()
    with (tmp_path / "log").open("wb") as log:
        recorder = NodeRecorder(str(tmp_path), log.fileno())
        recorder.print_last()
    assert '"kind":"end"' in (tmp_path / "log").read_text()


def test_line_fits_into_a_pipe(node: Node) -> None:
    """A long stack loses its outer frames, so that lines of several writers are not mixed."""
    stack = [FRAME | {"file": "/app/" + "x" * 115, "line": line} for line in range(24)]
    (record,) = node.poll(4.5, moved=node.start, stack=stack)
    assert 10 < len(record.stack) < 24
    assert record.stack[0].line == 0


def test_many_groups_fit_into_a_line(node: Node) -> None:
    """Members of large groups are left out if a line would be longer than a pipe takes at once."""
    groups = {str(name): {"ranks": list(range(200)), "enqueued": 5, "completed": 5} for name in range(12)}
    (record,) = node.poll(4.5, moved=node.start, groups=groups, stack=[FRAME] * 24)
    assert (len(record.stack), record.groups["0"].enqueued) == (8, 5)


def test_group_in_which_the_rank_waits_stays_in_the_line(node: Node) -> None:
    """Groups that do not fit into a line are left out, but not the one whose members show whom the rank waits for."""
    groups = {f"{name:040}": {"ranks": [0, 1], "enqueued": 5, "completed": 5} for name in range(60)}
    pending = {"group": max(groups), "sequence": 6, "operation": "barrier"}
    (record,) = node.poll(4.5, moved=node.start, groups=groups, pending=pending)
    assert (max(groups) in record.groups, len(record.groups) < 60) == (True, True)


def test_frozen_rank_gets_no_signal(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorder sends no signal to a rank whose thread does not run: the program may handle any signal itself."""
    signals: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, signal_number: signals.append(signal_number))
    for elapsed_s in range(2, 60):
        node.poll(elapsed_s, moved=node.start, tick=node.start)
    assert signals == []


def test_file_that_takes_the_number_of_the_log_stays_as_it_is(tmp_path: Path) -> None:
    """If the program closes the log, and its next file gets the same descriptor, nothing is written into that file."""
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    recorder = NodeRecorder(str(tmp_path), output=log)
    recorder.print_line(b"a record\n")
    os.close(log)
    recorder.print_line(b"a record\n")
    model = os.open(tmp_path / "model.bin", os.O_WRONLY | os.O_CREAT)
    assert model == log
    recorder.print_line(b"a record\n")
    os.close(model)
    assert (tmp_path / "log").read_text() == "a record\n"
    assert (tmp_path / "model.bin").read_text() == ""
