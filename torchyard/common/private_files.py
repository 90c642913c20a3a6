"""Folders and files of a run that only its user may read: logs, plans and journals hold what programs print."""

import contextlib
import errno
import os
from pathlib import Path

_FOLDER_MODE, FILE_MODE = 0o700, 0o600


def make_private_folder(path: Path) -> None:
    """Create a folder and its missing parents; an existing one keeps its mode, which the user may have set.

    The umask is left alone: it belongs to the whole process, and the programs that it starts keep the user's.
    """
    if not path.parent.exists():
        make_private_folder(path.parent)
    path.mkdir(_FOLDER_MODE, exist_ok=True)


def open_private_file(path: str, flags: int) -> int:
    """An opener for `open`: only the user may read a file that it creates."""
    return os.open(path, flags, FILE_MODE)


def write_private_text(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8", opener=open_private_file) as file:
        file.write(text)


def append_line(path: Path, line: str) -> None:
    """Append a line and sync it to disk. OSError.

    It is one write, so that two processes cannot tear each other's lines.
    """
    with open(path, "ab+", buffering=0, opener=open_private_file) as file:
        # After a torn line, start a new one, so that this line can be read.
        end = file.seek(0, os.SEEK_END)
        is_torn = end > 0 and os.pread(file.fileno(), 1, end - 1) != b"\n"
        data = b"\n" * is_torn + line.encode() + b"\n"
        if file.write(data) < len(data):
            raise OSError(errno.ENOSPC, "no space for the whole line")
        os.fsync(file.fileno())
    for folder in () if end else (path.parent, path.parent.parent):
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries to disk, if its filesystem can do that."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
