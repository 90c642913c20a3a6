"""A thread's own table of descriptors."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from torchyard.host.black_box import descriptors
from torchyard.host.black_box.slot import RecordSlot, read_slots


def run_in_thread(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def test_thread_has_descriptors_of_its_own(tmp_path: Path) -> None:
    """What such a thread opens is not a descriptor of the process, and those of the process stay open."""
    path = tmp_path / "file"
    path.write_text("text")
    fd = os.open(path, os.O_RDONLY)
    numbers: list[int] = []

    def open_file() -> None:
        assert descriptors.own_descriptors({fd})
        numbers.append(os.open("/dev/null", os.O_RDONLY))
        numbers.extend(int(name) for name in os.listdir("/proc/thread-self/fd"))

    run_in_thread(open_file)
    opened, *all_numbers = numbers
    assert opened == 0
    assert set(all_numbers) <= {0, fd, *range(3)}
    assert os.read(fd, 4) == b"text"
    os.close(fd)


def test_refused_table_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that refuses the table leaves the thread with that of the process."""
    monkeypatch.setattr(descriptors, "_CLONE_FILES", 0x10000000)  # a user namespace, refused to a process with threads
    results: list[bool] = []
    run_in_thread(lambda: results.append(descriptors.own_descriptors()))
    assert results == [False]


def test_number_that_is_another_file_now_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a table of its own, a slot neither writes to nor closes a number that has become another file's."""
    slot = RecordSlot.claim(str(tmp_path), 0)
    assert slot
    slot.write({"rank": 0})
    stranger = os.open(tmp_path / "stranger", os.O_RDWR | os.O_CREAT)
    monkeypatch.setattr(os, "open", lambda *_: stranger)
    slot.write({"rank": 1})
    monkeypatch.undo()
    assert (os.pread(stranger, 10, 0), read_slots(str(tmp_path))) == (b"", {0: {"rank": 0}})
    os.close(stranger)
