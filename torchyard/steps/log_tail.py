"""The log files of an ended job: how many lines they have, and their last lines."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import BinaryIO

from torchyard.common.log_lines import BLOCK_BYTES, read_line
from torchyard.model.run import LogLine

_MAX_NODE_LINES, _MAX_TOTAL_LINES = 5000, 320_000  # last lines: of a node, and of all nodes together
_MAX_TELLING_LINES = 1000  # before the last lines of a node, that sound like a failure
_TELLING_LINES, _MAX_TELLING_BYTES = 40, 16 << 10  # of what sounds like a failure: a traceback has many lines
_TELLING_WORDS = (
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
        self._paths, count = paths, max(len(paths), 1)
        self._early = early
        self._lines = min(_MAX_NODE_LINES, _MAX_TOTAL_LINES // count)
        self._bytes = max(_MIN_NODE_BYTES, _MAX_TOTAL_BYTES // count)

    def __getitem__(self, node: str) -> list[LogLine]:
        return self._read(node, self._lines, self._early)

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def last(self, node: str, lines: int) -> list[LogLine]:
        """A node's last whole lines, at most `lines`; none if there is no file."""
        return self._read(node, lines, early=False)

    def _read(self, node: str, lines: int, early: bool) -> list[LogLine]:
        with suppress(FileNotFoundError), open(self._paths[node], "rb", buffering=0) as file:
            found = _read_last_lines(file, lines, self._bytes)[-lines:]
            if early:
                rest = sum(map(len, found)) + len(found)
                found = [*_read_telling_lines(file, file.seek(0, os.SEEK_END) - rest), *found]
            return [read_line(raw.decode(errors="replace"), node) for raw in found]
        return []


def _read_last_lines(file: BinaryIO, lines: int, most: int) -> list[bytes]:
    """The whole lines at the end of a file: at least `lines` of them, if about `most` bytes hold so many."""
    end = start = file.seek(0, os.SEEK_END)
    blocks: list[bytes] = []
    ends = 0
    while start and ends <= lines and end - start < most:
        size = min(BLOCK_BYTES, start)
        start -= size
        file.seek(start)
        blocks.append(file.read(size))
        ends += blocks[-1].count(b"\n")
    text = b"".join(reversed(blocks))
    if start:
        text = text.partition(b"\n")[2]
    return text.split(b"\n")[:-1]  # without the last piece, which has no newline


def _read_telling_lines(file: BinaryIO, end: int) -> Iterator[bytes]:
    """The last lines before a place in a file that sound like a failure, with those that follow each of them."""
    done = 0
    for start in _find_telling_lines(file, end):
        file.seek(start)
        at = start
        for line in file.read(min(_MAX_TELLING_BYTES, end - start)).split(b"\n")[:-1][:_TELLING_LINES]:
            if at >= done:
                yield line
            at += len(line) + 1
        done = max(done, at)


def _find_telling_lines(file: BinaryIO, end: int) -> list[int]:
    """Where the last lines begin, before a place in a file, that sound like a failure."""
    found: list[int] = []
    start, torn = end, b""  # the line that the block behind has only the end of
    while start and len(found) < _MAX_TELLING_LINES:
        size = min(BLOCK_BYTES, start)
        start -= size
        file.seek(start)
        block = file.read(size) + torn
        first = block.find(b"\n") + 1 if start else 0
        torn = block if start and not first else block[:first]
        hits = {block.rfind(b"\n", 0, at) + 1 for word in _TELLING_WORDS for at in _find_all(block, word)}
        found = sorted(start + at for at in hits if at >= first) + found
    return found[-_MAX_TELLING_LINES:]


def _find_all(text: bytes, word: bytes) -> Iterator[int]:
    """Where a word occurs, at most once in each line."""
    at = text.find(word)
    while at >= 0:
        yield at
        end = text.find(b"\n", at)
        at = text.find(word, end) if end >= 0 else -1
