"""Logs on disk: one file a node, one stamped line each (tasks/host/keep.py writes them)."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from tasks import shell
from tasks.launchers import _torchrun
from tasks.model import LogLine
from tasks.plan import Plan, Ranks


def read_line(text: str, node: str) -> LogLine:
    """`2026-11-21T08:00:47.123Z node-0 | text`; a line without a stamp (torn by a full disk) is kept as it is."""
    stamp, _, rest = text.partition(" ")
    try:
        at = datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return LogLine(0.0, node, text)
    return LogLine(at, node, rest.partition(" | ")[2])


def read_log(node: str, path: str) -> Iterator[LogLine]:
    """Every line of one node, from its file."""
    for text, _ in shell.follow(Path(path), 0):
        yield read_line(text, node)


class Node:
    """Reads one node's log for what global rank 0 prints: local rank 0 of the node that got group rank 0.

    Where nobody says which rank printed a line, all of that node's lines count.
    """

    def __init__(self, ranks: Ranks, first: bool) -> None:
        self.joined_at = 0.0
        self._rank = (0 if first else 1) if ranks == "placed" else None
        self._teed = ranks == "teed"

    def take(self, line: LogLine) -> str | None:
        """The text, if rank 0 printed it."""
        worker = _torchrun.read_worker(line.text)
        if worker:
            return worker[1] if worker[0] == 0 and self._rank == 0 else None
        rank = _torchrun.read_group_rank(line.text)
        if rank is not None:
            self._rank = rank
        if _torchrun.read_joined(line.text) and not self.joined_at:
            self.joined_at = line.at
        return line.text if self._rank == 0 and not self._teed else None


def readers(plan: Plan) -> dict[str, Node]:
    """A reader for each node."""
    return {name: Node(plan.ranks, index == 0) for index, name in enumerate(plan.nodes)}


def rank_zero(plan: Plan) -> Iterator[LogLine]:
    """What global rank 0 printed."""
    for name, node in readers(plan).items():
        for line in read_log(name, plan.nodes[name]):
            text = node.take(line)
            if text is not None:
                yield line._replace(text=text)


class Follower:
    """The logs of a job while they grow: who has joined, when somebody last said something, what rank 0 said."""

    def __init__(self, plan: Plan, submitted_at: float) -> None:
        self.last_at = submitted_at
        self._paths = plan.nodes
        self._placed = plan.ranks == "placed"
        self._nodes = readers(plan)
        self._offsets = dict.fromkeys(self._paths, 0)

    @property
    def joined(self) -> set[str]:
        """The nodes that say that they joined; where no agent says it, those whose processes have begun."""
        if self._placed:
            return {name for name, path in self._paths.items() if Path(path).exists()}
        return {name for name, node in self._nodes.items() if node.joined_at}

    @property
    def joined_at(self) -> float:
        """When the last one of them did; 0 where none has."""
        return max((node.joined_at for node in self._nodes.values()), default=0.0)

    def read(self) -> list[str]:
        """Read on in every log: rank 0's new lines."""
        found = (self._nodes[name].take(line) for name in self._paths for line in self._new(name))
        return [text for text in found if text is not None]

    def _new(self, name: str) -> Iterator[LogLine]:
        for text, offset in shell.follow(Path(self._paths[name]), self._offsets[name]):
            self._offsets[name] = offset
            line = read_line(text, name)
            self.last_at = max(self.last_at, line.at)
            yield line
