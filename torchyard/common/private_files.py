"""Folders and files of a run that nobody but its user may read: logs, plans and journals hold what programs print."""

import os
from pathlib import Path

_FOLDER_MODE, FILE_MODE = 0o700, 0o600


def make_private_folder(path: Path) -> None:
    """Make a folder and those above it that are missing; one that exists keeps its mode, which a person may have set.

    Not by the umask: that belongs to the whole process, and the programs that it starts keep the user's.
    """
    if not path.parent.exists():
        make_private_folder(path.parent)
    path.mkdir(_FOLDER_MODE, exist_ok=True)


def open_private_file(path: str, flags: int) -> int:
    """For `open`: a file that is made is the user's alone."""
    return os.open(path, flags, FILE_MODE)


def write_private_text(path: Path, text: str) -> None:
    with open(path, "w", encoding="utf-8", opener=open_private_file) as file:
        file.write(text)
