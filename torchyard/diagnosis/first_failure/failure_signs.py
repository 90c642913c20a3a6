"""Which ranks have failed, by the lines of logs that grow: uncaught exceptions, and workers that torchrun has lost."""

import re
from typing import NamedTuple

from torchyard.diagnosis.log_line_parts import LOST_WORKER_MARKER, LogLinePart, parse_line, parse_lost_worker
from torchyard.diagnosis.worker_reports import (
    CLOSING_MARKER,
    START_MARKER,
    has_started_workers,
    parse_global_ranks,
    parse_stopped_pid,
)
from torchyard.model.hang import RankRecord
from torchyard.model.run import LogLine

_MAX_STOP_DELAY_S = 1.5  # between the end of a rank and the stop of the others by its agent, which polls them

_TRACEBACK_MARKER = "]: Traceback (most recent call last):"
_RANKS_MARKER = "global_ranks=["
# torch's own hook prefixes an exception that reaches the end of the main module. A logger and `print_exc` do not call
# it, and the prefix of torchrun's tee has no space after it.
_UNCAUGHT = re.compile(
    r"(?:\[[A-Za-z_][\w.-]{0,80}?(?P<local>\d{1,3})\]:)?\[rank(?P<rank>\d{1,6})\]: Traceback \(most recent call last\):"
)


class FailureSign(NamedTuple):
    """What shows that a process of a node has failed.

    local_rank, rank: of a worker, as far as they are known; both None: the agent of the node, or its only process.
    shown_at: when it was first shown, in seconds since the epoch by the node's clock.
    exit_code: negative: a signal. None: not known yet.
    line: torchrun's line with the exit code; None without one.
    has_ended: False if it has only printed an exception that it does not catch.
    """

    node: str
    local_rank: int | None
    rank: int | None
    shown_at: float
    exit_code: int | None = None
    line: LogLinePart | None = None
    has_ended: bool = False

    @property
    def key(self) -> tuple[str, int | None, int | None]:
        """The process: its node and its rank, or else its local rank."""
        return (self.node, None if self.rank is not None else self.local_rank, self.rank)

    @property
    def is_worker(self) -> bool:
        return self.rank is not None or self.local_rank is not None


class _EndedRank(NamedTuple):
    """A rank that has ended, as the recorder reports it. `ended_at`: in seconds since the epoch."""

    rank: int
    pid: int
    ended_at: float


class _NodeEnds:
    """The ends of the workers of one node since their start.

    stopped_pids: the workers that their agent stops.
    stopped_at: when it began to stop them, in seconds since the epoch; None if it has not.
    ended_ranks: the ranks that have ended, whether or not they were stopped.
    """

    def __init__(self) -> None:
        self.stopped_pids: set[int] = set()
        self.stopped_at: float | None = None
        self.ended_ranks: dict[int, _EndedRank] = {}

    def find_reason_of_stop(self) -> _EndedRank | None:
        """The only rank that has ended by itself just before the others were stopped; None if that is not one rank."""
        if self.stopped_at is None:
            return None
        candidates: list[_EndedRank] = []
        for ended in self.ended_ranks.values():
            if ended.pid not in self.stopped_pids and ended.ended_at > self.stopped_at - _MAX_STOP_DELAY_S:
                candidates.append(ended)
        return candidates[0] if len(candidates) == 1 else None


