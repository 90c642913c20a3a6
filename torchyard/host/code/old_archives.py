"""Bounds the number of archives that a machine keeps. Standard library only, Python 3.8 or newer."""

import contextlib
import glob
import os


def remove_old_archives(folder: str, kept: int) -> None:
    """Remove all but the `kept` newest archives. One that another process removes at the same time is not an error."""
    modified_at = {}
    for path in glob.glob(os.path.join(glob.escape(folder), "*.tar.gz")):
        with contextlib.suppress(OSError):
            modified_at[path] = os.stat(path).st_mtime
    for path in sorted(modified_at, key=modified_at.__getitem__)[:-kept]:
        with contextlib.suppress(OSError):
            os.unlink(path)
