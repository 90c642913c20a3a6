"""Folders and files of a run that only its user may read: logs, plans and journals contain the output of programs."""

import contextlib
import errno
import os
import stat
from pathlib import Path

FILE_MODE = 0o600
_FOLDER_MODE = 0o700


def make_private_folder(path: Path) -> None:
    """Create a folder and its missing parents; an existing one keeps its mode, which the user may have set. OSError.

    The umask is not changed: it applies to the whole process, and programs that it starts must inherit the user's.
    """
    if not path.parent.exists():
        make_private_folder(path.parent)
    path.mkdir(_FOLDER_MODE, exist_ok=True)


def open_private_file(path: str, flags: int) -> int:
    """An opener for `open`: only the user may read a file that it creates. It returns the descriptor."""
    return os.open(path, flags, FILE_MODE)


def write_private_text(path: Path, text: str) -> None:
    """Replace the content of a file; a new file is private. OSError: then the file has its earlier content.

    No reader sees half of the text. It is not synced: after a power cut the file may have either content, or be empty.
    """
    temp_path = path.with_name(f"{path.name}.part")
    try:
        with open(temp_path, "w", encoding="utf-8", opener=open_private_file) as file:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))  # the user may have changed it
            file.write(text)
        temp_path.replace(path)
    except OSError:
        temp_path.unlink(missing_ok=True)
        raise


def append_line(path: Path, line: str) -> None:
    """Append a line and sync it to disk. OSError, also if the disk is full after a part of the line.

    The line is a single write, so that lines of two processes are never mixed.
    """
    with open(path, "ab+", buffering=0, opener=open_private_file) as file:
        end = file.seek(0, os.SEEK_END)
        data = line.encode() + b"\n"
        if end > 0 and os.pread(file.fileno(), 1, end - 1) != b"\n":
            data = b"\n" + data  # the last line is incomplete: start a new one, so that this line can be read
        if file.write(data) < len(data):
            raise OSError(errno.ENOSPC, "no space for the whole line")
        os.fsync(file.fileno())
    if end == 0:  # the file may be new: its entry and that of its folder must be on disk as well
        sync_folder(path.parent)
        sync_folder(path.parent.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder's entries to disk, if its filesystem can do that."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
