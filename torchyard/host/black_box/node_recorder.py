"""The node's recorder: a thread in torchrun that prints the records of the node's ranks into the log.

For its healthy ranks it prints one line, their pulse, every 15 s in the first minute, then every minute; for a rank
without progress for longer than usual a line every half second, later every one, two and ten seconds; one line for a
rank whose program has ended by an exception, and one for the end of its process.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
import zlib
from collections import deque
from typing import Deque, Tuple

from . import processes, rank_recorder
from .activity import ActivityMeter
from .descriptors import own_descriptors
from .disks import DiskWatch
from .slot import Json, read_slots

RECORD_PREFIX = "torchyard-recorder: "
_POLL_INTERVAL_S = 0.5
_FIRST_PULSES_S = 65.0  # of the recorder, during which the first interval applies: four pulses can show a straggler
_PULSE_INTERVAL_S = 15.0
_LATER_PULSE_INTERVAL_S = 60.0
# A rank stalls after both: seconds without progress, and times its longest pause so far.
_STALL_FLOOR_S = 1.5
_STALL_FACTOR = 2.0
# A rank's own pauses of the last minutes, wherever they were, are not stalls either, unless they are long.
_PAUSE_FACTOR = 1.5
_PAUSE_MEMORY_S = 180.0
_MAX_USUAL_PAUSE_S = 3.0
_START_FLOOR_S = 10.0  # before the first process group: the program imports torch, and waits for the other nodes
_TORCHLESS_FLOOR_S = 10.0  # before torch is imported, of a rank that is idle for as long
_TORCHLESS_UNTIL_S = 130.0  # after that, a program that does not use torch prints nothing
_SAMPLED_FROM_S = 0.5  # without progress: the processes of a healthy job are not sampled
# Between the lines of a rank that is active outside of a collective, and therefore does not hang: less than the age
# at which torchyard takes a stall for old (diagnosis/hang/judge).
_ACTIVE_INTERVAL_S = 20.0
# Between the lines of a stalled rank, by the seconds up to which it has stalled.
_INTERVALS_S = ((6.0, 0.5), (12.0, 1.0), (40.0, 2.0), (math.inf, 10.0))
_FROZEN_S = 1.5  # without a tick of the rank's thread
_MAX_LINE_BYTES = 3900  # a pipe takes 4,096 bytes at once or not at all
_MOVING_STACK_INTERVAL_S = 10.0  # between two stacks of a rank that runs through its program
_STACK_INTERVAL_S = 60.0  # after which a stack is printed again, for readers of the log's end
_MIN_FRAMES = 8  # of a stack: the innermost ones, which name the line


class _RankWatch:
    """What the recorder remembers of one rank between two polls. Times are monotonic seconds.

    meter: of its current stall.
    printed_at: when its last line was printed.
    polled_stack_id: of its stack at the last poll.
    stack_id, stack_printed_at: of the last stack that was printed, and when; 0 if its last line had none.
    pauses: how long the rank made no progress, and when that ended, for its last pauses.
    stalled_s: seconds without progress, at the last poll.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.meter = ActivityMeter(pid)
        self.printed_at = 0.0
        self.polled_stack_id = 0
        self.stack_id = 0
        self.stack_printed_at = 0.0
        self.is_stalled = False
        self.has_raised = False
        self.has_ended = False
        self.pauses: Deque[Tuple[float, float]] = deque(maxlen=16)
        self.stalled_s = 0.0

    def note_pause(self, now: float, stalled_s: float) -> None:
        """Keep the pause that has ended, if one has: the rank has made progress since the last poll."""
        if stalled_s < self.stalled_s and self.stalled_s > _SAMPLED_FROM_S:
            self.pauses.append((self.stalled_s, now))
        self.stalled_s = stalled_s

    def get_pause_limit_s(self, now: float) -> float:
        """Seconds without progress that are normal for the rank: `_PAUSE_FACTOR` times its longest recent pause.

        At most `_MAX_USUAL_PAUSE_S`; 0 without a recent pause.
        """
        recent = [pause_s for pause_s, ended_at in self.pauses if now - ended_at < _PAUSE_MEMORY_S]
        return min(max(recent, default=0.0) * _PAUSE_FACTOR, _MAX_USUAL_PAUSE_S)


