"""The logs of an ended job as files: how many lines they have, and what stands at their ends."""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import BinaryIO

from torchyard.common.log_lines import BLOCK_BYTES, read_line
from torchyard.model.run import LogLine

_MAX_NODE_LINES, _MAX_TOTAL_LINES = 5000, 320_000  # of the last ones: of a node, and of all nodes together
_MAX_TOTAL_BYTES, _MIN_NODE_BYTES = 128 << 20, 128 << 10  # of all nodes together, and of each one where they are many


def count_lines(path: str) -> int:
    """The whole lines of a file; 0 where there is none."""
    with suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(BLOCK_BYTES), b""))
    return 0


class LogTails(Mapping[str, list[LogLine]]):
    """The last lines of each node, read when they are asked for: of a thousand nodes they need not fit in memory."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths, count = paths, max(len(paths), 1)
        self._lines = min(_MAX_NODE_LINES, _MAX_TOTAL_LINES // count)
        self._bytes = max(_MIN_NODE_BYTES, _MAX_TOTAL_BYTES // count)

    def __getitem__(self, node: str) -> list[LogLine]:
        return self.last(node, self._lines)

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def last(self, node: str, lines: int) -> list[LogLine]:
        """At most so many of a node's last whole lines; none where there is no file."""
        with suppress(FileNotFoundError), open(self._paths[node], "rb", buffering=0) as file:
            found = _read_last_lines(file, lines, self._bytes)
            return [read_line(raw.decode(errors="replace"), node) for raw in found[-lines:]]
        return []


def _read_last_lines(file: BinaryIO, lines: int, most: int) -> list[bytes]:
    """The whole lines in the last bytes of a file: at least so many where `most` bytes hold them."""
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
    return text.split(b"\n")[:-1]  # what has no end is not whole
