"""Reads logs on disk: one file per node, one time stamp per line (torchyard/host/supervisor.py writes them)."""

import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from torchyard.agents import torchrun
from torchyard.common.log_lines import (
    parse_log_line,
    parse_log_line_text,
    read_new_lines,
    split_teed_line,
    strip_record,
)
from torchyard.diagnosis.first_failure.failure_signs import FailureSignReader
from torchyard.diagnosis.hang.records import BlackBox, parse_line
from torchyard.diagnosis.nccl.log import NcclLogReader
from torchyard.model.hang import RECORD_PREFIX
from torchyard.model.plan import Plan, Ranks
from torchyard.model.run import LogLine

RECORD_MARKER = RECORD_PREFIX.encode()
_FAILURE_TEXTS = ('"kind":"raised"', '"kind":"end"')  # as the recorder prints it
MAX_READ_BYTES = 1 << 20  # how much of a job's logs is read at once: the job is polled in between


class RankZeroFilter:
    """Select the output of global rank 0 in one node's log: of local rank 0 of the node that got group rank 0.

    If the lines do not name the rank that printed them, all lines of that node are selected. `joined_at` is the time of
    the line by which the agent reported that it joined; 0 until then.
    """

    def __init__(self, ranks: Ranks, *, is_first_node: bool) -> None:
        self.joined_at = 0.0
        self._is_teed = ranks == "teed"
        self._group_rank: int | None = None  # as the log shows it; None until then
        if ranks == "placed":  # without an agent the order of the nodes decides, and no line shows the rank
            self._group_rank = 0 if is_first_node else 1

    def select(self, line: LogLine) -> Iterator[str]:
        """The texts in a line that rank 0 printed: torchrun may join several lines of its ranks in one."""
        for text in split_teed_line(line.text):
            selected = self._select_one(line._replace(text=text))
            if selected is not None:
                yield selected

    def _select_one(self, line: LogLine) -> str | None:
        """The text of a line of one rank if rank 0 printed it; None if another rank or the agent did."""
        if RECORD_PREFIX in line.text:
            text = strip_record(line.text)
            return self._select_one(line._replace(text=text)) if text else None
        if line.text.startswith(torchrun.LOCAL_RANK_0_PREFIX):
            return line.text[len(torchrun.LOCAL_RANK_0_PREFIX) :] if self._group_rank == 0 else None
        worker = torchrun.parse_worker_line(line.text)
        if worker:
            local_rank, text = worker
            return text if local_rank == 0 and self._group_rank == 0 else None
        rank = torchrun.parse_group_rank(line.text)
        if rank is not None:
            self._group_rank = rank
        if torchrun.has_joined(line.text) and not self.joined_at:
            self.joined_at = line.timestamp
        return line.text if self._group_rank == 0 and not self._is_teed else None

    def select_in_block(self, node: str, block: bytes, marker: bytes) -> Iterator[str]:
        """The texts that rank 0 printed in a block of complete lines; an incomplete last line is left out.

        Only lines that contain `marker` are decoded and returned, because most lines of a long log do not.
        """
        for raw in self._find_candidates(block, marker):
            yield from self.select(LogLine(0.0, node, parse_log_line_text(raw, node)))

    def select_lines_in_block(self, node: str, block: bytes, marker: bytes) -> Iterator[LogLine]:
        """The same as lines with their time stamps."""
        for raw in self._find_candidates(block, marker):
            line = parse_log_line(raw.decode(errors="replace"), node)
            for text in self.select(line):
                yield line._replace(text=text)

    def _find_candidates(self, block: bytes, marker: bytes) -> Iterator[bytes]:
        """The raw lines of a block that may be rank 0's and contain `marker`, or that name the rank of the node."""
        if self._can_skip(block):
            return
        needle = b"" if torchrun.GROUP_RANK_MARKER in block else marker
        for raw in find_lines(block, needle):
            if (marker in raw or torchrun.GROUP_RANK_MARKER in raw) and not self._can_skip(raw):
                yield raw

    def _can_skip(self, raw: bytes) -> bool:
        """Whether raw lines can be skipped without decoding them: most lines are from other ranks."""
        is_rank_zero = self._group_rank == 0 and (not self._is_teed or torchrun.LOCAL_RANK_0_MARKER in raw)
        return not is_rank_zero and torchrun.GROUP_RANK_MARKER not in raw


def read_blocks(path: str) -> Iterator[bytes]:
    """A log in blocks of complete lines; an incomplete last line is a block too. A missing file has no blocks.

    A block has at most `MAX_READ_BYTES` and one line, which the writers of logs limit to 1 MiB.
    """
    partial_line = b""
    with suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
        while block := file.read(MAX_READ_BYTES):
            end = block.rfind(b"\n") + 1
            if end:
                yield partial_line + block[:end]
                partial_line = b""
            partial_line += block[end:]
    if partial_line:
        yield partial_line


def find_lines(block: bytes, needle: bytes) -> Iterator[bytes]:
    """The complete lines of a block that contain `needle`, without their newlines; every line if it is empty."""
    if not needle:
        yield from block.split(b"\n")[:-1]
        return
    index = block.find(needle)
    while index >= 0:
        start = block.rfind(b"\n", 0, index) + 1
        end = block.find(b"\n", index)
        if end < 0:
            return
        yield block[start:end]
        index = block.find(needle, end)