class FailureSignReader:
    """Collect the signs of failures in the lines of a job's logs, while they grow.

    `process_line` takes each line once, in the order of its node's log, `process_record` each record in them. `signs`
    are then those since each node's agent has started its workers for the last time, one for each process that failed,
    the earliest line first. `change_count` grows with each change of them.

    torch prefixes the traceback of an uncaught exception only after the program has called init_process_group, and a
    process needs seconds to end while torch is loaded: the recorder reports the exception at once.
    torchrun reports a lost worker only after it has stopped the others of its node, which may save for as long as its
    grace. Until then the recorder shows which rank has ended without being stopped.

    An exception that is caught and logged is not a sign: only the end of the process shows that it was not survived.
    Most lines are only searched for fixed texts. Memory: one sign for each failed process, the ranks of each node.
    """

    def __init__(self) -> None:
        self.change_count = 0
        self._signs: dict[tuple[str, int | None, int | None], FailureSign] = {}
        self._global_ranks: dict[str, dict[int | None, int]] = {}  # by node, then by local rank
        self._ends: dict[str, _NodeEnds] = {}  # by node
        self._started_at: dict[str, float] = {}  # by node: when its agent has started its workers for the last time

    @property
    def signs(self) -> list[FailureSign]:
        return sorted(self._signs.values(), key=_get_time)

    def find(self, failure_sign: FailureSign) -> FailureSign | None:
        """The current sign of the same process; None if its agent has started it again."""
        current = self._signs.get(failure_sign.key)
        return current if current and current.shown_at == failure_sign.shown_at else None

    def process_line(self, line: LogLine) -> None:
        """Read the next line of a node."""
        text = line.text
        if _TRACEBACK_MARKER in text:
            self._read_traceback(line)
        elif LOST_WORKER_MARKER in text:
            self._read_lost_worker(line)
        elif _RANKS_MARKER in text:
            global_ranks = parse_global_ranks(text)
            if global_ranks:
                self._global_ranks[line.node] = global_ranks
        elif CLOSING_MARKER in text:
            self._read_stop(line)
        elif START_MARKER in text and has_started_workers(text):
            self._started_at[line.node] = line.timestamp
            self._forget(line.node)

    def process_record(self, node: str, record: RankRecord) -> None:
        """Read the next record in the log of a node."""
        # The end of a previous worker may be printed after its agent has started the next one.
        if record.raised_after is not None and record.raised_after >= self._started_at.get(node, 0.0):
            local_rank = self._find_local_rank(node, record.rank)
            has_ended = record.kind == "end"
            self._add(FailureSign(node, local_rank, record.rank, record.raised_after, has_ended=has_ended))
        if record.kind == "end":
            ends = self._ends.setdefault(node, _NodeEnds())
            ends.ended_ranks[record.rank] = _EndedRank(record.rank, record.pid, record.timestamp)
            self._add_reason_of_stop(node, ends)

    def _read_stop(self, line: LogLine) -> None:
        for part in parse_line(line):
            pid = parse_stopped_pid(part.text)
            if pid is not None and part.local_rank is None:
                ends = self._ends.setdefault(line.node, _NodeEnds())
                ends.stopped_pids.add(pid)
                ends.stopped_at = ends.stopped_at or line.timestamp
                self._add_reason_of_stop(line.node, ends)

    def _add_reason_of_stop(self, node: str, ends: _NodeEnds) -> None:
        ended = ends.find_reason_of_stop()
        if ended is None:
            return
        local_rank = self._find_local_rank(node, ended.rank)
        self._add(FailureSign(node, local_rank, ended.rank, ended.ended_at, has_ended=True))

    def _find_local_rank(self, node: str, rank: int) -> int | None:
        """The local rank of a rank of a node; None if its agent has not logged it."""
        for local_rank, global_rank in self._global_ranks.get(node, {}).items():
            if global_rank == rank:
                return local_rank
        return None

    def _read_traceback(self, line: LogLine) -> None:
        for part in parse_line(line):
            match = _UNCAUGHT.search(part.line)
            if match:
                local_rank = int(match["local"]) if match["local"] else part.local_rank
                self._add(FailureSign(line.node, local_rank, int(match["rank"]), line.timestamp))

    def _read_lost_worker(self, line: LogLine) -> None:
        for part in parse_line(line):
            lost = parse_lost_worker(part.text)
            if lost and part.local_rank is None:
                rank = self._global_ranks.get(line.node, {}).get(lost.local_rank)
                self._add(
                    FailureSign(line.node, lost.local_rank, rank, line.timestamp, lost.exit_code, part, has_ended=True)
                )

    def _add(self, failure_sign: FailureSign) -> None:
        """Store a sign; a second one of a process adds its exit code."""
        known = self._signs.get(failure_sign.key)
        if known and (known.exit_code is not None or failure_sign.exit_code is None):
            return
        self.change_count += 1
        self._signs[failure_sign.key] = failure_sign._replace(shown_at=known.shown_at) if known else failure_sign

    def _forget(self, node: str) -> None:
        """The agent of a node starts its workers: signs of its previous ones are over."""
        self._ends.pop(node, None)
        for key in [key for key in self._signs if key[0] == node]:
            del self._signs[key]
            self.change_count += 1


def _get_time(failure_sign: FailureSign) -> float:
    return failure_sign.shown_at