class NodeRecorder:
    """Print the records of a folder's ranks to the log, which has the file descriptor `output` at the start.

    `run` never returns: it is the target of a daemon thread, which ends with the process. It polls every
    `_POLL_INTERVAL_S` and ignores all errors, so that they cannot end the agent's process. `poll` returns the lines
    that are due at one moment. If the program closes the log, its next file may get this descriptor: then nothing is
    printed any more.
    """

    def __init__(self, folder: str, output: int = 1) -> None:
        self._folder = folder
        self._output = output
        self._pid = os.getpid()
        self._log_identity = _identify_file(output)
        self._watches: dict[int, _RankWatch] = {}
        self._disks = DiskWatch()
        self._started_at = time.monotonic()
        self._pulse_at = self._started_at  # when the last pulse was printed

    def run(self) -> None:
        """Print the lines that are due, for as long as the process runs."""
        own_descriptors({self._output})  # the process may be a rank, whose program opens and closes files
        while True:
            with contextlib.suppress(Exception):
                for line in self.poll(time.monotonic()):
                    self.print_line(line)
            time.sleep(_POLL_INTERVAL_S)

    def print_line(self, line: bytes) -> None:
        """Write a line to the log, unless the descriptor is now closed or another file."""
        if self._log_identity and _identify_file(self._output) == self._log_identity:
            os.write(self._output, line)

    def print_last(self) -> None:
        """Print which ranks have ended, or raised, since the last poll, because this process ends."""
        if os.getpid() != self._pid:
            return  # a fork of a rank
        with contextlib.suppress(Exception):
            for line in self.poll(time.monotonic()):
                self.print_line(line)

    def poll(self, now: float) -> list[bytes]:
        """The lines that are due at `now`: at most one for each rank, or for all healthy ranks together."""
        lines = []
        healthy_records = []
        for rank, record in sorted(read_slots(self._folder).items()):
            watch = self._watches.get(rank)
            if watch is None or watch.pid != record["pid"]:
                watch = self._watches[rank] = _RankWatch(record["pid"])
            kind = None if watch.has_ended else self._choose_kind(watch, record, now)
            if kind == "healthy":
                if not watch.has_raised:  # else an exception has ended its program: it does not go on
                    healthy_records.append(record)
            elif kind:
                watch.printed_at = now
                details = self._complete_record(kind, watch, record, now)
                is_settled = _identify_stack(record) == watch.polled_stack_id
                lines.append(_format_line(_omit_known_stack(watch, details, now, is_settled=is_settled)))
            watch.polled_stack_id = _identify_stack(record)
        if healthy_records and self._is_pulse_due(now):
            self._pulse_at = now
            if not any(watch.is_stalled for watch in self._watches.values()):
                self._disks.record_progress(now)
            lines += _format_pulse(healthy_records, now)
        return lines

    def _is_pulse_due(self, now: float) -> bool:
        is_first_minute = now - self._started_at < _FIRST_PULSES_S
        interval_s = _PULSE_INTERVAL_S if is_first_minute else _LATER_PULSE_INTERVAL_S
        return now - self._pulse_at >= interval_s

    def _choose_kind(self, watch: _RankWatch, record: Json, now: float) -> str | None:
        """The kind of line that is due for a rank; `healthy` if it belongs into the next pulse; None if none is."""
        if processes.has_ended(watch.pid):
            watch.has_ended = True
            return "end"
        if record.get("raised_after") is not None and not watch.has_raised:
            watch.has_raised = True
            return "raised"
        stalled_s = now - record["moved"]
        watch.note_pause(now, stalled_s)
        is_frozen = now - record["tick"] > _FROZEN_S
        if is_frozen or stalled_s > _SAMPLED_FROM_S:
            watch.meter.measure(now, record)
        if not record["torch"]:  # it imports, or does not use torch
            is_due = _TORCHLESS_FLOOR_S < stalled_s < _TORCHLESS_UNTIL_S and watch.meter.idle_s > _TORCHLESS_FLOOR_S
            return "stall" if is_due and now - watch.printed_at >= _choose_interval_s(math.inf) else None
        floor_s = _STALL_FLOOR_S if record["groups"] else _START_FLOOR_S
        limit_s = max(floor_s, _STALL_FACTOR * record["typical_pause_s"], watch.get_pause_limit_s(now))
        if is_frozen or stalled_s > limit_s:
            interval_s = _choose_interval_s(stalled_s if record["groups"] else math.inf)
            is_active = watch.meter.activity is not None and watch.meter.activity.is_active
            if watch.is_stalled and is_active and not _waits_in_collective(record):
                interval_s = max(interval_s, _ACTIVE_INTERVAL_S)
            watch.is_stalled = True
            return "stall" if now - watch.printed_at >= interval_s else None
        if stalled_s <= _SAMPLED_FROM_S:
            watch.meter.reset()
        if watch.is_stalled:
            watch.is_stalled = False
            return "resume"
        return "healthy"

    def _complete_record(self, kind: str, watch: _RankWatch, record: Json, now: float) -> Json:
        """The record to print; for a stall with what the kernel reports about the process."""
        frozen_s = max(now - record["tick"] - rank_recorder.TICK_S, 0.0)
        details = {
            "kind": kind,
            "timestamp": round(time.time(), 3),
            "rank": record["rank"],
            "world": record["world"],
            "pid": record["pid"],
            "stalled_s": round(now - record["moved"], 2),
            "typical_pause_s": round(record["typical_pause_s"], 2),
            "waiting_share": round(record["waiting_share"], 3),
            "groups": record["groups"],
        }
        if record.get("raised_after") is not None:
            details["raised_after"] = round(record["raised_after"], 3)
        if kind == "end":
            details.update(collectives=record.get("collectives"), program_world=record.get("program_world"))
        if kind != "stall":
            return details
        details.update(
            pending=record.get("pending"),
            stack=record.get("stack") or [],
            state=processes.read_state(watch.pid, record["trainer"]),
            wchan=processes.read_wchan(watch.pid, record["trainer"]),
            idle_s=round(watch.meter.idle_s, 2),
            longest_idle_s=round(watch.meter.longest_idle_s, 2),
            frozen_s=round(frozen_s, 2) if frozen_s > 1 else 0.0,
            links=processes.list_retransmitting_links(watch.pid),
            full_mount=self._disks.find_newly_full(),
        )
        if watch.meter.idle_s > 0:
            details["kernel_waits"] = watch.meter.kernel_waits
        if watch.meter.activity:
            details["uses_files"] = watch.meter.activity.uses_files
            details["is_polling"] = watch.meter.is_polling
            if watch.meter.activity.waits_for_device:
                details["waits_for_device"] = True
        if watch.meter.has_written_recently:
            details["writes_files"] = True
        if record.get("exiting"):
            details["is_exiting"] = True
        return details


