"""Which place owns a run: this machine and the run's folder, as named on its Lease and to its supervisors."""

import fcntl
import functools
import os
import socket
import uuid
from pathlib import Path


@functools.cache
def identify_holder(path: str) -> str:
    """The owner of a run in this folder, `host:folder#id`: two containers may share the name and path, never the id.

    The id is stored beside the runs, so that it is the same in every process that uses them, and after a restart.
    """
    try:
        return f"{_format_former_identity(path)}#{_get_or_create_id(Path(path).parent / '.id')}"
    except OSError:  # no such folder, or a full disk: then host and folder must do
        return _format_former_identity(path)


def identify_machine(runs: Path) -> str:
    """This machine, as one that may hold runs in this folder: `host:folder#id`."""
    return identify_holder(str(runs / "any")).replace("/any#", "#")


def _format_former_identity(path: str) -> str:
    """The owner as the previous version wrote it, without the id."""
    return f"{socket.gethostname()}:{path}"


def is_holder(holder: str, path: str) -> bool:
    """Whether `holder` is the owner of a run in this folder."""
    return holder in (identify_holder(path), _format_former_identity(path))


def _get_or_create_id(file: Path) -> str:
    """The id, created by the first process that asks for it."""
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
