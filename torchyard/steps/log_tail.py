"""Reads the log files of an ended job: their line counts and their last lines, without the recorder's records."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from torchyard.common.log_lines import BLOCK_BYTES, parse_log_line, parse_log_line_text, strip_record
from torchyard.model.hang import RECORD_PREFIX
from torchyard.model.run import LogLine

# After a line with a failure word: the lines that are read with it, such as a traceback.
_FAILURE_CONTEXT_LINES = 40
_MAX_CONTEXT_BYTES = 16 << 10
# Every line that shows a cause (diagnosis/log_patterns.py) contains one of these.
_FAILURE_WORDS = (
    b"Traceback (",
    b"rror",
    b"ERROR",
    b"NCCL WARN",
    b"NVRM: Xid",
    b"CANCELLED",
    b"terminate called",
    b"Interrupt",
    b"timed out",
    b"timeout",
    b"out of memory",
    b"Killed",
    b"kill",
    b"died",
    b"signal",
    b"core dumped",
    b"retry count",
    b"fault by GPU",
    b"temporarily unavailable",
    b".exceptions.",
    b"corrupt",
    b"invalid pointer",
    b"No space left",
    b"No such file",
    b"No module named",
    b"can't open",
    b"not found",
    b"not defined",
    b"denied",
    b"exceed",
    b"low on resource",
    b"reempted",
    b"nodes are available",
    b"are needed",
    b"Failed",
    b"No more machines",
)
_RECORD_MARKER = RECORD_PREFIX.encode()


def count_lines(path: str) -> int:
    """The number of complete lines in a file; 0 if it does not exist."""
    count = 0
    with suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
        while block := file.read(BLOCK_BYTES):
            count += block.count(b"\n")
    return count


class TailLimits(NamedTuple):
    """How much of the logs of a job is read at most; the nodes share the totals.

    node_lines: last lines of a node.
    total_lines: last lines of all nodes.
    total_bytes: of the last lines of all nodes.
    min_node_bytes: of a node, however many nodes share `total_bytes`.
    failure_lines: lines of a node with a failure word, before its last lines.
    """

    node_lines: int = 5000
    total_lines: int = 320_000
    total_bytes: int = 128 << 20
    min_node_bytes: int = 128 << 10
    failure_lines: int = 1000


DEFAULT_TAIL_LIMITS = TailLimits()


class LogTails(Mapping[str, list[LogLine]]):
    """The last lines of each node, read on demand, because those of a thousand nodes need not fit in memory.

    `with_failures`: earlier lines with a failure word precede them, each with some lines that follow it. A missing file
    has no lines; other errors are raised as OSError.
    """

    def __init__(
        self, paths: Mapping[str, str], *, with_failures: bool = False, limits: TailLimits = DEFAULT_TAIL_LIMITS
    ) -> None:
        node_count = max(len(paths), 1)
        self._paths = paths
        self._with_failures = with_failures
        self._max_lines = min(limits.node_lines, limits.total_lines // node_count)
        self._max_bytes = max(limits.min_node_bytes, limits.total_bytes // node_count)
        self._max_failure_lines = limits.failure_lines

    def __getitem__(self, node: str) -> list[LogLine]:
        return self._read(node, self._max_lines, with_failures=self._with_failures)

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def last(self, node: str, line_count: int) -> list[LogLine]:
        """A node's last complete lines, at most `line_count`; none if there is no file."""
        return self._read(node, line_count, with_failures=False)

    def _read(self, node: str, line_count: int, *, with_failures: bool) -> list[LogLine]:
        with suppress(FileNotFoundError), open(self._paths[node], "rb", buffering=0) as file:
            last_lines = _read_last_lines(file, line_count, self._max_bytes)[-line_count:]
            start = last_lines[0].offset if last_lines else file.seek(0, os.SEEK_END)
            raw_lines = list(_read_failure_lines(file, start, self._max_failure_lines)) if with_failures else []
            raw_lines += [line.raw for line in last_lines]
            return [_parse_output_line(raw, node) for raw in raw_lines]
        return []


