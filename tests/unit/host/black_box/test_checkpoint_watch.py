"""CheckpointWatch: which checkpoints it reports, and when."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.builders.checkpoints import (
    write_accelerate,
    write_deepspeed,
    write_safetensors,
    write_torch,
    write_transformers,
)
from torchyard.diagnosis.hang.records import MAX_RECORD_BYTES, parse_line
from torchyard.host.black_box.checkpoint_watch import CheckpointWatch
from torchyard.host.black_box.node_recorder import encode_record


class Watched:
    """A folder of checkpoints, and a watch that polls it every two seconds of the test's clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.watch = CheckpointWatch(str(folder), clock=float)  # its polls take no time
        self._now = 100.0

    def poll(self, *, polls: int = 1, is_last: bool = False) -> list[tuple[str, str]]:
        """The names of the checkpoints and their states in the records of the next polls."""
        return [(Path(record["path"]).name, record["state"]) for record in self.read(polls=polls, is_last=is_last)]

    def read(self, *, polls: int = 1, is_last: bool = False) -> list[dict[str, Any]]:
        """The records of the next polls."""
        records = []
        for _ in range(polls):
            self._now += 2.0
            records += self.watch.poll(self._now, is_last=is_last)
        return records


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def make_old(path: Path) -> None:
    """Give the files the time of an earlier attempt."""
    for file in (path, *path.rglob("*")):
        os.utime(file, (time.time() - 3600, time.time() - 3600))


def test_checkpoint_is_reported_once_when_two_polls_agree(watched: Watched) -> None:
    """A complete file and a complete folder have one record each, at the second poll that sees the same files."""
    write_torch(watched.folder / "step_5.pt")
    write_transformers(watched.folder / "output" / "checkpoint-500", step=500)
    assert watched.poll() == []
    assert sorted(watched.poll()) == [("checkpoint-500", "complete"), ("step_5.pt", "complete")]
    assert watched.poll(polls=50) == []
    assert watched.poll(is_last=True) == []


def test_record_of_a_checkpoint(watched: Watched) -> None:
    """A record has the step, the format, the size, how long the save took, and when it ended."""
    watched.poll()
    path = write_torch(watched.folder / "step_5.pt")
    started_at = path.stat().st_mtime
    os.utime(watched.folder, (started_at, started_at))
    watched.poll()
    write_torch(path, more=1)
    os.utime(path, (started_at + 41, started_at + 41))
    (record,) = watched.read(polls=2)
    assert record == {
        "kind": "checkpoint",
        "timestamp": record["timestamp"],
        "path": str(path),
        "step": 5,
        "format": "torch",
        "bytes": path.stat().st_size,
        "state": "complete",
        "problem": None,
        "seconds": 41.0,
        "saved_at": round(started_at + 41, 3),
    }


def test_rename_at_the_end_of_a_save(watched: Watched) -> None:
    """A file that is written under another name is reported under its own; the save began when it was first seen."""
    watched.poll()
    path = write_torch(watched.folder / "step_5.pt.tmp")
    started_at = path.stat().st_mtime
    os.utime(watched.folder, (started_at, started_at))
    watched.poll()
    os.utime(path, (started_at + 30, started_at + 30))
    path.rename(watched.folder / "step_5.pt")
    (record,) = watched.read(polls=4)
    assert (Path(record["path"]).name, record["seconds"]) == ("step_5.pt", 30.0)


def test_save_in_place(watched: Watched) -> None:
    """A file that is written again is reported again."""
    path = write_torch(watched.folder / "last.pt", step=1)
    assert watched.poll(polls=2) == [("last.pt", "complete")]
    write_torch(path, step=2)
    os.utime(path, (path.stat().st_mtime + 60, path.stat().st_mtime + 60))
    assert [record["step"] for record in watched.read(polls=3)] == [2]


def test_checkpoint_that_is_torn_or_removed(watched: Watched) -> None:
    """What was complete is reported as torn if it has not changed for 10 s or more, and as gone at the second poll."""
    path = write_torch(watched.folder / "step_5.pt")
    folder = write_accelerate(watched.folder / "checkpoint_1")
    watched.poll(polls=2)
    os.truncate(path, 100)
    shutil.rmtree(folder)
    assert watched.poll() == []
    assert watched.poll() == [("checkpoint_1", "gone")]
    assert watched.poll(polls=3) == []
    assert watched.poll(polls=6) == [("step_5.pt", "torn")]
    path.unlink()
    assert watched.poll(polls=10) == []


def test_save_that_the_end_interrupts(watched: Watched) -> None:
    """The last poll reports saves that were begun and are torn, and complete ones at once."""
    watched.poll()
    path = write_torch(watched.folder / "step_5.pt")
    os.truncate(path, 100)
    write_safetensors(watched.folder / "checkpoint-7" / "model.safetensors")
    (watched.folder / "checkpoint-7" / "config.json").write_text("{}")
    assert watched.poll(polls=40) == []
    write_torch(watched.folder / "step_6.pt")
    reported = sorted(watched.poll(is_last=True))
    assert reported == [("checkpoint-7", "torn"), ("step_5.pt", "torn"), ("step_6.pt", "complete")]


