"""A run's journal after crashes, full disks and power cuts."""

import logging
import os

import pytest

from torchyard.model.errors import FolderError
from torchyard.model.run import Outcome, Status
from torchyard.run.folder import RunFolder

TORN = [
    b'{"at": 1, "event": "st',
    b'{"at": 1, "event": "step", "name": "wa\xff\xfe"}',
    b'{"at": 1, "event": "step", "name": }',
    b'"a string"}',
    b'{"event": "step"}',
    b"[]",
    b"\0" * 40,
]


@pytest.mark.parametrize("line", [*TORN, pytest.param(b"[" * 100_000, id="many brackets")])
def test_torn_line_is_reported_and_skipped(folder: RunFolder, line: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """A line of the journal that is not an event is reported, and the others are read."""
    folder.record_event("start", run="r")
    with (folder.path / "journal").open("ab") as file:
        file.write(line + b"\n")
    folder.record_event("step", name="wait")
    with caplog.at_level(logging.WARNING):
        assert [event["event"] for event in folder.events()] == ["start", "step"]
    assert f"{folder.path}: line 2 of its journal is torn" in caplog.text


def test_event_after_a_torn_line_is_read(folder: RunFolder) -> None:
    """After a line that a full disk or a crash cut off, the next event starts on a new line."""
    folder.record_event("start", run="r")
    with (folder.path / "journal").open("ab") as file:
        file.write(TORN[0])
    folder.record_event("end", end="failed")
    assert [event["event"] for event in folder.events()] == ["start", "end"]


def test_journal_is_on_the_disk_before_the_next_step(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event and each outcome survives a power cut: the file and the folder that lists it are synced."""
    synced: list[str] = []

    def record_sync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fsync", record_sync)
    folder.record_event("start", run="r")
    folder.save_outcome(1, Outcome(status=Status(state="failed", reason=""), exit_codes={}))
    attempt = folder.attempt(1)
    listed = [str(folder.path / "journal"), str(folder.path), str(folder.path.parent)]
    assert synced == [*listed, str(attempt / "outcome.part"), str(attempt)]


def test_unreadable_journal_is_an_error(folder: RunFolder) -> None:
    """An unreadable journal is a FolderError, not an empty journal."""
    (folder.path / "journal").mkdir()
    with pytest.raises(FolderError, match="Is a directory"):
        folder.events()
