"""Reads parts of the logs of an ended job, without the recorder's records: last lines, and lines about failures."""

import os
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from torchyard.common.log_lines import BLOCK_BYTES, parse_log_line, parse_log_line_text, strip_record
from torchyard.diagnosis.failure_words import DIGITS, has_failure_word
from torchyard.model.hang import RECORD_PREFIX
from torchyard.model.run import LogLine

# After a line with a failure word: the lines that are read with it, such as a traceback.
_FAILURE_CONTEXT_LINES = 40
_MAX_CONTEXT_BYTES = 16 << 10
_MAX_SHAPES = 20_000  # remembered of a log; after that they are searched again
_MAX_SHAPE_BYTES = 500  # of a remembered shape
_RECORD_MARKER = RECORD_PREFIX.encode()


class FailureLineIndex:
    """Where one log has lines with a failure word: the byte offsets of the last `max_lines` of them, in order.

        index = FailureLineIndex(6000)
        index.process_block(block)      each block of complete lines, from the log's beginning on
        index.offsets

    Most lines of a log differ only in their digits. A line without them is its shape, and each shape is searched once.
    Memory: 16 bytes per kept offset, and at most `_MAX_SHAPES` shapes of `_MAX_SHAPE_BYTES`.
    """

    def __init__(self, max_lines: int) -> None:
        self._max_lines = max_lines
        self._offsets = array("Q")
        self._end = 0  # of the blocks so far
        self._harmless_shapes: set[bytes] = set()

    @property
    def offsets(self) -> Sequence[int]:
        return self._offsets[-self._max_lines :]

    def process_block(self, block: bytes) -> None:
        """Search the next block of the log."""
        telling_shapes = self._find_telling_shapes(block)
        if telling_shapes:
            offset = self._end
            for raw in block.split(b"\n"):
                if raw.translate(None, DIGITS) in telling_shapes and not _is_record(raw):
                    self._offsets.append(offset)
                offset += len(raw) + 1
            if len(self._offsets) > 2 * self._max_lines:
                del self._offsets[: -self._max_lines]
        self._end += len(block)

    def _find_telling_shapes(self, block: bytes) -> set[bytes]:
        """The shapes in a block that contain a failure word."""
        new_shapes = set(block.translate(None, DIGITS).split(b"\n")) - self._harmless_shapes
        telling_shapes: set[bytes] = set()
        if has_failure_word(b"\n".join(new_shapes)):
            telling_shapes = {shape for shape in new_shapes if has_failure_word(shape)}
        if len(self._harmless_shapes) > _MAX_SHAPES:
            self._harmless_shapes.clear()
        for shape in new_shapes - telling_shapes:
            if len(shape) <= _MAX_SHAPE_BYTES:
                self._harmless_shapes.add(shape)
        return telling_shapes


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

    def get_node_lines(self, node_count: int) -> int:
        """How many last lines are read of each of `node_count` nodes."""
        return min(self.node_lines, self.total_lines // node_count)

    def create_index(self, node_count: int) -> FailureLineIndex:
        """The index for one of `node_count` nodes: its last lines may have failure words too, which are left out."""
        return FailureLineIndex(self.failure_lines + self.get_node_lines(node_count))


DEFAULT_TAIL_LIMITS = TailLimits()


class LogTails(Mapping[str, list[LogLine]]):
    """The last lines of each node, read on demand, because those of a thousand nodes need not fit in memory.

    `failure_lines`: where each log has lines with a failure word. Those before the last lines then precede them, each
    with some lines that follow it. A missing file has no lines; other errors are raised as OSError.
    """

    def __init__(
        self,
        paths: Mapping[str, str],
        failure_lines: Mapping[str, FailureLineIndex] | None = None,
        *,
        limits: TailLimits = DEFAULT_TAIL_LIMITS,
    ) -> None:
        node_count = max(len(paths), 1)
        self._paths = paths
        self._failure_lines = failure_lines or {}
        self._max_lines = limits.get_node_lines(node_count)
        self._max_bytes = max(limits.min_node_bytes, limits.total_bytes // node_count)
        self._max_failure_lines = limits.failure_lines

    def __getitem__(self, node: str) -> list[LogLine]:
        index = self._failure_lines.get(node)
        return self._read(node, self._max_lines, index.offsets if index else ())

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def last(self, node: str, line_count: int) -> list[LogLine]:
        """A node's last complete lines, at most `line_count`; none if there is no file."""
        return self._read(node, line_count, ())

    def _read(self, node: str, line_count: int, failure_offsets: Sequence[int]) -> list[LogLine]:
        with suppress(FileNotFoundError), open(self._paths[node], "rb", buffering=0) as file:
            last_lines = _read_last_lines(file, line_count, self._max_bytes)[-line_count:]
            end = last_lines[0].offset if last_lines else file.seek(0, os.SEEK_END)
            earlier_offsets = [offset for offset in failure_offsets if offset < end][-self._max_failure_lines :]
            raw_lines = list(_read_failure_lines(file, earlier_offsets, end))
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


def _read_failure_lines(file: BinaryIO, starts: Sequence[int], end: int) -> Iterator[bytes]:
    """The lines at these offsets, each once and with the lines that follow it, before the offset `end`."""
    next_offset = 0
    for start in starts:
        file.seek(start)
        block = file.read(min(_MAX_CONTEXT_BYTES, end - start))
        for line in list(_split_output_lines(block, start))[:_FAILURE_CONTEXT_LINES]:
            if line.offset >= next_offset:
                yield line.raw
                next_offset = line.offset + len(line.raw) + 1
