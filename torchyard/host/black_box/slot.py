"""One rank's record in a file of fixed size: written in place, so that a full disk cannot stop it."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import threading
import zlib
from typing import Any, Callable

from .descriptors import own_descriptors

Json = Any
SLOT_BYTES = 16384
_HEADER = struct.Struct("<III")  # length, CRC-32 of the text, process id of its rank
_OPEN_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


class RecordSlot:
    """The file of one rank's record, which the rank writes and the node's recorder reads.

    It is opened anew for each write. A descriptor that stays open could be closed by the program, as daemon libraries
    close all that they do not know, and the program's next file would then get its number. A memory map would end the
    program with SIGBUS if the file system fails. The file is not locked: a checksum shows that a record is incomplete,
    and the reader tries again at its next poll.

    Threads. From `start_writer` on, `write` gives the record to a thread, which alone opens the file, with a table of
    descriptors of its own: a number of the program's table could change its meaning between opening and writing. The
    thread that builds the records needs the program's table: the driver of a GPU does. Where the kernel refuses a
    table, the number is compared with the file immediately before it is used.
    """

    def __init__(self, path: str, identity: tuple[int, int]) -> None:
        """`identity`: device and number of the file."""
        self._path = path
        self._identity = identity
        self._condition = threading.Condition()
        self._has_writer = False
        self._pending: bytes | None = None  # the last record that is not written yet

    @classmethod
    def claim(cls, folder: str, rank: int) -> RecordSlot | None:
        """The slot of a rank; None if another living process has it: this process is then a helper of that rank."""
        path = _build_path(folder, rank)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | _OPEN_FLAGS, 0o600)
        try:
            header = os.pread(fd, _HEADER.size, 0)
            if len(header) == _HEADER.size:
                owner = _HEADER.unpack(header)[2]
                if owner and owner != os.getpid() and _is_alive(owner):  # 0: it was never written
                    return None
            os.posix_fallocate(fd, 0, SLOT_BYTES)
            identity = _identify(fd)
        finally:
            os.close(fd)
        slot = cls(path, identity)
        slot.write({})
        return slot

    def start_writer(self, start_thread: Callable[[Callable[[], None]], object]) -> None:
        """Let a thread write all further records. `start_thread`: starts a daemon thread with this target."""
        self._has_writer = True  # before the thread runs: the first record waits for it
        start_thread(self._write_pending)

    def _write_pending(self) -> None:
        """Write the records that `write` passes on, for as long as the process runs; errors are ignored."""
        own_descriptors()
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._pending is not None)
                data = self._pending
            if data is not None:
                with contextlib.suppress(OSError):
                    self._write_file(data)
            with self._condition:
                if self._pending is data:
                    self._pending = None
                    self._condition.notify_all()

    def flush(self, timeout_s: float) -> None:
        """Wait until the last record is written, at most this long."""
        with self._condition:
            self._condition.wait_for(lambda: self._pending is None, timeout_s)

    def write(self, record: Json) -> None:
        """Write the record. If it is too long, the members of its groups are left out, then also its stack.

        Raises OSError if the file cannot be written, unless another thread writes it; a file that was removed is not
        created again.
        """
        without_members = dict(
            record, groups={name: dict(group, ranks=[]) for name, group in record.get("groups", {}).items()}
        )
        text = b""
        for candidate in (record, without_members, dict(without_members, stack=[], pending=None)):
            text = json.dumps(candidate, separators=(",", ":")).encode()
            if len(text) <= SLOT_BYTES - _HEADER.size:
                break
        data = _HEADER.pack(len(text), zlib.crc32(text), os.getpid()) + text
        if not self._has_writer:
            self._write_file(data)
            return
        with self._condition:
            self._pending = data
            self._condition.notify_all()

    def _write_file(self, data: bytes) -> None:
        fd = os.open(self._path, os.O_WRONLY | _OPEN_FLAGS)
        try:
            if _identify(fd) == self._identity:
                os.pwrite(fd, data, 0)
        finally:
            if _identify(fd) == self._identity:
                os.close(fd)


def has_slot(folder: str, rank: int) -> bool:
    """Whether the rank runs, or has run, on this node."""
    return os.path.exists(_build_path(folder, rank))


def _build_path(folder: str, rank: int) -> str:
    return os.path.join(folder, "rank-%d" % rank)


def _identify(fd: int) -> tuple[int, int]:
    """The device and the number of a descriptor's file."""
    status = os.fstat(fd)
    return (status.st_dev, status.st_ino)


def read_slots(folder: str) -> dict[int, Json]:
    """The records of the node's ranks, by rank; incomplete ones are left out."""
    records: dict[int, Json] = {}
    for name in os.listdir(folder):
        if name.startswith("rank-") and name[5:].isdigit():
            with contextlib.suppress(OSError, ValueError, struct.error), open(os.path.join(folder, name), "rb") as file:
                data = file.read(SLOT_BYTES)
                length, crc, _ = _HEADER.unpack_from(data)
                text = data[_HEADER.size : _HEADER.size + length]
                record = json.loads(text) if zlib.crc32(text) == crc else None
                if record:
                    records[int(name[5:])] = record
    return records


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
