"""The node's recorder: a thread in torchrun that prints its ranks' records, often while one makes no progress.

A healthy job gets a pulse of each rank every 15 s in the first two minutes, then every minute. A rank without progress
for longer than its rhythm has a line every half second, soon every one or two, then every ten.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time

from . import processes, rank_recorder
from .disks import DiskWatch
from .slot import Json, read_slots

RECORD_PREFIX = "torchyard-recorder: "
_POLL_INTERVAL_S = 0.5
_FIRST_PULSES_S, _PULSE_INTERVAL_S, _LATER_PULSE_INTERVAL_S = 120.0, 15.0, 60.0
_STALL_FLOOR_S, _STALL_FACTOR = 1.5, 2.0
_START_FLOOR_S = 10.0  # before the first process group: the program imports torch, and waits for the other nodes
# Of a stall: the processes of a healthy job are not looked at.
_SAMPLED_FROM_S, _SAMPLE_INTERVAL_S, _FIRST_INTERVAL_S = 0.5, 0.7, 0.4
# Between the lines of a stalled rank, by the seconds up to which it has stalled.
_INTERVALS_S = ((6.0, 0.5), (12.0, 1.0), (40.0, 2.0), (math.inf, 10.0))
_SIGNAL_INTERVAL_S = 10.0  # between two questions for a blind rank's stacks
_BLIND_S = 1.5  # without a tick of the rank's thread
_MAX_LINE_BYTES = 3900  # a pipe takes 4,096 bytes at once or not at all
_MIN_FRAMES = 8  # of a stack: the innermost ones, which name the line
_FRAME = re.compile(r'^  File "(.{1,300})", line (\d{1,7}) in (.{1,200})$')


class _RankWatch:
    """What is remembered of one rank between two turns."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.previous_sample: processes.Sample | None = None
        self.latest_sample: processes.Sample | None = None
        self.printed_at = self.pulse_at = 0.0
        self.is_stalled = self.has_ended = False
        self.signalled_at = 0.0


