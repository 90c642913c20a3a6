"""Which place carries a run: this machine and the run's folder, told on the run's Lease and to its keepers."""

import fcntl
import functools
import os
import socket
import uuid
from pathlib import Path


@functools.cache
def holder_identity(path: str) -> str:
    """Who carries a run of this folder, `host:folder#id`: two containers may share the name and the path, never the id.

    The id lies beside the runs, so that it is the same in each process that uses them, and after a restart.
    """
    try:
        return f"{_former_identity(path)}#{_get_or_create_id(Path(path).parent / '.id')}"
    except OSError:  # no such folder, or no room for it: then host and folder must do
        return _former_identity(path)


def _former_identity(path: str) -> str:
    """The same as the version before wrote it."""
    return f"{socket.gethostname()}:{path}"


def is_holder(who: str, path: str) -> bool:
    """Whether `who` is whoever carries a run from this folder."""
    return who in (holder_identity(path), _former_identity(path))


def _get_or_create_id(file: Path) -> str:
    """The id, made by the first process that asks."""
    fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        found = os.pread(fd, 64, 0).decode(errors="replace").strip("\0 \n")
        if not found:
            found = uuid.uuid4().hex[:12]
            os.pwrite(fd, f"{found}\n".encode(), 0)
            os.fsync(fd)
        return found
    finally:
        os.close(fd)
