"""The log files of an ended job: how many lines they have, and their last lines, without the recorder's records."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import BinaryIO

from torchyard.common.log_lines import BLOCK_BYTES, cut_record, read_line, read_line_text
from torchyard.model.hang import RECORD_PREFIX
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
_RECORD_MARK = RECORD_PREFIX.encode()
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
            last = _read_last_lines(file, lines, self._bytes)[-lines:]
            begin = last[0][0] if last else file.seek(0, os.SEEK_END)
            found = [*(_read_telling_lines(file, begin) if early else ()), *(raw for _, raw in last)]
            return [_read_spoken(raw, node) for raw in found]
        return []


def _read_spoken(raw: bytes, node: str) -> LogLine:
    """A line without the record that may follow what the job has printed."""
    line = read_line(raw.decode(errors="replace"), node)
    return line._replace(text=cut_record(line.text) or "") if RECORD_PREFIX in line.text else line


def _is_record(raw: bytes) -> bool:
    return _RECORD_MARK in raw and cut_record(read_line_text(raw, "")) is None


def _read_last_lines(file: BinaryIO, lines: int, most: int) -> list[tuple[int, bytes]]:
    """The whole lines at the end of a file, each with its offset: at least `lines`, if about `most` bytes hold so many.

    Records are left out, and do not count.
    """
    start = file.seek(0, os.SEEK_END)
    found: list[tuple[int, bytes]] = []
    torn: list[bytes] = []  # the blocks, from the last one, that hold the rest of a line which begins before them
    while start and len(found) < lines and sum(len(raw) for _, raw in found) + sum(map(len, torn)) < most:
        size = min(BLOCK_BYTES, start)
        start -= size
        file.seek(start)
        torn.append(file.read(size))
        head = torn[-1].find(b"\n") + 1
        if start and not head:
            continue
        text = b"".join(reversed(torn))
        head = head if start else 0
        torn = [text[:head]]
        found = [*_split_spoken(text[head:], start + head), *found]
    return found


def _split_spoken(text: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    """The whole lines of a text that are not records, each with its offset in the file, where the text is at `at`."""
    for raw in text.split(b"\n")[:-1]:  # without the last piece, which has no newline
        if not _is_record(raw):
            yield at, raw
        at += len(raw) + 1


def _read_telling_lines(file: BinaryIO, end: int) -> Iterator[bytes]:
    """The last lines before a place in a file that sound like a failure, with those that follow each of them."""
    done = 0
    for start in _find_telling_lines(file, end):
        file.seek(start)
        read = file.read(min(_MAX_TELLING_BYTES, end - start))
        for at, line in list(_split_spoken(read, start))[:_TELLING_LINES]:
            if at >= done:
                yield line
                done = at + len(line) + 1


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
        spoken = (at for at in hits if at >= first and not _is_record(block[at : block.find(b"\n", at)]))
        found = sorted(start + at for at in spoken) + found
    return found[-_MAX_TELLING_LINES:]


def _find_all(text: bytes, word: bytes) -> Iterator[int]:
    """Where a word occurs, at most once in each line."""
    at = text.find(word)
    while at >= 0:
        yield at
        end = text.find(b"\n", at)
        at = text.find(word, end) if end >= 0 else -1