def create_filters(plan: Plan) -> dict[str, RankZeroFilter]:
    """A filter for each node."""
    return {name: RankZeroFilter(plan.ranks, is_first_node=index == 0) for index, name in enumerate(plan.nodes)}


def read_rank_zero(plan: Plan) -> Iterator[str]:
    """The lines that global rank 0 printed."""
    for name, rank_filter in create_filters(plan).items():
        for block in read_blocks(plan.nodes[name]):
            yield from rank_filter.select_in_block(name, block, b"")


def read_records(logs: Mapping[str, str]) -> Iterator[LogLine]:
    """The lines that contain a record of a rank, one node after the other. `logs`: the path of each node's log."""
    for name, path in logs.items():
        for block in read_blocks(path):
            for raw in find_lines(block, RECORD_MARKER):
                yield parse_log_line(raw.decode(errors="replace"), name)


class GrowingLog:
    """Read the complete lines of one log while it grows; `offset` is after the last one that was read.

    A log that was replaced or cut is read again from its start. A missing file is an empty log; other errors are raised
    as OSError.
    """

    def __init__(self, path: str) -> None:
        self.offset = 0
        self._path = path
        self._inode = 0

    def read_lines(self, max_bytes: int) -> Iterator[str]:
        """The lines since the last call, until they have `max_bytes` together."""
        try:
            stat = os.stat(self._path)  # not by Path: this is most of the cost of a poll of 500 idle logs
        except FileNotFoundError:
            self.offset = 0
            self._inode = 0
            return
        if stat.st_ino != self._inode or stat.st_size < self.offset:
            self.offset = 0
            self._inode = stat.st_ino
        start = self.offset
        if stat.st_size <= start:
            return
        for text, offset in read_new_lines(Path(self._path), start):
            self.offset = offset
            yield text
            if offset - start >= max_bytes:
                return


class JobLogReader:
    """Read the logs of a job while they grow: which nodes joined, how many lines there are, what rank 0 printed.

    Each call of `read` takes at most about `MAX_READ_BYTES` of all logs together, so that the job is polled in
    between; `is_behind` until a call has reached the end of every log. The next call continues with the next node, so
    that one long log does not delay the others. A log that was replaced or cut is read again from its start.

    Each complete line is used once: a rank's record goes to `black_box`, and that of its end to `failure_signs`; any
    other line counts in `line_count`, is read for NCCL's network (`nccl`; `has_nccl_update` is reset by the caller) and
    for signs of failures, and is returned if rank 0 printed it. A missing file is an empty log; other errors are raised
    as OSError.
    """

    def __init__(self, plan: Plan) -> None:
        self.line_count = 0
        self.is_behind = True
        self.nccl = NcclLogReader()
        self.has_nccl_update = False
        self.black_box = BlackBox()
        self.failure_signs = FailureSignReader()
        self._paths = plan.nodes
        self._is_placed = plan.ranks == "placed"
        self._filters = create_filters(plan)
        self._growing_logs = {name: GrowingLog(path) for name, path in self._paths.items()}
        self._node_queue = deque(self._paths)
        self._joined_nodes: set[str] = set()

    @property
    def joined(self) -> set[str]:
        """The nodes whose agents logged that they joined; without agents, those whose processes have started.

        A node stays joined if its log is removed or starts again.
        """
        joined = {name for name, rank_filter in self._filters.items() if rank_filter.joined_at}
        if self._is_placed:
            joined = {name for name, path in self._paths.items() if name in self._joined_nodes or Path(path).exists()}
        self._joined_nodes |= joined
        return set(self._joined_nodes)

    @property
    def joined_at(self) -> float:
        """When the last node joined; 0 if none has."""
        return max((rank_filter.joined_at for rank_filter in self._filters.values()), default=0.0)

    def read(self) -> list[str]:
        """Read the next part of every log, `MAX_READ_BYTES` in all; return rank 0's new lines."""
        lines = list[str]()
        remaining_bytes = MAX_READ_BYTES
        for name in tuple(self._node_queue):
            self._node_queue.rotate(-1)
            previous_offset = self._growing_logs[name].offset
            for line in self._read_new_lines(name, remaining_bytes):
                lines += self._filters[name].select(line)
            remaining_bytes -= max(self._growing_logs[name].offset - previous_offset, 0)
            if remaining_bytes <= 0:
                break
        self.is_behind = remaining_bytes <= 0
        return lines

    def _read_new_lines(self, name: str, max_bytes: int) -> Iterator[LogLine]:
        """The next lines of a log that are not only a record."""
        for text in self._growing_logs[name].read_lines(max_bytes):
            line = parse_log_line(text, name)
            if RECORD_PREFIX in text:
                self.black_box.process_text(name, f"{line.text}\n")
                if any(failure_text in text for failure_text in _FAILURE_TEXTS):
                    for record in parse_line(line.text):
                        self.failure_signs.process_record(name, record)
            else:
                self.line_count += 1
                self.failure_signs.process_line(line)
                self.has_nccl_update |= self.nccl.process_node_line(name, line.text)
                yield line
