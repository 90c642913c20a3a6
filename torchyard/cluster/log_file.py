"""The file of one pod's log: each line is written once, even when the last seconds of the log are read again."""

import errno
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from torchyard.common.private_files import make_private_folder, open_private_file

_OVERLAP_S = 2  # seconds that are requested again: the stamps of stdout and stderr are not strictly in order
_MAX_LINE_BYTES = 1 << 20  # bytes of a line; a longer one continues in a line of its own, with the same stamp
_WINDOW_BYTES = 1 << 20  # bytes that are read first from a log's end to find its last lines
_SHORTAGE_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class GapError(Exception):
    """New lines came before the file's newest line had come again: lines between them may be missing."""


class LineSplitter:
    """Splits a stream into lines; holds at most `_MAX_LINE_BYTES` of an unfinished line."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def rest(self) -> bytes:
        """The unfinished line."""
        return b"".join(self._parts)

    def cut(self, data: bytes) -> list[bytes]:
        """Add data; return the lines that are now complete, without their newlines."""
        self._parts.append(data)
        self._size += len(data)
        if b"\n" not in data and self._size <= _MAX_LINE_BYTES:
            return []
        *whole, rest = self.rest.split(b"\n")
        whole = [piece for line in whole for piece in _split_long_line(line)] if self._size > _MAX_LINE_BYTES else whole
        *more, rest = _split_long_line(rest)
        self._parts, self._size = [rest], len(rest)
        return [*whole, *more]


def _split_long_line(line: bytes) -> list[bytes]:
    """A line in pieces of at most `_MAX_LINE_BYTES`, each with its stamp; the same pieces for any chunking."""
    found = []
    stamp = line[:64].partition(b" ")[0] + b" " if len(line) > _MAX_LINE_BYTES else b""
    while len(line) > _MAX_LINE_BYTES:
        found.append(line[:_MAX_LINE_BYTES])
        line = stamp + line[_MAX_LINE_BYTES:]
    return [*found, line]


class Overlap:
    """The lines that come again when a log is requested again: those of the last seconds, up to the file's newest."""

    def __init__(self, since: int, marks: Iterable[int], newest: int | None) -> None:
        self.owed = newest  # until it has come again
        self.otherwise = ""  # what is lost if it does not come again; "" while that is unknown
        self._since, self._marks = since, Counter(marks)

    @property
    def since(self) -> str | None:
        """The second from which to request the log; None is its beginning. The API takes whole seconds only."""
        return datetime.fromtimestamp(self._since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if self._since else None

    def new(self, lines: list[bytes]) -> list[bytes]:
        """The lines that the file lacks."""
        if not self._marks:
            return lines
        found = [line for line in lines if not self._known(hash(line))]
        if found and self.owed is None:
            self._marks.clear()  # a log keeps its order: all that the file holds has come again
        return found

    def _known(self, mark: int) -> bool:
        if not self._marks[mark]:
            return False
        self._marks[mark] -= 1
        if mark == self.owed:
            self.owed = None
        return True


class LogWriter:
    """Writes a log's file. A line is written whole or not at all; lines that cannot be written are counted."""

    def __init__(self, path: Path, node: str, begun: bool = True) -> None:
        """`begun`: what the file already holds is the beginning of this log, and not another pod's.

        Raises OSError if the file exists and cannot be read: its lines would be written a second time.
        """
        self.taken, self.lost, self.why = 0, 0, ""
        self.missed: list[str] = []
        self._path, self._mark, self._notes = path, f" {node} | ".encode(), path.with_name("lost")
        self._newest = 0
        self._recent: dict[int, array[int]] = {0: array("q")}  # hashes of the lines of the last seconds
        self._last: int | None = None
        self._prefix, self._row, self._returns = b"", self._recent[0], False
        self._is_kept = path.exists()
        if begun and self._is_kept:
            self._remember(self._plain(line) for line in _read_recent_lines(path))
            self.missed = self._notes.read_text(encoding="utf-8").splitlines() if self._notes.exists() else []

    def resume_point(self, another: bool = False) -> Overlap:
        """What to request, and which lines will come again; none have to from the log of `another` container."""
        since = self._newest - _OVERLAP_S if self._newest else 0
        marks = (mark for row in self._recent.values() for mark in row)
        return Overlap(since, marks, None if another else self._last)

    def append(self, lines: list[bytes], overlap: Overlap) -> None:
        """Write the new ones of `lines`, which are as the API sent them: `STAMP text`.

        Raises GapError if lines before them may be missing, and OSError if this process lacks the descriptors or the
        memory to write anything: the lines can be read again.
        """
        new = overlap.new(lines)
        if not new:
            return
        if self._is_kept and not self._path.exists():
            self._forget()
            raise GapError
        self.close_log(overlap)
        self.lost += self._write(new)
        self._remember(new)
        self.taken += len(new)

    def _write(self, lines: list[bytes]) -> int:
        """Write lines; return how many could not be written."""
        try:
            left = _append_lines(self._path, b"".join(map(self._stamped, lines)))
        except OSError as error:
            if error.errno in _SHORTAGE_ERRNOS:
                raise
            self.why = error.strerror or str(error)
            return len(lines)
        self._is_kept = True
        self.why = os.strerror(errno.ENOSPC) if left else self.why
        return left

    def close_log(self, overlap: Overlap) -> None:
        """The overlap is over: record the loss if the newest line has not come again; GapError if it is unknown."""
        if overlap.owed is not None:
            if not overlap.otherwise:
                raise GapError
            self.note_gap(overlap.otherwise)
            overlap.owed = None

    def note_gap(self, what: str) -> None:
        """Record what is permanently lost, for later processes too."""
        if what not in self.missed:
            self.missed.append(what)
            try:
                _append_lines(self._notes, what.encode() + b"\n")
            except OSError as error:
                self.why = error.strerror or str(error)

    def _forget(self) -> None:
        """The file was removed: its log is read again, from the first line that still exists."""
        self._newest, self._last, self._prefix, self._is_kept = 0, None, b"", False
        self._recent = {0: array("q")}
        self._row = self._recent[0]

    def _plain(self, line: bytes) -> bytes:
        """A line of the file, as the API sent it."""
        return b" ".join(line.split(self._mark, 1))

    def _stamped(self, line: bytes) -> bytes:
        stamp, _, text = line.partition(b" ")
        return stamp + self._mark + text + b"\n"

    def _remember(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            if line[:19] != self._prefix:
                self._rotate(line)
            mark = hash(line)
            self._row.append(mark)
            self._last = mark if self._returns else self._last

    def _rotate(self, line: bytes) -> None:
        """Switch to the row of a line's second; drop the rows that will not be requested again."""
        second = _read_second(line)
        self._prefix = line[:19]
        self._newest = max(self._newest, second or 0)
        self._returns = second is not None and second >= self._newest - _OVERLAP_S  # a kubelet's own messages do not
        kept = {each: row for each, row in self._recent.items() if each >= self._newest - _OVERLAP_S}
        self._row = kept.setdefault(second or self._newest, array("q"))
        self._recent = kept


def _read_second(line: bytes) -> int | None:
    """The second of a line's stamp, which may be in the node's time zone; None if the line has no stamp."""
    try:
        return int(datetime.fromisoformat(line[:64].partition(b" ")[0].decode()).timestamp())
    except ValueError:
        return None


def _read_recent_lines(path: Path) -> Iterator[bytes]:
    """The last lines of a log that an earlier process wrote; half a line, left when it was killed, is cut off.

    However much was logged in the last seconds, no more than a window of it is held in memory.
    """
    if not path.exists():
        return
    with path.open("r+b") as file:
        last, end = _read_last_line(file)
        begin = end
        while begin > 0:
            begin = max(begin - _WINDOW_BYTES, 0)
            file.seek(begin)
            if begin:
                file.readline()
            if _is_beyond_overlap(file.readline(), last):
                break
        file.seek(begin)
        if begin:
            file.readline()
        while file.tell() < end:
            yield file.readline()[:-1]


def _read_last_line(file: BinaryIO) -> tuple[bytes, int]:
    """The last complete line and its end offset; what follows it is truncated."""
    size, window, found = file.seek(0, os.SEEK_END), _WINDOW_BYTES, b""
    while True:
        file.seek(max(size - window, 0))
        found = file.read(window)
        end = found.rfind(b"\n") + 1
        begin = found.rfind(b"\n", 0, max(end - 1, 0)) + 1
        if begin or window >= size:
            break
        window *= 4
    file.truncate(size - len(found) + end)
    return found[begin:end], size - len(found) + end


def _is_beyond_overlap(first: bytes, last: bytes) -> bool:
    """Whether more time lies between two lines than will be requested again."""
    begin, end = _read_second(first), _read_second(last)
    return begin is not None and end is not None and begin < end - _OVERLAP_S


def _append_lines(path: Path, lines: bytes) -> int:
    """Append lines, each whole or not at all; return how many there was no room for."""
    if not path.exists():
        make_private_folder(path.parent)
    with open(path, "ab", buffering=0, opener=open_private_file) as file:
        end = file.tell()
        done = file.write(lines)
        if done == len(lines):
            return 0
        whole = lines.rfind(b"\n", 0, done) + 1
        file.truncate(end + whole)
        return lines.count(b"\n", whole)
