"""One rank's record in a file of fixed size: written in place, so that a full disk cannot stop it."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zlib
from typing import Any

Json = Any
SLOT_BYTES = 16384
_HEADER = struct.Struct("<III")  # length, CRC-32 of the text, process id of its rank


class RecordSlot:
    """The file of one rank's record, which the rank writes and the node's recorder reads.

    It is not locked: a checksum shows that a record is incomplete, and the reader tries again at its next poll.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def claim(cls, folder: str, rank: int) -> RecordSlot | None:
        """The slot of a rank; None if another living process has it: this process is then a helper of that rank."""
        fd = os.open(os.path.join(folder, "rank-%d" % rank), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        header = os.pread(fd, _HEADER.size, 0)
        if len(header) == _HEADER.size:
            owner = _HEADER.unpack(header)[2]
            if owner != os.getpid() and _is_alive(owner):
                os.close(fd)
                return None
        os.posix_fallocate(fd, 0, SLOT_BYTES)
        slot = cls(fd)
        slot.write({})
        return slot

    def write(self, record: Json) -> None:
        """Write the record. If it is too long, the members of its groups are left out, then also its stack."""
        without_members = dict(
            record, groups={name: dict(group, ranks=[]) for name, group in record.get("groups", {}).items()}
        )
        text = b""
        for candidate in (record, without_members, dict(without_members, stack=[], pending=None)):
            text = json.dumps(candidate, separators=(",", ":")).encode()
            if len(text) <= SLOT_BYTES - _HEADER.size:
                break
        os.pwrite(self._fd, _HEADER.pack(len(text), zlib.crc32(text), os.getpid()) + text, 0)


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
