"""A rank's recorder: a thread that keeps the rank's record, four times a second, for 25 microseconds."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from typing import Deque, Dict, Sequence

from . import stacks, torch_facts
from .slot import Json, RecordSlot

TICK_S = 0.25
# Without progress for longer than both (seconds; times the longest pause so far), the record contains the stack.
_STALLED_S = 1.0
_STALL_FACTOR = 1.5
WINDOW_S = 15.0  # over which waiting is averaged
# Of the pauses in one line, the last ones are usual, and not the first one: it contains what is done only once.
_REMEMBERED_PAUSES = 20
_MIN_REPEATS = 3  # of a pause, after which the first one is forgotten
_MAX_CODE_LINES = 256
_LAST_WRITE_TIMEOUT_S = 1.0


class RankRecorder:
    """Keep the record of this process, which is a rank, in its slot.

    `run` never returns: it is the target of a daemon thread, which ends with the process. It writes a record every
    `TICK_S` and ignores all errors: a torch that is being imported or torn down must not end the recording. `tick`
    builds one record. Nothing is locked: torch's counters and the stacks are read while the program runs.
    """

    def __init__(self, slot: RecordSlot, rank: int, world: int, thread_ids: Sequence[int]) -> None:
        """`thread_ids`: the kernel's numbers of all recorders' threads in this process, also of later ones."""
        self._slot = slot
        self._world = world
        self._identity = {"rank": rank, "world": world, "pid": os.getpid()}
        self._thread_ids = thread_ids
        self._store_port = _read_store_port()
        self._counts: dict[str, tuple[int, int]] = {}  # called and completed, by torch's number of the group
        self._last_progress_at = time.monotonic()
        self._oldest_wait: Json | None = None
        self._inspected_stall_at = 0.0
        self._settled_groups: list[str] = []  # in this stall every call is complete, whatever torch counts
        self._group_names = torch_facts.GroupNames()
        self._code_line: stacks.CodeLine = ("", 0)  # in which the program was at the last tick
        self._pauses: Dict[stacks.CodeLine, Deque[float]] = {}  # in seconds, by the line in which the program stood
        self._training_thread = stacks.TrainingThread()
        self._waiting_ticks: deque[bool] = deque(maxlen=int(WINDOW_S / TICK_S))
        self._call_count: int | None = None  # collectives, as far as a tick has seen them; None: it has seen none
        self._program_world: int | None = None
        self._ran_at = time.time()  # when the program was last seen without an exception that ends it

    def run(self) -> None:
        """Write a record every `TICK_S`, for as long as the process runs."""
        while True:
            with contextlib.suppress(Exception):  # of a torch that is being imported, or torn down
                self._slot.write(self.tick(time.monotonic()))
            time.sleep(TICK_S)

    def write_last(self) -> None:
        """Write the record of a program that ends by itself, with the number of collectives that it has called.

        Ticks alone cannot show that there were none: a short program calls its collectives between two of them. A
        record that cannot be written is left out.
        """
        if os.getpid() != self._identity["pid"]:
            return  # a fork of the rank
        with contextlib.suppress(Exception):
            if self._call_count is None:
                self._call_count = torch_facts.count_calls()
            self._slot.write(self.tick(time.monotonic()))
            self._slot.flush(_LAST_WRITE_TIMEOUT_S)

    def tick(self, now: float) -> Json:
        """The record at the time `now`. Without an answer from torch it has no groups, but the rank is not blind."""
        try:
            counts = torch_facts.count_collectives()
            groups = self._group_names.build_groups(counts, self._world)
        except Exception:
            counts = self._counts
            groups = {}
        with contextlib.suppress(Exception):
            self._program_world = torch_facts.read_world_size() or self._program_world
        if any(enqueued for enqueued, _ in counts.values()):
            self._call_count = sum(enqueued for enqueued, _ in counts.values())
        has_raised = self._training_thread.has_ended_by_exception()
        if not has_raised:
            self._ran_at = time.time()
        position = self._training_thread.locate()
        if counts != self._counts:
            if self._counts:
                self._remember_pause(now - self._last_progress_at)
            self._counts = counts
            self._last_progress_at = now
        self._code_line = position.line
        is_waiting = any(enqueued > completed for enqueued, completed in counts.values())
        self._waiting_ticks.append(is_waiting)
        record: Json = dict(
            self._identity,
            recorder_threads=list(self._thread_ids),
            tick=now,
            torch="torch.distributed" in sys.modules,
            trainer=position.thread,
            store_port=self._store_port,
            moved=self._last_progress_at,
            typical_pause_s=self._find_typical_pause(),
            groups=groups,
            collectives=self._call_count,
            program_world=self._program_world,
            raised_after=self._ran_at if has_raised else None,
            waiting_share=sum(self._waiting_ticks) / len(self._waiting_ticks),
        )
        if not groups or now - self._last_progress_at > max(_STALLED_S, _STALL_FACTOR * record["typical_pause_s"]):
            self._add_stack(record)
        return record

    def _add_stack(self, record: Json) -> None:
        """Add where the rank is, and the call in which it waits."""
        stack = self._training_thread.read(torch_facts.find_call)
        groups = record["groups"]
        record["stack"] = stack.frames
        record["exiting"] = stack.is_exiting
        record["device_thread"] = stack.has_device_thread
        record["pending"] = self._find_pending(groups, stack.call)
        for name in groups.keys() & self._settled_groups:
            groups[name]["completed"] = groups[name]["enqueued"]

    def _remember_pause(self, pause_s: float) -> None:
        """Add the pause that ended now to those of the line in which the program stood."""
        if self._code_line not in self._pauses and len(self._pauses) >= _MAX_CODE_LINES:
            del self._pauses[next(iter(self._pauses))]
        pauses = self._pauses.setdefault(self._code_line, deque(maxlen=_REMEMBERED_PAUSES))
        pauses.append(pause_s)
        if len(pauses) == _MIN_REPEATS + 1:
            pauses.popleft()

    def _find_typical_pause(self) -> float:
        """The longest of the usual pauses in the line in which the program stands, in seconds; 0 in a new one."""
        return max(self._pauses.get(self._code_line, ()), default=0.0)

    def _find_pending(self, groups: dict[str, Json], call: Json | None) -> Json | None:
        """The call that the rank waits in, by torch's records and its stack (`call`); None if it waits in none.

        A call that is not recorded yet adds its group to `groups`, if that is new.
        """
        pending = self._find_wait(groups)
        if call is None:
            return pending
        if "sequence" in call:  # a send or receive, or a new group
            return pending or call
        if pending:
            return dict(pending, root=call["root"]) if "root" in call else pending
        group = call["unrecorded"]
        if group is None:
            return None
        ranks = torch_facts.list_ranks(group, self._world)
        progress = groups.setdefault(group, {"ranks": ranks, "enqueued": 0, "completed": 0})
        pending = {
            "group": group,
            "sequence": progress["enqueued"] + 1,
            "operation": call["operation"],
        }
        if "root" in call:
            pending["root"] = call["root"]
        return pending

    def _find_wait(self, groups: dict[str, Json]) -> Json | None:
        """The call that the rank waits in, or None. torch is queried once per stall: that takes milliseconds."""
        if self._inspected_stall_at != self._last_progress_at:
            self._inspected_stall_at = self._last_progress_at
            self._oldest_wait = None
            self._settled_groups = []
            with contextlib.suppress(Exception):
                entries = torch_facts.list_entries()
                self._oldest_wait = torch_facts.find_oldest_wait(entries, groups)
                self._settled_groups = torch_facts.list_settled_groups(entries, groups)
        wait = self._oldest_wait
        if wait and wait["group"] not in groups:
            # Without its members, only the ranks that wait would seem to be in the group.
            groups[wait["group"]] = {
                "ranks": torch_facts.list_ranks(wait["group"], self._world),
                "enqueued": wait["sequence"],
                "completed": wait["sequence"] - 1,
            }
        return wait


def _read_store_port() -> int:
    """The port of torch's store; 0 if the environment does not contain it."""
    port = os.environ.get("MASTER_PORT", "")
    return int(port) if port.isdigit() else 0