def _waits_in_collective(record: Json) -> bool:
    """Whether the rank has called a collective that is not complete: with NCCL its thread computes while it waits."""
    return any(progress["enqueued"] > progress["completed"] for progress in record["groups"].values())


def _identify_stack(record: Json) -> int:
    """A number for the record's stack, the same for equal stacks; 0 if it has none."""
    stack = record.get("stack")
    return zlib.crc32(json.dumps(stack).encode()) if stack else 0


def _omit_known_stack(watch: _RankWatch, details: Json, now: float, *, is_settled: bool) -> Json:
    """The record without its stack, if one of the rank's last lines has it, or nearly has it.

    A stack is printed when it is another one and `is_settled`: the rank was in it at two polls. While the rank runs
    through its program, its stack is printed every `_MOVING_STACK_INTERVAL_S`, and lines in between refer to that one.
    """
    stack_id = _identify_stack(details)
    if not stack_id:
        watch.stack_id = 0
        return details
    age_s = now - watch.stack_printed_at
    is_known = stack_id == watch.stack_id and age_s < _STACK_INTERVAL_S
    is_moving = watch.stack_id and not is_settled and age_s < _MOVING_STACK_INTERVAL_S
    if is_known or is_moving:
        return dict(details, stack=[], stack_id=watch.stack_id)
    watch.stack_id = stack_id
    watch.stack_printed_at = now
    return dict(details, stack_id=stack_id)


