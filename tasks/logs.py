"""Logs on disk: one file a node, one stamped line each (tasks/host/keep.py writes them)."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from tasks import shell
from tasks.launchers import _torchrun
from tasks.model import Block, LogLine, Plan


def read_line(text: str, node: str) -> LogLine:
    """`2026-11-21T08:00:47.123Z node-0 | text`; a line without a stamp (torn by a full disk) is kept as it is."""
    stamp, _, rest = text.partition(" ")
    try:
        at = datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return LogLine(0.0, node, text)
    return LogLine(at, node, rest.partition(" | ")[2])


def read_log(block: Block) -> Iterator[LogLine]:
    """Every line of one node, from its file."""
    for text, _ in shell.follow(Path(block.log), 0):
        yield read_line(text, block.name)


def rank_zero(lines: Iterator[LogLine]) -> Iterator[LogLine]:
    """What global rank 0 printed, if it is on this node: local rank 0 of the node that got group rank 0."""
    mine = False
    for line in lines:
        worker = _torchrun.read_worker(line.text)
        if worker is None:
            rank = _torchrun.read_group_rank(line.text)
            mine = mine if rank is None else rank == 0
        elif mine and worker[0] == 0:
            yield line._replace(text=worker[1])


class Follower:
    """The logs of a job while they grow: who has joined, when somebody last said something, what rank 0 said."""

    def __init__(self, plan: Plan, submitted_at: float) -> None:
        self.joined: set[str] = set()
        self.joined_at = 0.0
        self.last_at = submitted_at
        self._plan = plan
        self._offsets = dict.fromkeys((block.name for block in plan.on), 0)
        self._ranks: dict[str, int] = {}

    def read(self) -> list[str]:
        """Read on in every log: rank 0's new lines."""
        return [text for block in self._plan.on for line in self._new(block) if (text := self._take(line)) is not None]

    def _new(self, block: Block) -> Iterator[LogLine]:
        for text, offset in shell.follow(Path(block.log), self._offsets[block.name]):
            self._offsets[block.name] = offset
            yield read_line(text, block.name)

    def _take(self, line: LogLine) -> str | None:
        self.last_at = max(self.last_at, line.at)
        worker = _torchrun.read_worker(line.text)
        if worker:
            return worker[1] if worker[0] == 0 and self._ranks.get(line.node) == 0 else None
        if _torchrun.read_joined(line.text) and line.node not in self.joined:
            self.joined.add(line.node)
            self.joined_at = max(self.joined_at, line.at)
        rank = _torchrun.read_group_rank(line.text)
        if rank is not None:
            self._ranks[line.node] = rank
        return None