class _RawLine(NamedTuple):
    """A line of a file as bytes, without its newline, and the offset at which it begins."""

    offset: int
    raw: bytes


def _parse_output_line(raw: bytes, node: str) -> LogLine:
    """Parse a line; the record that may follow the job's own text in it is removed."""
    line = parse_log_line(raw.decode(errors="replace"), node)
    if RECORD_PREFIX not in line.text:
        return line
    return line._replace(text=strip_record(line.text) or "")


def _is_record(raw: bytes) -> bool:
    return _RECORD_MARKER in raw and strip_record(parse_log_line_text(raw, "")) is None


def _read_last_lines(file: BinaryIO, line_count: int, max_bytes: int) -> list[_RawLine]:
    """The complete lines at the end of a file: at least `line_count`, if about `max_bytes` contain so many.

    Records are left out and not counted.
    """
    start = file.seek(0, os.SEEK_END)
    last_lines: list[_RawLine] = []
    # The end of a line whose start is not read yet, in blocks, the last one first.
    partial_blocks: list[bytes] = []
    while start and len(last_lines) < line_count:
        line_bytes = sum(len(line.raw) for line in last_lines)
        if line_bytes + sum(map(len, partial_blocks)) >= max_bytes:
            break
        size = min(BLOCK_BYTES, start)
        start -= size
        file.seek(start)
        partial_blocks.append(file.read(size))
        line_start = partial_blocks[-1].find(b"\n") + 1
        if start and not line_start:
            continue
        text = b"".join(reversed(partial_blocks))
        line_start = line_start if start else 0
        partial_blocks = [text[:line_start]]
        last_lines = [*_split_output_lines(text[line_start:], start + line_start), *last_lines]
    return last_lines


def _split_output_lines(text: bytes, offset: int) -> Iterator[_RawLine]:
    """The complete lines of a text that are not records; the text begins at `offset` in its file."""
    for raw in text.split(b"\n")[:-1]:  # without the last piece, which has no newline
        if not _is_record(raw):
            yield _RawLine(offset, raw)
        offset += len(raw) + 1


def _read_failure_lines(file: BinaryIO, end: int, max_lines: int) -> Iterator[bytes]:
    """The last `max_lines` with a failure word before the offset `end`, each once, with the lines that follow them."""
    next_offset = 0
    for start in _find_failure_lines(file, end, max_lines):
        file.seek(start)
        block = file.read(min(_MAX_CONTEXT_BYTES, end - start))
        for line in list(_split_output_lines(block, start))[:_FAILURE_CONTEXT_LINES]:
            if line.offset >= next_offset:
                yield line.raw
                next_offset = line.offset + len(line.raw) + 1


def _find_failure_lines(file: BinaryIO, end: int, max_lines: int) -> list[int]:
    """The offsets of the last `max_lines` with a failure word before the offset `end`, in order."""
    line_starts: list[int] = []
    start = end
    partial_line = b""  # the end of a line whose start is in the block before
    while start and len(line_starts) < max_lines:
        size = min(BLOCK_BYTES, start)
        start -= size
        file.seek(start)
        block = file.read(size) + partial_line
        first = block.find(b"\n") + 1 if start else 0
        partial_line = block if start and not first else block[:first]
        hits: set[int] = set()
        for needle in _FAILURE_WORDS:
            hits.update(block.rfind(b"\n", 0, index) + 1 for index in _find_in_lines(block, needle))
        outputs = [
            index for index in hits if index >= first and not _is_record(block[index : block.find(b"\n", index)])
        ]
        line_starts = sorted(start + index for index in outputs) + line_starts
    return line_starts[-max_lines:]


def _find_in_lines(text: bytes, needle: bytes) -> Iterator[int]:
    """The index of the first occurrence of a word in each line that contains it."""
    index = text.find(needle)
    while index >= 0:
        yield index
        end = text.find(b"\n", index)
        index = text.find(needle, end) if end >= 0 else -1
