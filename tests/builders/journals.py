"""Journals of runs, for tests of what follows from them."""

from collections.abc import Sequence
from typing import Any

NOW = 10_000.0


def process_events(
    *steps: str, end: str = "", by: str = "flow", lasting: float = 1.0, count: int = 1
) -> list[dict[str, Any]]:
    """The journal of one launch, which lasted until NOW: its start, its short steps, and its end if it has one.

    Its last step goes on: nothing is journalled while a job trains.
    """
    started_at = NOW - lasting
    events: list[dict[str, Any]] = [{"event": "start", "at": started_at, "count": count}]
    events += [{"event": "step", "name": name, "at": started_at} for name in steps]
    if end:
        events.append({"event": "end", "end": end, "by": by, "at": NOW, "sentence": ""})
    return events


def join_launches(launches: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The journal of launches, each of which lasted until the next one started, and the last one until NOW."""
    events: list[dict[str, Any]] = []
    later_s = 0.0  # that the launches after this one lasted
    for launch in reversed(launches):
        events = [event | {"at": event["at"] - later_s} for event in launch] + events
        later_s += NOW - launch[0]["at"]
    return events