def _identify_file(fd: int) -> tuple[int, int] | None:
    """The device and the inode of an open file; None if no file has this descriptor."""
    try:
        stat = os.fstat(fd)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _choose_interval_s(stalled_s: float) -> float:
    """The seconds between the lines of a rank that has stalled for so long."""
    for limit_s, interval_s in _INTERVALS_S:
        if stalled_s <= limit_s:
            return interval_s
    raise AssertionError("the last limit is infinite")


def _format_pulse(records: list[Json], now: float) -> list[bytes]:
    """The pulse of these ranks, in as few lines as fit into one write to a pipe each.

    Each rank is a list, in the order of torchyard's model: the log of a healthy job must have few bytes of it.
    """
    lines = []
    pulse = {"kind": "pulse", "timestamp": round(time.time(), 1), "world": records[0]["world"]}
    ranks: list[Json] = []
    for record in records:
        groups = {}
        for name, progress in record["groups"].items():
            groups[name] = [progress["enqueued"], progress["completed"], *progress["ranks"]]
        waiting_share = round(record["waiting_share"], 2)
        typical_pause_s = round(record["typical_pause_s"], 1)
        stalled_s = round(now - record["moved"], 1)
        rank = [record["rank"], record["pid"], waiting_share, stalled_s, typical_pause_s, groups]
        if len(encode_record(dict(pulse, ranks=[*ranks, rank]))) <= _MAX_LINE_BYTES:
            ranks.append(rank)
            continue
        if ranks:
            lines.append(encode_record(dict(pulse, ranks=ranks)))
        ranks = [rank]
        if len(encode_record(dict(pulse, ranks=ranks))) > _MAX_LINE_BYTES:  # its groups have many members
            names = ("rank", "pid", "waiting_share", "typical_pause_s", "groups")
            lines.append(_format_line(dict({name: record[name] for name in names}, stalled_s=stalled_s, **pulse)))
            ranks = []
    if ranks:
        lines.append(encode_record(dict(pulse, ranks=ranks)))
    return lines


def encode_record(record: Json) -> bytes:
    """The record as a line."""
    return (RECORD_PREFIX + json.dumps(record, separators=(",", ":")) + "\n").encode()


def _format_line(record: Json) -> bytes:
    """The record as a line that fits into one write to a pipe.

    To shorten it, outer frames are left out first, then members of groups, connections, kernel functions, groups, at
    last the one in which the rank waits, and the stack.
    """
    while True:
        line = encode_record(record)
        if len(line) <= _MAX_LINE_BYTES:
            return line
        groups = record["groups"]
        largest = max(groups, key=lambda name: len(groups[name]["ranks"]), default="")
        if len(record.get("stack") or ()) > _MIN_FRAMES:
            record = dict(record, stack=record["stack"][:-1])
        elif groups and groups[largest]["ranks"]:
            shortened_groups = dict(groups)
            shortened_groups[largest] = dict(groups[largest], ranks=[])
            record = dict(record, groups=shortened_groups)
        elif record.get("links"):
            record = dict(record, links=[])
        elif record.get("kernel_waits"):
            record = dict(record, kernel_waits=[])
        elif groups:
            pending_group = (record.get("pending") or {}).get("group")
            names = sorted(groups, key=lambda name: name != pending_group)
            record = dict(record, groups={name: groups[name] for name in names[:-1]})
        else:
            record = dict(record, stack=[], pending=None)
