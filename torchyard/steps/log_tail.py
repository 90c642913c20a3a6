"""The log files of an ended job: how many lines they have, and their last lines, without the recorder's records."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import BinaryIO

from torchyard.common.log_lines import BLOCK_BYTES, cut_record, read_line, read_line_text
from torchyard.model.hang import RECORD_PREFIX
from torchyard.model.run import LogLine

_MAX_NODE_LINES, _MAX_TOTAL_LINES = 5000, 320_000  # last lines: of a node, and of all nodes together
_MAX_FAILURE_LINES = 1000  # before the last lines of a node, that sound like a failure
_FAILURE_CONTEXT_LINES, _MAX_CONTEXT_BYTES = 40, 16 << 10  # of what sounds like a failure: a traceback has many lines
_FAILURE_WORDS = (
    *(
        b"Traceback (",
        b"rror",
        b"ERROR",
        b"NCCL WARN",
        b"NVRM: Xid",
        b"CANCELLED",
        b"terminate called",
        b"Interrupt",
    ),
    *(
        b"timed out",
        b"timeout",
        b"out of memory",
        b"Killed",
        b"kill",
        b"died",
        b"signal",
        b"core dumped",
        b"retry count",
    ),
    *(b"fault by GPU", b"temporarily unavailable", b".exceptions.", b"corrupt", b"invalid pointer"),
    *(b"No space left", b"No such file", b"No module named", b"can't open", b"not found", b"not defined", b"denied"),
    *(
        b"exceed",
        b"low on resource",
        b"reempted",
        b"nodes are available",
        b"are needed",
        b"Failed",
        b"No more machines",
    ),
)
_RECORD_MARKER = RECORD_PREFIX.encode()
_MAX_TOTAL_BYTES, _MIN_NODE_BYTES = 128 << 20, 128 << 10  # of all nodes together, and of each one if there are many


def count_lines(path: str) -> int:
    """The number of whole lines in a file; 0 if it does not exist."""
    with suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(BLOCK_BYTES), b""))
    return 0


class LogTails(Mapping[str, list[LogLine]]):
    """The last lines of each node, read on demand: those of a thousand nodes need not fit in memory.

    `early`: preceded by the last ones before them that sound like a failure, each with some lines that follow it.
    """

    def __init__(self, paths: Mapping[str, str], early: bool = False) -> None:
        self._paths = paths
        count = max(len(paths), 1)
        self._early = early
        self._max_lines = min(_MAX_NODE_LINES, _MAX_TOTAL_LINES // count)
        self._max_bytes = max(_MIN_NODE_BYTES, _MAX_TOTAL_BYTES // count)

    def __getitem__(self, node: str) -> list[LogLine]:
        return self._read(node, self._max_lines, self._early)

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def last(self, node: str, lines: int) -> list[LogLine]:
        """A node's last whole lines, at most `lines`; none if there is no file."""
        return self._read(node, lines, early=False)

    def _read(self, node: str, lines: int, early: bool) -> list[LogLine]:
        with suppress(FileNotFoundError), open(self._paths[node], "rb", buffering=0) as file:
            last = _read_last_lines(file, lines, self._max_bytes)[-lines:]
            start = last[0][0] if last else file.seek(0, os.SEEK_END)
            raw_lines = [*(_read_failure_lines(file, start) if early else ()), *(raw for _, raw in last)]
            return [_parse_output_line(raw, node) for raw in raw_lines]
        return []


def _parse_output_line(raw: bytes, node: str) -> LogLine:
    """A line without the record that may follow what the job has printed."""
    line = read_line(raw.decode(errors="replace"), node)
    return line._replace(text=cut_record(line.text) or "") if RECORD_PREFIX in line.text else line


def _is_record(raw: bytes) -> bool:
    return _RECORD_MARKER in raw and cut_record(read_line_text(raw, "")) is None


def _read_last_lines(file: BinaryIO, lines: int, max_bytes: int) -> list[tuple[int, bytes]]:
    """The whole lines at the end of a file, each with its offset: at least `lines`, if about `most` bytes hold so many.

    Records are left out, and do not count.
    """
    start = file.seek(0, os.SEEK_END)
    last_lines: list[tuple[int, bytes]] = []
    partial_blocks: list[
        bytes
    ] = []  # the blocks, from the last one, that hold the rest of a line which begins before them
    while (
        start
        and len(last_lines) < lines
        and sum(len(raw) for _, raw in last_lines) + sum(map(len, partial_blocks)) < max_bytes
    ):
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


def _split_output_lines(text: bytes, offset: int) -> Iterator[tuple[int, bytes]]:
    """The whole lines of a text that are not records, each with its offset in the file, where the text is at `at`."""
    for raw in text.split(b"\n")[:-1]:  # without the last piece, which has no newline
        if not _is_record(raw):
            yield offset, raw
        offset += len(raw) + 1


def _read_failure_lines(file: BinaryIO, end: int) -> Iterator[bytes]:
    """The last lines before a place in a file that sound like a failure, with those that follow each of them."""
    next_offset = 0
    for start in _find_failure_lines(file, end):
        file.seek(start)
        block = file.read(min(_MAX_CONTEXT_BYTES, end - start))
        for offset, line in list(_split_output_lines(block, start))[:_FAILURE_CONTEXT_LINES]:
            if offset >= next_offset:
                yield line
                next_offset = offset + len(line) + 1


def _find_failure_lines(file: BinaryIO, end: int) -> list[int]:
    """Where the last lines begin, before a place in a file, that sound like a failure."""
    line_starts: list[int] = []
    start, partial_line = end, b""  # the line that the block behind has only the end of
    while start and len(line_starts) < _MAX_FAILURE_LINES:
        size = min(BLOCK_BYTES, start)
        start -= size
        file.seek(start)
        block = file.read(size) + partial_line
        first = block.find(b"\n") + 1 if start else 0
        partial_line = block if start and not first else block[:first]
        hits = {block.rfind(b"\n", 0, index) + 1 for needle in _FAILURE_WORDS for index in _find_all(block, needle)}
        outputs = (
            index for index in hits if index >= first and not _is_record(block[index : block.find(b"\n", index)])
        )
        line_starts = sorted(start + index for index in outputs) + line_starts
    return line_starts[-_MAX_FAILURE_LINES:]


def _find_all(text: bytes, needle: bytes) -> Iterator[int]:
    """Where a word occurs, at most once in each line."""
    index = text.find(needle)
    while index >= 0:
        yield index
        end = text.find(b"\n", index)
        index = text.find(needle, end) if end >= 0 else -1
