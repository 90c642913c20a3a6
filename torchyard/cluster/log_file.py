"""The file of one pod's log: it takes every line once, also where the last seconds are read again."""

import errno
import os
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from torchyard.common.private_files import make_private_folder, open_private_file

_OVERLAP_S = 2  # seconds that are asked for again: the stamps of stdout and stderr are not in perfect order
_MAX_LINE_BYTES = 1 << 20  # bytes of a line; what is longer goes on in a line of its own, with the same stamp
_WINDOW_BYTES = 1 << 20  # bytes at a log's end that are read first to know its last lines
_SHORTAGE_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class GapError(Exception):
    """New lines came, and the newest one of the file had not come again before them."""


class LineSplitter:
    """Cuts what comes from a stream into lines; of a line that does not end, no more than LONGEST is held."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def rest(self) -> bytes:
        """What has no end so far."""
        return b"".join(self._parts)

    def cut(self, data: bytes) -> list[bytes]:
        """The lines that are whole by now, without their ends."""
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
    """A line in pieces of at most LONGEST, each with the line's stamp: the same ones wherever the stream was cut."""
    found = []
    stamp = line[:64].partition(b" ")[0] + b" " if len(line) > _MAX_LINE_BYTES else b""
    while len(line) > _MAX_LINE_BYTES:
        found.append(line[:_MAX_LINE_BYTES])
        line = stamp + line[_MAX_LINE_BYTES:]
    return [*found, line]


class Overlap:
    """What comes again where a log is asked for anew: the lines of the last seconds, the newest one at the latest."""

    def __init__(self, since: int, marks: Iterable[int], newest: int | None) -> None:
        self.owed = newest  # until it has come again
        self.otherwise = ""  # what is lost where it does not; "" where that is not known yet
        self._since, self._marks = since, Counter(marks)

    @property
    def since(self) -> str | None:
        """The second from which the log is asked for; None is the beginning. The API knows whole seconds only."""
        return datetime.fromtimestamp(self._since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if self._since else None

    def new(self, lines: list[bytes]) -> list[bytes]:
        """Those that the file lacks."""
        if not self._marks:
            return lines
        found = [line for line in lines if not self._known(hash(line))]
        if found and self.owed is None:
            self._marks.clear()  # a log keeps its order: what the file holds has come
        return found

    def _known(self, mark: int) -> bool:
        if not self._marks[mark]:
            return False
        self._marks[mark] -= 1
        if mark == self.owed:
            self.owed = None
        return True


class LogWriter:
    """A log's file. Lines are written as a whole or not at all, and those that are not are counted."""

    def __init__(self, path: Path, node: str, begun: bool = True) -> None:
        """`begun`: what is in the file already is the beginning of this log, and not another pod's.

        OSError where the file is there and cannot be read: its lines would be written a second time.
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

    def ask(self, another: bool = False) -> Overlap:
        """What to ask for, and what will come again; of `another` container's log nothing has to."""
        since = self._newest - _OVERLAP_S if self._newest else 0
        marks = (mark for row in self._recent.values() for mark in row)
        return Overlap(since, marks, None if another else self._last)

    def take(self, lines: list[bytes], overlap: Overlap) -> None:
        """Write what is new of lines as the API gave them: `STAMP text`. GapError where it may not be what follows.

        OSError where this process lacks what it needs to write anything: the lines can be read again.
        """
        new = overlap.new(lines)
        if not new:
            return
        if self._is_kept and not self._path.exists():
            self._forget()
            raise GapError
        self.end(overlap)
        self.lost += self._write(new)
        self._remember(new)
        self.taken += len(new)

    def _write(self, lines: list[bytes]) -> int:
        """Write lines; how many there was no room for."""
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

    def end(self, overlap: Overlap) -> None:
        """Nothing of the file comes again any more."""
        if overlap.owed is not None:
            if not overlap.otherwise:
                raise GapError
            self.miss(overlap.otherwise)
            overlap.owed = None

    def miss(self, what: str) -> None:
        """Keep, also for a later process, what is lost for good."""
        if what not in self.missed:
            self.missed.append(what)
            try:
                _append_lines(self._notes, what.encode() + b"\n")
            except OSError as error:
                self.why = error.strerror or str(error)

    def _forget(self) -> None:
        """The file was removed: its log is read anew, from the first line that there still is."""
        self._newest, self._last, self._prefix, self._is_kept = 0, None, b"", False
        self._recent = {0: array("q")}
        self._row = self._recent[0]

    def _plain(self, line: bytes) -> bytes:
        """A line of the file, as the API gave it."""
        return b" ".join(line.split(self._mark, 1))

    def _stamped(self, line: bytes) -> bytes:
        stamp, _, text = line.partition(b" ")
        return stamp + self._mark + text + b"\n"

    def _remember(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            if line[:19] != self._prefix:
                self._turn(line)
            mark = hash(line)
            self._row.append(mark)
            self._last = mark if self._returns else self._last

    def _turn(self, line: bytes) -> None:
        """Go to the row of a line's second, and forget those that will not be asked for again."""
        second = _read_second(line)
        self._prefix = line[:19]
        self._newest = max(self._newest, second or 0)
        self._returns = second is not None and second >= self._newest - _OVERLAP_S  # a kubelet's own words do not
        kept = {each: row for each, row in self._recent.items() if each >= self._newest - _OVERLAP_S}
        self._row = kept.setdefault(second or self._newest, array("q"))
        self._recent = kept


def _read_second(line: bytes) -> int | None:
    """The second of a line's stamp, which may have a node's own time zone; None where it has none."""
    try:
        return int(datetime.fromisoformat(line[:64].partition(b" ")[0].decode()).timestamp())
    except ValueError:
        return None


def _read_recent_lines(path: Path) -> Iterator[bytes]:
    """The last lines of a log that an earlier process wrote; half a line, where it was killed, is taken off.

    However much was said in its last seconds, no more than a window of it is held.
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
    """The last whole line, and where it ends; what is behind it is taken off."""
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
    """Whether there is more between two lines than will be asked for again."""
    begin, end = _read_second(first), _read_second(last)
    return begin is not None and end is not None and begin < end - _OVERLAP_S


def _append_lines(path: Path, lines: bytes) -> int:
    """Add lines, each of them as a whole or not at all; how many there was no room for."""
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
