"""A run's journal: one JSON line per event. It survives a crash, a full disk and a power cut."""

import functools
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from torchyard.common.json_text import parse_json
from torchyard.common.private_files import append_line

_LOG = logging.getLogger("torchyard")


def append_event(journal: Path, event: str, fields: dict[str, Any]) -> None:
    """Append an event and sync it to disk. OSError if it cannot be written.

    The line is written by one call, so that two processes cannot tear each other's lines.
    """
    header = {"at": round(time.time(), 3), "pid": os.getpid(), "event": event}
    append_line(journal, json.dumps(header | fields))


def read_events(journal: Path) -> list[dict[str, Any]]:
    """All events so far; empty if there is no file. OSError if it cannot be read.

    A line that a crash or a full disk has torn is reported and skipped.
    """
    try:
        lines = journal.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    events = [_parse_event(line) for line in lines]
    for number, (line, event) in enumerate(zip(lines, events, strict=True), 1):
        if event is None and line:
            _report_torn_line(str(journal.parent), number)
    return [event for event in events if event]


def parse_events(text: bytes) -> list[dict[str, Any]]:
    """All events in the text of a journal; torn lines are skipped."""
    return [event for event in map(_parse_event, text.split(b"\n")) if event]


def _parse_event(line: bytes) -> dict[str, Any] | None:
    """Parse one line of a journal; None if it is torn."""
    try:
        event = parse_json(line)
    except ValueError:
        return None
    is_event = (
        isinstance(event, dict) and isinstance(event.get("event"), str) and isinstance(event.get("at"), int | float)
    )
    return event if is_event else None


@functools.cache
def _report_torn_line(path: str, number: int) -> None:
    """Report a torn line once per process: a journal is read many times."""
    _LOG.warning("run folder %s: line %d of its journal is torn and skipped", path, number)
