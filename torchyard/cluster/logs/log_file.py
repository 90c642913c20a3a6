"""The file of one pod's log: each line is written once, even when the last seconds of the log are read again."""

import errno
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from torchyard.common.private_files import make_private_folder, open_private_file

_OVERLAP_S = 2  # seconds that are requested again: the time stamps of stdout and stderr are not strictly in order
MAX_LINE_BYTES = 1 << 20  # bytes of a line; a longer one continues in a separate line with the same time stamp
WINDOW_BYTES = 1 << 20  # bytes that are read first from a log's end to find its last lines
_SHORTAGE_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class GapError(Exception):
    """New lines came before the file's newest line had come again: lines between them may be missing."""


class LineSplitter:
    """Splits a stream into lines; holds at most `MAX_LINE_BYTES` of an unfinished line."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of the unfinished line; joined once, because a line may span many chunks
        self._size = 0

    @property
    def rest(self) -> bytes:
        """The unfinished line."""
        return b"".join(self._pieces)

    def split(self, chunk: bytes) -> list[bytes]:
        """Add a chunk; return the lines that are now complete, without their newlines."""
        self._pieces.append(chunk)
        self._size += len(chunk)
        if b"\n" not in chunk and self._size <= MAX_LINE_BYTES:
            return []
        *complete_lines, rest = self.rest.split(b"\n")
        if self._size > MAX_LINE_BYTES:
            complete_lines = list(chain.from_iterable(map(_split_long_line, complete_lines)))
        *complete_pieces, rest = _split_long_line(rest)
        self._pieces = [rest]
        self._size = len(rest)
        return [*complete_lines, *complete_pieces]


def _split_long_line(line: bytes) -> list[bytes]:
    """A line in pieces of at most `MAX_LINE_BYTES`, each with its time stamp; the same pieces for any chunking."""
    pieces = []
    prefix = line[:64].partition(b" ")[0] + b" " if len(line) > MAX_LINE_BYTES else b""
    while len(line) > MAX_LINE_BYTES:
        pieces.append(line[:MAX_LINE_BYTES])
        line = prefix + line[MAX_LINE_BYTES:]
    return [*pieces, line]


class Overlap:
    """The lines that one read of a log delivers again: those of the last seconds, up to the file's newest line.

    The file contains each of `line_hashes`; `drop_written` removes every one of them once from the lines that come, so
    that two equal lines stay two. Until the file's newest line (`awaited_line`, a hash) has come again, new lines may
    follow a gap; `loss` is the text to record for it. An overlap belongs to one read and is not shared by threads.

    If the node's clock was set back, the lines since then are requested, and older ones with later time stamps come
    with them, whose hashes are not kept: all lines before the awaited one are dropped, up to `set_back_until`.
    """

    def __init__(
        self, since_second: int, line_hashes: Iterable[int], awaited_line: int | None, set_back_until: int | None = None
    ) -> None:
        """`set_back_until`: the newest second before the node's clock was set back; None if it was not."""
        self.awaited_line = awaited_line  # None once it has come again, or if none is expected
        self.loss = ""  # what is lost if the awaited line does not come again; "" while that is unknown
        self._since_second = since_second
        self._line_hashes = Counter(line_hashes)
        self._set_back_until = set_back_until

    @property
    def since(self) -> str | None:
        """The second from which to request the log; None is its beginning. The API takes whole seconds only."""
        if not self._since_second:
            return None
        return datetime.fromtimestamp(self._since_second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def drop_written(self, lines: list[bytes]) -> list[bytes]:
        """The lines that the file lacks."""
        if not self._line_hashes:
            return lines
        if self._set_back_until is not None and not self.loss and self.awaited_line is not None:
            lines = self._skip_to_awaited(lines, self._set_back_until)
        new_lines = [line for line in lines if not self._discard_written(hash(line))]
        if new_lines and self.awaited_line is None:
            self._line_hashes.clear()  # a log keeps its order: all that the file holds has come again
        return new_lines

    def _skip_to_awaited(self, lines: list[bytes], set_back_until: int) -> list[bytes]:
        """The lines from the awaited one on, or from the first one that is newer than all that the file has."""
        for index, line in enumerate(lines):
            if hash(line) == self.awaited_line or (parse_second(line) or 0) > set_back_until:
                return lines[index:]
        return []

    def _discard_written(self, line_hash: int) -> bool:
        """Whether the file has this line, which then no longer counts: a second equal line is another one, or new."""
        if not self._line_hashes[line_hash]:
            return False
        self._line_hashes[line_hash] -= 1
        if line_hash == self.awaited_line:
            self.awaited_line = None
        return True


class LogWriter:
    """Write a log's file so that each line is in it once, also if the last seconds are read again.

    A line is written completely or not at all; lines that cannot be written are counted in `lost`.

    Order of calls, for each read of the log: `resume_point` returns what to request and which lines will come again,
    `append` takes the lines that come, and `close_log` ends a log that was read to its end. Not thread-safe: the owner
    guards it with a lock.

    Memory. Of the last `_OVERLAP_S` seconds it keeps one hash per line, grouped by second. They are read from the file
    first, so a later process continues where an earlier one was killed. If the file is removed while it is written,
    `append` raises GapError and the log is written again from the first line that still exists.
    """

    def __init__(self, path: Path, node: str, *, continues_file: bool = True) -> None:
        """`continues_file`: what the file already holds is the beginning of this log, and not another pod's.

        Raises OSError if the file exists and cannot be read: its lines would be written a second time.
        """
        self.line_count = 0  # lines accepted so far
        self.lost = 0  # lines that could not be written
        self.write_error = ""  # of the last write that failed
        self.gaps: list[str] = []  # what is permanently missing between lines of the file
        self._path = path
        self._node_marker = f" {node} | ".encode()
        self._gaps_path = path.with_name("lost")
        self._newest_second = 0
        self._last_second = 0  # of the last line; earlier than the newest one if the node's clock was set back
        self._recent: dict[int, array[int]] = {0: array("q")}  # by second: hashes of the lines of the last seconds
        self._current_second_hashes = self._recent[0]
        self._current_prefix = b""  # the time stamp to the second that the lines of the current second start with
        self._last_line: int | None = None  # hash of the newest line that will come again
        self._is_requested_again = False  # lines of the current second will be requested again
        self._file_exists = path.exists()
        if continues_file and self._file_exists:
            self._record_hashes(self._format_api_line(line) for line in read_recent_lines(path))
            if self._gaps_path.exists():
                self.gaps = self._gaps_path.read_text(encoding="utf-8").splitlines()

    def resume_point(self, *, is_new_container: bool = False) -> Overlap:
        """What to request, and which lines will come again.

        `is_new_container`: the log is that of a restarted container, which does not contain the file's newest line.
        """
        since_second = self._newest_second - _OVERLAP_S if self._newest_second else 0
        awaited_line = None if is_new_container else self._last_line
        set_back_until = None
        if self._last_second < since_second:
            since_second = self._last_second - _OVERLAP_S
            set_back_until = self._newest_second
        return Overlap(since_second, chain.from_iterable(self._recent.values()), awaited_line, set_back_until)

    def append(self, lines: list[bytes], overlap: Overlap) -> None:
        """Write the new ones of `lines`, which are as the API sent them: `STAMP text`.

        Raises GapError if lines before them may be missing, and OSError if this process lacks the descriptors or the
        memory to write anything: the lines can be read again.
        """
        new_lines = overlap.drop_written(lines)
        if not new_lines:
            return
        if self._file_exists and not self._path.exists():
            self._reset()
            raise GapError
        self.close_log(overlap)
        self.lost += self._write(new_lines)
        self._record_hashes(new_lines)
        self.line_count += len(new_lines)

    def _write(self, lines: list[bytes]) -> int:
        """Write lines; return how many could not be written."""
        try:
            unwritten = _append_lines(self._path, b"".join(map(self._format_file_line, lines)))
        except OSError as error:
            if error.errno in _SHORTAGE_ERRNOS:
                raise
            self.write_error = error.strerror or str(error)
            return len(lines)
        self._file_exists = True
        if unwritten:
            self.write_error = os.strerror(errno.ENOSPC)
        return unwritten

    def close_log(self, overlap: Overlap) -> None:
        """End the overlap: if the awaited line has not come again, record its loss.

        Raises GapError if the loss is unknown: the caller looks for the lines elsewhere first.
        """
        if overlap.awaited_line is not None:
            if not overlap.loss:
                raise GapError
            self.record_gap(overlap.loss)
            overlap.awaited_line = None

    def record_gap(self, loss: str) -> None:
        """Record what is permanently lost, for later processes too."""
        if loss not in self.gaps:
            self.gaps.append(loss)
            try:
                _append_lines(self._gaps_path, loss.encode() + b"\n")
            except OSError as error:
                self.write_error = error.strerror or str(error)

    def _reset(self) -> None:
        """Start again with an empty file: the file was removed, and the log is read from its first remaining line."""
        self._newest_second = 0
        self._last_second = 0
        self._last_line = None
        self._current_prefix = b""
        self._file_exists = False
        self._recent = {0: array("q")}
        self._current_second_hashes = self._recent[0]

    def _format_api_line(self, line: bytes) -> bytes:
        """A line of the file, as the API sent it: `STAMP text`."""
        return b" ".join(line.split(self._node_marker, 1))

    def _format_file_line(self, line: bytes) -> bytes:
        """A line from the API, as it is written: `STAMP NODE | text`."""
        timestamp, _, text = line.partition(b" ")
        return timestamp + self._node_marker + text + b"\n"

    def _record_hashes(self, lines: Iterable[bytes]) -> None:
        """Keep the hashes of lines that the file has now."""
        for line in lines:
            if line[:19] != self._current_prefix:
                self._switch_second(line)
            line_hash = hash(line)
            self._current_second_hashes.append(line_hash)
            if self._is_requested_again:
                self._last_line = line_hash

    def _switch_second(self, line: bytes) -> None:
        """Switch to the hashes of a line's second; drop those of seconds that will not be requested again."""
        second = parse_second(line)
        self._current_prefix = line[:19]
        self._newest_second = max(self._newest_second, second or 0)
        self._last_second = second or self._last_second
        first_kept = self._newest_second - _OVERLAP_S
        self._is_requested_again = second is not None  # messages of the kubelet have no time
        recent = {key: hashes for key, hashes in self._recent.items() if key >= first_kept}
        self._current_second_hashes = recent.setdefault(second or self._newest_second, array("q"))
        self._recent = recent


def parse_second(line: bytes) -> int | None:
    """The second of a line's time stamp, which may be in the node's time zone; None if the line has none."""
    try:
        return int(datetime.fromisoformat(line[:64].partition(b" ")[0].decode()).timestamp())
    except ValueError:
        return None


def read_newest_second(path: Path) -> int | None:
    """The second of a log's last line; None if it has no line with a time stamp, or cannot be read."""
    try:
        with path.open("rb") as file:
            last_line, _ = _read_last_line(file)
    except OSError:
        return None
    return parse_second(last_line)


def read_recent_lines(path: Path) -> Iterator[bytes]:
    """The last lines of a log that an earlier process wrote; half a line, left when it was killed, is cut off.

    However much was logged in the last seconds, no more than a window of it is held in memory.
    """
    if not path.exists():
        return
    with path.open("r+b") as file:
        last_line, end = _read_last_line(file)
        file.truncate(end)
        start = end
        while start > 0:
            start = max(start - WINDOW_BYTES, 0)
            file.seek(start)
            if start:
                file.readline()
            if _is_beyond_overlap(file.readline(), last_line):
                break
        file.seek(start)
        if start:
            file.readline()  # a window may start inside a line
        while file.tell() < end:
            yield file.readline()[:-1]


def _read_last_line(file: BinaryIO) -> tuple[bytes, int]:
    """The last complete line and its end offset; half a line may follow it."""
    size = file.seek(0, os.SEEK_END)
    window_size = WINDOW_BYTES
    while True:
        file.seek(max(size - window_size, 0))
        window = file.read(window_size)
        end = window.rfind(b"\n") + 1
        start = window.rfind(b"\n", 0, max(end - 1, 0)) + 1
        if start or window_size >= size:
            break
        window_size *= 4
    return window[start:end], size - len(window) + end


def _is_beyond_overlap(first_line: bytes, last_line: bytes) -> bool:
    """Whether more time lies between two lines than will be requested again; False if one has no time stamp."""
    first_second = parse_second(first_line)
    last_second = parse_second(last_line)
    return first_second is not None and last_second is not None and first_second < last_second - _OVERLAP_S


def _append_lines(path: Path, lines: bytes) -> int:
    """Append lines, each completely or not at all; return how many the disk had no room for."""
    if not path.exists():
        make_private_folder(path.parent)
    with open(path, "ab", buffering=0, opener=open_private_file) as file:
        end = file.tell()
        written_bytes = file.write(lines)
        if written_bytes == len(lines):
            return 0
        complete_bytes = lines.rfind(b"\n", 0, written_bytes) + 1
        file.truncate(end + complete_bytes)
        return lines.count(b"\n", complete_bytes)
