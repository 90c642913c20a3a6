"""RecordSlot: a rank's record in a file of fixed size."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from torchyard.host.black_box.slot import SLOT_BYTES, RecordSlot, read_slots


def claim(folder: Path, rank: int = 0) -> RecordSlot:
    slot = RecordSlot.claim(str(folder), rank)
    assert slot
    return slot


def test_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    """The last record that a rank wrote is read by its node, under the rank's number."""
    slot = claim(tmp_path, 3)
    slot.write({"rank": 3, "stack": [1, 2, 3]})
    slot.write({"rank": 3})
    assert read_slots(str(tmp_path)) == {3: {"rank": 3}}


def test_record_waits_for_the_thread_that_writes(tmp_path: Path) -> None:
    """A record that comes before the writing thread runs is not written with the program's descriptors, but later."""
    slot = claim(tmp_path)
    targets: list[Callable[[], None]] = []
    slot.start_writer(targets.append)
    slot.write({"rank": 0})
    assert read_slots(str(tmp_path)) == {}
    threading.Thread(target=targets[0], daemon=True).start()
    slot.flush(30)
    assert read_slots(str(tmp_path)) == {0: {"rank": 0}}


def test_rank_that_has_written_nothing_has_no_record(tmp_path: Path) -> None:
    """A slot that was claimed and not written has no record."""
    claim(tmp_path)
    assert read_slots(str(tmp_path)) == {}


def test_torn_record_is_left_out(tmp_path: Path) -> None:
    """A record whose checksum does not match is left out."""
    claim(tmp_path).write({"rank": 0, "stalled": 1.0})
    with (tmp_path / "rank-0").open("r+b") as file:
        file.seek(20)
        file.write(b"#")
    assert read_slots(str(tmp_path)) == {}


def test_slot_has_its_size_from_the_start(tmp_path: Path) -> None:
    """The blocks of a slot are allocated at once, before the disk can become full."""
    claim(tmp_path)
    stat = (tmp_path / "rank-0").stat()
    assert (stat.st_size, stat.st_blocks * 512 >= SLOT_BYTES) == (SLOT_BYTES, True)


def test_long_record_loses_its_stack(tmp_path: Path) -> None:
    """A record that does not fit is written without its stack."""
    claim(tmp_path).write({"rank": 0, "stack": ["x" * SLOT_BYTES]})
    assert read_slots(str(tmp_path)) == {0: {"rank": 0, "groups": {}, "stack": [], "pending": None}}


def test_long_record_loses_members_of_groups_first(tmp_path: Path) -> None:
    """A rank in many large groups keeps its counts and its stack."""
    groups = {str(name): {"ranks": list(range(500)), "enqueued": 5} for name in range(20)}
    claim(tmp_path).write({"groups": groups, "stack": ["train"]})
    record = read_slots(str(tmp_path))[0]
    assert (record["groups"]["7"], record["stack"]) == ({"ranks": [], "enqueued": 5}, ["train"])


def test_helper_of_a_rank_gets_no_slot(tmp_path: Path) -> None:
    """A process that inherits a living rank's environment does not take its slot."""
    claim(tmp_path)
    code = f"from torchyard.host.black_box.slot import RecordSlot; print(RecordSlot.claim({str(tmp_path)!r}, 0))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "None\n"


def test_slot_of_a_dead_rank_is_taken(tmp_path: Path) -> None:
    """A rank that torchrun has started again takes the slot of its dead predecessor."""
    code = f"from torchyard.host.black_box.slot import RecordSlot; RecordSlot.claim({str(tmp_path)!r}, 0)"
    subprocess.run([sys.executable, "-c", code], check=True)
    claim(tmp_path).write({"pid": os.getpid()})
    assert read_slots(str(tmp_path)) == {0: {"pid": os.getpid()}}


def test_slot_that_was_never_written_is_taken(tmp_path: Path) -> None:
    """A file that was allocated by a rank which died before it wrote has no owner."""
    claim(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(bytes(SLOT_BYTES))
    claim(tmp_path).write({"pid": os.getpid()})
    assert read_slots(str(tmp_path)) == {0: {"pid": os.getpid()}}


def test_slot_keeps_no_descriptor(tmp_path: Path) -> None:
    """No descriptor stays open after a write, so that the program's next file cannot get the number of the slot's."""
    open_before = sorted(os.listdir("/proc/self/fd"))
    slot = claim(tmp_path)
    slot.write({"rank": 0})
    assert sorted(os.listdir("/proc/self/fd")) == open_before


def test_link_in_place_of_a_slot_is_not_followed(tmp_path: Path) -> None:
    """A symbolic link with the name of a slot is an error, and the file behind it stays as it is."""
    target = tmp_path / "results"
    target.write_text("accuracy 0.9")
    (tmp_path / "rank-0").symlink_to(target)
    with pytest.raises(OSError, match="symbolic link"):
        claim(tmp_path)
    assert target.read_text() == "accuracy 0.9"
