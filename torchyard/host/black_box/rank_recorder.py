"""A rank's recorder: a thread that keeps the rank's record, four times a second, for 25 microseconds."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from collections import deque

from . import torch_facts
from .slot import Json, RecordSlot

TICK_S = 0.25
# Without progress for longer than both (seconds; times the longest pause so far), the record contains the stack.
_STALLED_S = 1.0
_STALL_FACTOR = 1.5
WINDOW_S = 15.0  # over which waiting is averaged
_PAUSE_MEMORY_S = 600.0  # after which a pause no longer counts as usual
_MAX_FRAMES = 24


class RankRecorder:
    """Keep the record of this process, which is a rank, in its slot.

    `run` never returns: it is the target of a daemon thread, which ends with the process. It writes a record every
    `TICK_S` and ignores all errors: a torch that is being imported or torn down must not end the recording. `tick`
    builds one record. Nothing is locked: torch's counters and the stacks are read while the program runs.
    """

    def __init__(self, slot: RecordSlot, rank: int, world: int) -> None:
        self._slot = slot
        self._world = world
        self._identity = {"rank": rank, "world": world, "pid": os.getpid(), "tid": threading.get_ident()}
        self._main_thread_id = threading.main_thread().ident
        self._counts: dict[str, tuple[int, int]] = {}  # called and completed, by torch's number of the group
        self._last_progress_at = time.monotonic()
        self._oldest_wait: Json | None = None
        self._inspected_stall_at = 0.0
        self._settled_groups: list[str] = []  # in this stall every call is complete, whatever torch counts
        self._group_names = torch_facts.GroupNames()
        self._pauses: deque[tuple[float, float]] = deque(maxlen=256)  # when each ended, and its seconds
        self._waiting_ticks: deque[bool] = deque(maxlen=int(WINDOW_S / TICK_S))

    def run(self) -> None:
        """Write a record every `TICK_S`, for as long as the process runs."""
        self._identity["tid"] = threading.get_native_id()
        while True:
            with contextlib.suppress(Exception):  # of a torch that is being imported, or torn down
                self._slot.write(self.tick(time.monotonic()))
            time.sleep(TICK_S)

    def tick(self, now: float) -> Json:
        """The record at the time `now`. Without an answer from torch it has no groups, but the rank is not blind."""
        try:
            counts = torch_facts.count_collectives()
            groups = self._group_names.build_groups(counts, self._world)
        except Exception:
            counts = self._counts
            groups = {}
        if counts != self._counts:
            if self._counts:
                self._pauses.append((now, now - self._last_progress_at))
            self._counts = counts
            self._last_progress_at = now
        is_waiting = any(enqueued > completed for enqueued, completed in counts.values())
        self._waiting_ticks.append(is_waiting)
        other_threads = [thread.native_id for thread in threading.enumerate()]
        other_threads = [thread_id for thread_id in other_threads if thread_id != self._identity["tid"]]
        recent_pauses = [pause_s for ended_at, pause_s in self._pauses if ended_at > now - _PAUSE_MEMORY_S]
        record: Json = dict(
            self._identity,
            tick=now,
            torch="torch.distributed" in sys.modules,
            threads=other_threads,
            moved=self._last_progress_at,
            typical_pause_s=max(recent_pauses, default=0.0),
            groups=groups,
            waiting_share=sum(self._waiting_ticks) / len(self._waiting_ticks),
        )
        if not groups or now - self._last_progress_at > max(_STALLED_S, _STALL_FACTOR * record["typical_pause_s"]):
            record["stack"], transfer = self._read_stack()
            record["pending"] = self._find_wait(groups) or transfer
            for name in groups.keys() & self._settled_groups:
                groups[name]["completed"] = groups[name]["enqueued"]
        return record

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
        return self._oldest_wait

    def _read_stack(self) -> tuple[list[Json], Json | None]:
        """The main thread's frames, the innermost first, and the send or receive that it is in; None if in neither."""
        frame = _list_frames().get(self._main_thread_id or 0)
        frames: list[Json] = []
        transfer = None
        while frame is not None and len(frames) < _MAX_FRAMES:
            code = frame.f_code
            frames.append({"function": code.co_name, "file": code.co_filename[-120:], "line": frame.f_lineno or 0})
            transfer = transfer or torch_facts.find_transfer(frame)
            frame = frame.f_back
        return frames, transfer


def _list_frames() -> dict[int, Json]:
    """The innermost frame of each thread.

    Before 3.12 a collection inside this call could run Python code while the interpreter's list of threads is locked,
    and the next thread to end would lock up the process (CPython issue 106883).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if was_enabled:
            gc.enable()
