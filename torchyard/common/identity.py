"""The holder of a run: this machine and the run's folder, as written on its Lease and to its supervisors."""

import fcntl
import functools
import itertools
import os
import pwd
import socket
import uuid
import weakref
from pathlib import Path
from typing import NamedTuple

from torchyard.common.private_files import make_private_folder
from torchyard.host.identity import identify_host

_MAX_ID_BYTES = 256
_MAX_FOLDERS = 16  # of runs that one process uses; each costs a descriptor


def identify_holder(path: str) -> str:
    """The holder of the run in the folder `path`: `host:folder#id`.

    Two containers may have the same host name and path, and even the same volume, but not the same id. The id is stored
    beside the runs, so that it is the same in every process that uses them, and after a restart. If it cannot be
    stored, `host:folder` is returned, from then on always in this process: a holder that changes loses its runs.
    """
    address = f"{socket.gethostname()}:{path}"
    claimed = claim_id(Path(path).parent)
    return f"{address}#{claimed.value}" if claimed else address


def identify_machine(runs: Path) -> str:
    """This machine as the holder of the runs in the folder `runs`: `host:folder#id`."""
    return identify_holder(str(runs / "any")).replace("/any#", "#")


def get_user_name() -> str:
    """The name of the user that this process runs as; the number, as in containers, if it has no name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


class _StoredId(NamedTuple):
    """The content of an id file: the id, and the PID namespace of the processes that use it."""

    value: str
    namespace: str


class ClaimedId:
    """An id that this process uses: the shared lock on its file is held as long as the object exists."""

    def __init__(self, value: str, fd: int) -> None:
        self.value = value
        weakref.finalize(self, os.close, fd)


@functools.lru_cache(maxsize=_MAX_FOLDERS)
def claim_id(folder: Path) -> ClaimedId | None:
    """The id of this machine or container among those that use a folder, which is made if it is missing.

    None, from then on always in this process, if the id cannot be stored, as on a full disk.

    Each process that uses an id file holds a shared lock (flock) on it until it exits. A file that no process holds has
    lost its container, or was written before a restart: the next one takes its id over. A file that processes of
    another PID namespace hold is passed over for the next one.
    """
    host = identify_host()
    namespace = f"{host['boot']}/{host['pid_namespace']}"
    try:
        make_private_folder(folder)
        for number in itertools.count(1):
            claimed = _claim_file(folder / (".id" if number == 1 else f".id-{number}"), namespace)
            if claimed:
                return claimed
    except OSError:
        return None
    raise AssertionError("unreachable")


def _claim_file(path: Path, namespace: str) -> ClaimedId | None:
    """Use the id in a file; None if processes of another PID namespace use it. OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        stored = _share_id(fd, namespace)
    except BaseException:  # also Ctrl-C: a lock that stayed would block this process and all others of the machine
        os.close(fd)
        raise
    if stored.namespace == namespace:
        return ClaimedId(stored.value, fd)
    os.close(fd)
    return None


def _share_id(fd: int, namespace: str) -> _StoredId:
    """Take a shared lock on an id file and read it; if no process uses the file, it is this namespace's from now on."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pass
    else:
        value = _read_id(fd).value or uuid.uuid4().hex[:12]
        content = f"{value} {namespace}\n".encode()
        os.pwrite(fd, content, 0)
        os.ftruncate(fd, len(content))
        os.fsync(fd)
    fcntl.flock(fd, fcntl.LOCK_SH)  # waits for a process that writes it; another one may have been faster
    return _read_id(fd)


def _read_id(fd: int) -> _StoredId:
    """The content of an id file; empty if it is new, or a power cut has emptied it."""
    value, _, namespace = os.pread(fd, _MAX_ID_BYTES, 0).decode(errors="replace").strip("\0 \n").partition(" ")
    return _StoredId(value, namespace)
