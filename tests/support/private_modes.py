"""The files of a run that other users may access."""

import stat
from pathlib import Path


def list_accessible_to_others(folder: Path) -> list[str]:
    """The paths below a folder, and `.` for itself, that other users may read, write or enter."""
    paths = [folder, *folder.rglob("*")]
    return [str(path.relative_to(folder)) for path in paths if stat.S_IMODE(path.lstat().st_mode) & 0o077]
