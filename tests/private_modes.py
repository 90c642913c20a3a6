"""Which of a run's files other users may use."""

import stat
from pathlib import Path


def open_to_others(folder: Path) -> list[str]:
    """Everything in a folder, and the folder itself, that other users may read, write or enter."""
    every = [folder, *folder.rglob("*")]
    return [str(path.relative_to(folder)) for path in every if stat.S_IMODE(path.lstat().st_mode) & 0o077]