class NodeRecorder:
    """Reads the records in a folder; `run` never returns, and `poll` gives the lines of this moment."""

    def __init__(self, folder: str, output: int = 1) -> None:
        self._folder, self._output = folder, output
        self._watches: dict[int, _RankWatch] = {}
        self._disks = DiskWatch()
        self._started_at = time.monotonic()

    def run(self) -> None:
        while True:
            with contextlib.suppress(Exception):
                for line in self.poll(time.monotonic()):
                    os.write(self._output, line)
            time.sleep(_POLL_INTERVAL_S)

    def poll(self, now: float) -> list[bytes]:
        """One line for each rank that has something to say."""
        lines = []
        for rank, record in sorted(read_slots(self._folder).items()):
            watch = self._watches.get(rank)
            if watch is None or watch.pid != record["pid"]:
                watch = self._watches[rank] = _RankWatch(record["pid"])
                watch.pulse_at = now
            kind = None if watch.has_ended else self._choose_kind(watch, record, now)
            if kind:
                watch.printed_at = now
                lines.append(_format_line(self._complete_record(kind, watch, record, now)))
        return lines

    def _choose_kind(self, watch: _RankWatch, record: Json, now: float) -> str | None:
        """What to say of a rank now, if anything."""
        if not processes.read_state(watch.pid):
            watch.has_ended = True
            return "end"
        if not record["torch"]:
            return None  # no rank of torch, or not yet
        stalled_s = now - record["moved"]
        is_blind = now - record["tick"] > _BLIND_S
        floor_s = _STALL_FLOOR_S if record["groups"] else _START_FLOOR_S
        if is_blind or stalled_s > _SAMPLED_FROM_S:
            self._sample_process(watch, record, now)
        if is_blind or stalled_s > max(floor_s, _STALL_FACTOR * record["usual"]):
            age_s = stalled_s if record["groups"] else math.inf
            is_due = now - watch.printed_at >= next(
                interval_s for limit_s, interval_s in _INTERVALS_S if age_s <= limit_s
            )
            watch.is_stalled = True
            return "stall" if is_due else None
        if stalled_s <= _SAMPLED_FROM_S:
            watch.previous_sample = watch.latest_sample = None
        if watch.is_stalled:
            watch.is_stalled = False
            return "resume"
        pulse_interval_s = _PULSE_INTERVAL_S if now - self._started_at < _FIRST_PULSES_S else _LATER_PULSE_INTERVAL_S
        if now - watch.pulse_at < pulse_interval_s:
            return None
        watch.pulse_at = now
        if not any(other.is_stalled for other in self._watches.values()):
            self._disks.record_progress(now)
        return "pulse"

    def _sample_process(self, watch: _RankWatch, record: Json, now: float) -> None:
        """Take a sample of what the process uses; two of them tell whether it is active."""
        interval_s = _SAMPLE_INTERVAL_S if watch.previous_sample else _FIRST_INTERVAL_S
        if watch.latest_sample is None or now - watch.latest_sample.taken_at >= interval_s:
            watch.previous_sample, watch.latest_sample = watch.latest_sample, processes.Sample(now, watch.pid, record)
        if now - record["tick"] > _BLIND_S and now - watch.signalled_at > _SIGNAL_INTERVAL_S:
            watch.signalled_at = now
            if processes.read_state(watch.pid) not in "Tt" and processes.has_signal_handler(
                watch.pid, rank_recorder.STACK_SIGNAL
            ):
                os.truncate(self._get_stack_path(record), 0)
                # Linux gives a signal to the thread of this number, if it can: it interrupts no call of the program.
                os.kill(record["tid"], rank_recorder.STACK_SIGNAL)

    def _get_stack_path(self, record: Json) -> str:
        return os.path.join(self._folder, "stack-%d" % record["rank"])

    def _complete_record(self, kind: str, watch: _RankWatch, record: Json, now: float) -> Json:
        """The record with what only the kernel says."""
        blind_s = max(now - record["tick"] - rank_recorder.TICK_S, 0.0)
        details = {
            "kind": kind,
            "at": round(time.time(), 3),
            **{key: record[key] for key in ("rank", "world", "pid")},
            "stalled_s": round(now - record["moved"], 2),
            "usual_s": round(record["usual"], 2),
            "waited": round(record["waited"], 3),
            "groups": record["groups"],
        }
        if kind != "stall":
            return details
        details.update(
            waits=record.get("waits"),
            stack=record.get("stack") or [],
            state=processes.read_state(watch.pid),
            wchan=processes.read_wchan(watch.pid),
            blind_s=round(blind_s, 2) if blind_s > 1 else 0.0,
            links=processes.list_retransmitting_links(watch.pid),
            full=self._disks.find_newly_full(),
        )
        if watch.previous_sample and watch.latest_sample:
            details["is_active"] = processes.is_active(watch.previous_sample, watch.latest_sample)
            details["writes"] = processes.is_writing(watch.previous_sample, watch.latest_sample)
        if blind_s > 1:
            details["stack"] = _read_stack_file(self._get_stack_path(record)) or details["stack"]
        return details


def _format_line(record: Json) -> bytes:
    """The record as a line that a pipe takes whole: outer frames go first, then members of groups, then groups."""
    while True:
        line = (RECORD_PREFIX + json.dumps(record, separators=(",", ":")) + "\n").encode()
        if len(line) <= _MAX_LINE_BYTES:
            return line
        groups = record["groups"]
        largest = max(groups, key=lambda name: len(groups[name]["ranks"]), default="")
        if len(record.get("stack") or ()) > _MIN_FRAMES:
            record = dict(record, stack=record["stack"][:-1])
        elif groups and groups[largest]["ranks"]:
            record = dict(record, groups={**groups, largest: dict(groups[largest], ranks=[])})
        elif record.get("links"):
            record = dict(record, links=[])
        elif groups:
            record = dict(record, groups=dict(list(groups.items())[:-1]))
        else:
            record = dict(record, stack=[], waits=None)


def _read_stack_file(path: str) -> list[Json]:
    """The main thread's frames as faulthandler wrote them: it is the last thread of its list."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(1 << 18)
    except OSError:
        return []
    frames: list[Json] = []
    for line in text.splitlines():
        match = _FRAME.match(line)
        if match:
            frames.append({"function": match[3], "file": match[1][-120:], "line": int(match[2])})
        elif line:
            frames = []
    return frames[:24]
