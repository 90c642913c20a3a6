"""Journals of runs, for tests of what follows from them."""

from typing import Any

NOW = 10_000.0


def process_events(
    *steps: str, end: str = "", by: str = "flow", lasting: float = 1.0, count: int = 1
) -> list[dict[str, Any]]:
    """The journal of one launch: its start, its steps, and its end if it has one."""
    started_at = NOW - lasting
    events: list[dict[str, Any]] = [{"event": "start", "at": started_at, "count": count}]
    events += [{"event": "step", "name": name, "at": started_at + lasting} for name in steps]
    if end:
        events.append({"event": "end", "end": end, "by": by, "at": started_at + lasting, "sentence": ""})
    return events
