"""The output of one rank, or of one node, in the logs of a job: all of it, or what is new while the job runs."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from torchyard.agents import torchrun
from torchyard.common.log_lines import parse_log_line, parse_log_line_text, split_teed_line, strip_record
from torchyard.model.errors import SelectionError
from torchyard.model.plan import Ranks
from torchyard.model.run import LogLine
from torchyard.steps.log_reader import MAX_READ_BYTES, GrowingLog, read_blocks

_RANKS_PATTERN = re.compile(r"\s(local|global)_ranks=\[([\d, ]{1,65536})\]\s*$")


class LogSelection(NamedTuple):
    """The lines that are wanted: those of a node, if it is not None, else those of a global rank."""

    rank: int = 0
    node: str | None = None


class RankLayout(NamedTuple):
    """How to find the lines of a rank in the logs of a job.

    ranks: see torchyard/model/plan.py.
    processes: per node; None if unknown. It counts only for a job whose logs do not name the ranks of a node.
    """

    ranks: Ranks
    processes: int | None = None


class LineFilter(Protocol):
    """Selects texts in the lines of one node's log, which come in order."""

    def select(self, line: LogLine) -> Iterator[str]: ...


class NodeFilter:
    """Select every line of a node, without the recorder's records."""

    def select(self, line: LogLine) -> Iterator[str]:
        text = strip_record(line.text)
        if text is not None:
            yield text


class RankFilter:
    """Select the lines of one global rank in one node's log.

    The agent's log names the node's ranks, again after each restart. If it does not separate its workers' lines
    (`logged`), the lines of a node that has the rank are selected, from where the log names it; without an agent
    (`placed`) those of the node with that place in the job.
    """

    def __init__(self, rank: int, layout: RankLayout, node_index: int) -> None:
        self._rank = rank
        self._is_teed = layout.ranks == "teed"
        self._local_ranks: Sequence[int] = ()
        self._global_ranks: Sequence[int] = ()
        if layout.ranks == "placed":
            processes = layout.processes or 1
            self._local_ranks = range(processes)
            self._global_ranks = range(node_index * processes, (node_index + 1) * processes)

    def select(self, line: LogLine) -> Iterator[str]:
        """The texts of a line that the rank printed: torchrun may join several lines of its ranks in one."""
        for part in split_teed_line(line.text):
            text = strip_record(part)
            if text is None:
                continue
            worker = torchrun.parse_worker_line(text)
            if worker is None:
                self._read_ranks(text)
                if not self._is_teed and self._rank in self._global_ranks:
                    yield text
            elif self._get_global_rank(worker.local_rank) == self._rank:
                yield worker.text

    def _read_ranks(self, text: str) -> None:
        """Read the ranks of the node from a line of the agent."""
        match = _RANKS_PATTERN.search(text)
        if match is None:
            return
        ranks = [int(number) for number in match[2].split(",") if number.strip()]
        if match[1] == "local":
            self._local_ranks = ranks
        else:
            self._global_ranks = ranks

    def _get_global_rank(self, local_rank: int) -> int | None:
        """The global rank of a worker; None if the agent has not named it."""
        for candidate, global_rank in zip(self._local_ranks, self._global_ranks, strict=False):
            if candidate == local_rank:
                return global_rank
        return None


def check_selection(nodes: Collection[str], selection: LogSelection, layout: RankLayout) -> None:
    """Raise SelectionError if the job has no such node, or no such rank, as far as its number of ranks is known."""
    if selection.node is not None:
        if selection.node not in nodes:
            raise SelectionError(f"--node {selection.node}: the job has no such node; its nodes are {', '.join(nodes)}")
    elif layout.processes is not None and selection.rank >= len(nodes) * layout.processes:
        last_rank = len(nodes) * layout.processes - 1
        raise SelectionError(f"--rank {selection.rank}: the job has no such rank; its ranks are 0 to {last_rank}")


def create_filter(selection: LogSelection, layout: RankLayout, node: str, node_index: int) -> LineFilter | None:
    """The filter for the log of a node; None if the log of another node is selected.

    `node_index`: the place of the node in the job, from 0 on.
    """
    if selection.node is None:
        return RankFilter(selection.rank, layout, node_index)
    return NodeFilter() if selection.node == node else None


def read_output(paths: Mapping[str, str], layout: RankLayout, selection: LogSelection) -> Iterator[str]:
    """All selected lines of the logs, by node, one node after the other; an incomplete last line counts.

    OSError if a log cannot be read.
    """
    for index, (node, path) in enumerate(paths.items()):
        line_filter = create_filter(selection, layout, node, index)
        if line_filter is None:
            continue
        for block in read_blocks(path):
            lines = block.split(b"\n")
            if not lines[-1]:
                lines.pop()
            for raw in lines:
                yield from line_filter.select(LogLine(0.0, node, parse_log_line_text(raw, node)))


class OutputFollower:
    """Read the selected lines of a job while its logs grow: each call of `read` returns the new ones."""

    def __init__(self, selection: LogSelection, layout: RankLayout) -> None:
        self._selection = selection
        self._layout = layout
        self._logs: dict[str, tuple[GrowingLog, LineFilter]] = {}

    def add_node(self, node: str, path: str, node_index: int) -> None:
        """Read the log of a node too, if its lines can be selected and it is not read yet."""
        line_filter = create_filter(self._selection, self._layout, node, node_index)
        if line_filter and node not in self._logs:
            self._logs[node] = (GrowingLog(path), line_filter)

    def read(self) -> Iterator[str]:
        """The next lines, at most about `MAX_READ_BYTES` of each log. OSError if a log cannot be read."""
        for node, (growing_log, line_filter) in self._logs.items():
            for text in growing_log.read_lines(MAX_READ_BYTES):
                yield from line_filter.select(parse_log_line(text, node))
