"""Find file systems of this machine that have become full: a program may retry a checkpoint there forever."""

from __future__ import annotations

import contextlib
import os
import re

# Network file systems are not queried: a call on one whose server is down does not return.
_LOCAL_TYPES = frozenset({"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"})
_ESCAPE = re.compile(r"\\([0-7]{3})")  # a blank is \040 in /proc
_MAX_PATH_CHARS = 200
_CHECK_INTERVAL_S = 10.0  # the ranks of a node report progress one after the other


class DiskWatch:
    """Find file systems that have become full since the last check but one at which the ranks made progress.

    The last check itself does not count: a rank may have stalled by then, for too short a time to be detected.
    """

    def __init__(self, mounts: str = "/proc/self/mounts") -> None:
        self._mounts = mounts
        self._last_full = self._list_full()
        self._previous_full = self._last_full
        self._newly_full: set[str] = set()
        self._checked_at = -_CHECK_INTERVAL_S

    def record_progress(self, now: float) -> None:
        """Record that the ranks make progress: a file system that was full at the check before does not stop them."""
        if now - self._checked_at >= _CHECK_INTERVAL_S:
            self._previous_full = self._last_full
            self._last_full = self._list_full()
            self._checked_at = now
            self._newly_full = set()

    def find_newly_full(self) -> str:
        """The mount point of a file system that has become full recently; empty if there is none.

        It counts even if it is not full now: a program that retries first truncates the file, which frees blocks.
        """
        self._newly_full |= self._list_full() - self._previous_full
        return min(self._newly_full, default="")[:_MAX_PATH_CHARS]

    def _list_full(self) -> frozenset[str]:
        try:
            with open(self._mounts, encoding="utf-8", errors="replace") as file:
                mounts = [line.split() for line in file]
        except OSError:
            return frozenset()
        local = {
            mount[1] for mount in mounts if len(mount) > 3 and mount[2] in _LOCAL_TYPES and "rw" in mount[3].split(",")
        }
        return frozenset(path for path in map(_unescape, local) if _is_full(path))


def _is_full(path: str) -> bool:
    """Whether a file system has no free block or no free inode; False if it cannot be queried."""
    with contextlib.suppress(OSError):
        stats = os.statvfs(path)
        return (stats.f_blocks > 0 and stats.f_bavail <= 0) or (stats.f_files > 0 and stats.f_favail <= 0)
    return False


def _unescape(path: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), path)
