"""DiskWatch: file systems that have become full during a stall."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from torchyard.host.black_box.disks import DiskWatch

MOUNTS = r"""
overlay / overlay rw,relatime 0 0
/dev/sda1 /my\040data ext4 rw,relatime 0 0
/dev/loop1 /snap squashfs ro 0 0
/dev/sdb1 /cdrom ext4 ro 0 0
server:/home /home nfs4 rw 0 0
"""


class FakeDisks:
    """A machine whose file systems have free blocks and inodes as a test sets them; by default, enough."""

    def __init__(self, path: Path) -> None:
        self.mounts = path / "mounts"
        self.free_blocks: dict[str, int] = {}
        self.free_inodes = 9
        self.mounts.write_text(MOUNTS.lstrip())

    def statvfs(self, path: str) -> SimpleNamespace:
        assert path != "/home", "a network file system may not answer"
        free_blocks = self.free_blocks.get(path, 5)
        return SimpleNamespace(f_blocks=10, f_bavail=free_blocks, f_files=10, f_favail=self.free_inodes)


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDisks:
    disks = FakeDisks(tmp_path)
    monkeypatch.setattr(os, "statvfs", disks.statvfs)
    return disks


def test_file_system_that_becomes_full_is_found(disks: FakeDisks) -> None:
    """A file system that becomes full is found by its mount point, with blanks in its name."""
    watch = DiskWatch(str(disks.mounts))
    assert watch.find_newly_full() == ""
    disks.free_blocks["/my data"] = 0
    assert watch.find_newly_full() == "/my data"


def test_file_system_without_inodes_is_full(disks: FakeDisks) -> None:
    """A file system without free inodes is full, however many bytes are free."""
    watch = DiskWatch(str(disks.mounts))
    disks.free_inodes = 0
    assert watch.find_newly_full() == "/"


def test_full_file_system_is_remembered_until_progress(disks: FakeDisks) -> None:
    """A file system that was full once in a stall counts until the ranks make progress."""
    watch = DiskWatch(str(disks.mounts))
    disks.free_blocks["/"] = 0
    watch.find_newly_full()
    disks.free_blocks["/"] = 5
    assert watch.find_newly_full() == "/"
    watch.record_progress(100.0)
    assert watch.find_newly_full() == ""


def test_file_system_that_is_full_during_progress_does_not_count(disks: FakeDisks) -> None:
    """A file system that the last check found full still counts, but not after another check with progress."""
    watch = DiskWatch(str(disks.mounts))
    disks.free_blocks["/"] = 0
    for now in (100.0, 100.5, 101.0):  # of several ranks
        watch.record_progress(now)
    assert watch.find_newly_full() == "/"
    watch.record_progress(115.0)
    assert watch.find_newly_full() == ""


@pytest.mark.parametrize("path", ["/snap", "/cdrom"])
def test_read_only_file_system_is_not_queried(disks: FakeDisks, path: str) -> None:
    """A file system that is mounted read-only is not queried, because it is always full."""
    watch = DiskWatch(str(disks.mounts))
    disks.free_blocks[path] = 0
    assert watch.find_newly_full() == ""


def test_file_system_that_was_full_before_does_not_count(disks: FakeDisks) -> None:
    """A file system that was full before the watch started does not count."""
    disks.free_blocks["/"] = 0
    assert DiskWatch(str(disks.mounts)).find_newly_full() == ""


def test_machine_without_a_list_of_mounts(tmp_path: Path) -> None:
    """If the list of mounts cannot be read, no file system counts as full."""
    assert DiskWatch(str(tmp_path / "none")).find_newly_full() == ""
