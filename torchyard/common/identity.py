"""The holder of a run: this machine and the run's folder, as written on its Lease and to its supervisors."""

import fcntl
import functools
import os
import socket
import uuid
from pathlib import Path


@functools.cache
def identify_holder(path: str) -> str:
    """The holder of the run in the folder `path`: `host:folder#id`.

    Two containers may have the same host name and path, but not the same id. The id is stored beside the runs, so that
    it is the same in every process that uses them, and after a restart. If it cannot be stored, `host:folder` is
    returned.
    """
    address = f"{socket.gethostname()}:{path}"
    try:
        return f"{address}#{_get_or_create_id(Path(path).parent / '.id')}"
    except OSError:  # no such folder, or a full disk
        return address


def identify_machine(runs: Path) -> str:
    """This machine as the holder of the runs in the folder `runs`: `host:folder#id`."""
    return identify_holder(str(runs / "any")).replace("/any#", "#")


def _get_or_create_id(file: Path) -> str:
    """The id in the file; the first process creates it, under the file's lock. OSError."""
    fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        stored_id = os.pread(fd, 64, 0).decode(errors="replace").strip("\0 \n")
        if not stored_id:
            stored_id = uuid.uuid4().hex[:12]
            os.pwrite(fd, f"{stored_id}\n".encode(), 0)
            os.fsync(fd)
        return stored_id
    finally:
        os.close(fd)