def test_folder_that_cannot_be_judged(watched: Watched) -> None:
    """A folder of an unknown program is reported after 10 s without a change, as not verified."""
    write_torch(watched.folder / "step_5" / "model.pt")
    assert watched.poll(polls=4) == []
    assert watched.poll(polls=40) == [("step_5", "unverified")]


def test_file_beside_a_folder_completes_it(watched: Watched) -> None:
    """DeepSpeed's folder is complete when `latest` names it, which changes nothing in the folder."""
    write_deepspeed(watched.folder / "global_step1")
    (watched.folder / "latest").unlink()
    watched.poll(polls=3)
    (watched.folder / "latest").write_text("global_step1")
    assert watched.poll(polls=4) == [("global_step1", "complete")]


def test_earlier_attempts_are_not_reported(tmp_path: Path) -> None:
    """What was there at the start has no record unless it is saved again, or is gone."""
    old = write_transformers(tmp_path / "checkpoint-500", step=500)
    make_old(old)
    os.truncate(write_torch(tmp_path / "step_1.pt"), 50)
    make_old(tmp_path / "step_1.pt")
    watched = Watched(tmp_path)
    assert watched.poll(polls=10) == []
    write_torch(tmp_path / "step_1.pt")
    assert watched.poll(polls=3) == [("step_1.pt", "complete")]
    shutil.rmtree(old)
    assert watched.poll(polls=2, is_last=True) == [("checkpoint-500", "gone")]


def test_folder_that_cannot_be_read_proves_nothing(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a file system fails, nothing is gone and nothing is torn."""
    write_torch(watched.folder / "runs" / "step_5.pt")
    assert watched.poll(polls=2) == [("step_5.pt", "complete")]

    def fail(*_: object, **__: object) -> Any:
        raise OSError(116, "Stale file handle")

    for name in ("scandir", "open", "lstat", "stat"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            assert watched.poll(polls=3) == []
    assert watched.poll(is_last=True) == []


def test_settled_checkpoints_are_compared_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll that finds nothing compares 100 files, lists no folder and opens no file."""
    for step in range(150):
        write_torch(tmp_path / f"step_{step}.pt")
    watched = Watched(tmp_path)
    assert len(watched.poll(polls=2)) == 150
    watched.poll(polls=2)
    statuses: list[str] = []
    read_status = os.stat

    def count(path: str) -> os.stat_result:
        statuses.append(path)
        return read_status(path)

    def fail(*_: object, **__: object) -> Any:
        raise AssertionError("a read")

    monkeypatch.setattr(os, "stat", count)
    monkeypatch.setattr(os, "scandir", fail)
    monkeypatch.setattr(os, "open", fail)
    assert watched.poll() == []
    assert len(statuses) == 102
    assert watched.poll() == []
    assert len({path for path in statuses if path.endswith(".pt")}) == 150


def test_polls_are_two_seconds_apart(tmp_path: Path) -> None:
    """A call within two seconds reads nothing, unless it is the last one."""
    watch = CheckpointWatch(str(tmp_path), clock=float)
    write_torch(tmp_path / "step_5.pt")
    assert [len(watch.poll(now)) for now in (10.0, 11.0, 11.9, 12.1)] == [0, 0, 0, 1]
    write_torch(tmp_path / "step_6.pt")
    assert [len(watch.poll(12.2, is_last=is_last)) for is_last in (False, True)] == [0, 1]


def test_polls_of_a_slow_file_system_are_rare(tmp_path: Path) -> None:
    """After a poll that took a second, the next one is 20 s later."""
    times = iter(range(100))
    watch = CheckpointWatch(str(tmp_path), clock=lambda: float(next(times)))
    write_torch(tmp_path / "step_5.pt")
    assert [len(watch.poll(now)) for now in (10.0, 29.9, 30.1)] == [0, 0, 1]


@pytest.mark.parametrize("name", ["step_1\n.pt", "step_1\\n.pt", os.fsdecode(b"step_1\xff.pt")])
def test_names_that_no_record_can_contain(name: str, watched: Watched) -> None:
    """A path with control characters, a backslash or bytes that are not text is left out."""
    write_torch(watched.folder / name)
    assert watched.poll(polls=3) == []


def test_records_fit_into_a_line(watched: Watched) -> None:
    """A record with long names is a line of at most 3,900 bytes, which the readers of ranks' records ignore."""
    folder = watched.folder / ("ä" * 100) / ("ö" * 100) / "step_1"
    write_torch(folder / ("ü" * 100 + ".pt"))
    os.truncate(folder / ("ü" * 100 + ".pt"), 10)
    write_torch(watched.folder / "step_2.pt")
    lines = [encode_record(record).decode() for record in watched.read(is_last=True)]
    assert len(lines) == 2
    for line in lines:
        assert len(line) < min(3_900, MAX_RECORD_BYTES)
        assert json.loads(line.partition(": ")[2])["kind"] == "checkpoint"
        assert parse_line(line.strip()) == []
