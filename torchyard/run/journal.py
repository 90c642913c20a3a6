"""A run's journal: one JSON line an event, which outlives a crash, a full disk and a power cut."""

import contextlib
import errno
import functools
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from torchyard.common.private_files import open_private_file

_LOG = logging.getLogger("torchyard")


def append_event(journal: Path, event: str, facts: dict[str, Any]) -> None:
    """Write an event down, on the disk; one write, so that two processes cannot tear each other's line. OSError."""
    line = json.dumps({"at": round(time.time(), 3), "pid": os.getpid(), "event": event, **facts}) + "\n"
    with open(journal, "ab+", buffering=0, opener=open_private_file) as file:
        # Behind a torn line: what begins on a line of its own can be read.
        end = file.seek(0, os.SEEK_END)
        torn = end > 0 and os.pread(file.fileno(), 1, end - 1) != b"\n"
        data = b"\n" * torn + line.encode()
        if file.write(data) < len(data):
            raise OSError(errno.ENOSPC, "no room for all of its journal")
        os.fsync(file.fileno())
    for folder in () if end else (journal.parent, journal.parent.parent):
        sync_folder(folder)


def read_events(journal: Path) -> list[dict[str, Any]]:
    """What has happened. A line that a crash or a full disk has torn is reported and left out. OSError."""
    try:
        lines = journal.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    events = [_read_event(line) for line in lines]
    for number, (line, event) in enumerate(zip(lines, events, strict=True), 1):
        if event is None and line:
            _report_torn_line(str(journal.parent), number)
    return [event for event in events if event]


def sync_folder(folder: Path) -> None:
    """Bring what a folder lists to the disk, where its filesystem can do that."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def _read_event(line: bytes) -> dict[str, Any] | None:
    """One line of a journal; None where it is torn."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(event, dict) and isinstance(event.get("event"), str) and isinstance(event.get("at"), int | float)
    return event if whole else None


@functools.cache
def _report_torn_line(path: str, number: int) -> None:
    """Once a process: a journal is read many times."""
    _LOG.warning("run folder %s: line %d of its journal is torn and left out", path, number)
