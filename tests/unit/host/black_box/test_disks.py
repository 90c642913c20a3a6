"""Which file systems have become full."""

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


class Disks:
    """A machine whose file systems have as much room as a test says; by default, enough."""

    def __init__(self, path: Path) -> None:
        self.mounts, self.room = path / "mounts", dict[str, int]()
        self.inodes = 9
        self.mounts.write_text(MOUNTS.lstrip())

    def ask(self, path: str) -> SimpleNamespace:
        assert path != "/home", "a network's file system may not answer"
        return SimpleNamespace(f_blocks=10, f_bavail=self.room.get(path, 5), f_files=10, f_favail=self.inodes)


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disks:
    made = Disks(tmp_path)
    monkeypatch.setattr(os, "statvfs", made.ask)
    return made


def test_file_system_that_becomes_full_is_found(disks: Disks) -> None:
    """Its mount point is given, blanks included."""
    watch = DiskWatch(str(disks.mounts))
    assert watch.find_newly_full() == ""
    disks.room["/my data"] = 0
    assert watch.find_newly_full() == "/my data"


def test_file_system_without_inodes_is_full(disks: Disks) -> None:
    """No further file can be made there, however many bytes are free."""
    watch = DiskWatch(str(disks.mounts))
    disks.inodes = 0
    assert watch.find_newly_full() == "/"


def test_file_that_is_tried_again_frees_its_room_for_a_moment(disks: Disks) -> None:
    """What has been full once in a stall is remembered until the ranks go on."""
    watch = DiskWatch(str(disks.mounts))
    disks.room["/"] = 0
    watch.find_newly_full()
    disks.room["/"] = 5
    assert watch.find_newly_full() == "/"
    watch.record_progress(100.0)
    assert watch.find_newly_full() == ""


def test_disk_that_is_full_while_the_ranks_go_on_stops_nobody(disks: Disks) -> None:
    """A look just before a stall is seen may find the disk full already; one look later it is an old fact."""
    watch = DiskWatch(str(disks.mounts))
    disks.room["/"] = 0
    for now in (100.0, 100.5, 101.0):  # of several ranks
        watch.record_progress(now)
    assert watch.find_newly_full() == "/"
    watch.record_progress(115.0)
    assert watch.find_newly_full() == ""


@pytest.mark.parametrize("path", ["/snap", "/cdrom"])
def test_what_nobody_can_write_to_is_not_asked(disks: Disks, path: str) -> None:
    """An image that is mounted read-only is always full."""
    watch = DiskWatch(str(disks.mounts))
    disks.room[path] = 0
    assert watch.find_newly_full() == ""


def test_disk_that_was_full_before_stops_nobody(disks: Disks) -> None:
    """The ranks went on with it."""
    disks.room["/"] = 0
    assert DiskWatch(str(disks.mounts)).find_newly_full() == ""


def test_machine_without_a_list_of_mounts(tmp_path: Path) -> None:
    """What cannot be read is no full disk."""
    assert DiskWatch(str(tmp_path / "none")).find_newly_full() == ""
