"""What a process does that starts for a run which may have a past: decided from the run's own journal alone."""

from collections.abc import Sequence
from typing import Any, Literal

Entry = Literal["fresh", "attach", "finish", "echo", "give-up"]
LOSSES = 3
# A process that lived longer than this has done its part: only deaths in a row, each soon after the start, are a loop.
SOON = 600.0
# Prefect may schedule a lost run twice; the second process can come after the first one has brought the run to its end.
ECHO = 60.0


def entry(events: Sequence[dict[str, Any]], now: float) -> Entry:
    """How to begin.

    `fresh`: nobody was here, or the run ended and is asked for again. `attach`: the last process was lost.
    `finish`: it was lost in the middle of ending the run, on purpose or not: end it now.
    `echo`: the run has ended and this is a late call of its own comeback: tell the end again.
    `give-up`: three processes in a row were lost at the same step, each soon after its start.
    """
    if not events:
        return "fresh"
    lives = split(events)
    if events[-1]["event"] == "end":
        return read_ended(lives, events[-1], now)
    if any(event["event"] == "ending" for event in lives[-1]):
        return "finish"
    lost = [life for life in lives if life[-1]["event"] != "end"]
    recent = lives[-LOSSES:]
    looping = len(recent) == LOSSES and all(life in lost and short(life) for life in recent)
    return "give-up" if looping and len({last_step(life) for life in recent}) == 1 else "attach"


def read_ended(lives: list[list[dict[str, Any]]], end: dict[str, Any], now: float) -> Entry:
    """A run that succeeded is done for good. One that gave up, or went on elsewhere, may have a job to come back to."""
    came_back = len(lives) > 1 and lives[-2][-1]["event"] != "end"
    if end["end"] == "succeeded" or end["by"] != "flow" or (came_back and now - end["at"] < ECHO):
        return "echo"
    return "attach" if end["end"] in ("gave-up", "moved") else "fresh"


def split(events: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The journal, cut at every start."""
    lives: list[list[dict[str, Any]]] = []
    for event in events:
        if event["event"] == "start" or not lives:
            lives.append([])
        lives[-1].append(event)
    return lives


def short(life: Sequence[dict[str, Any]]) -> bool:
    return float(life[-1]["at"]) - float(life[0]["at"]) < SOON


def last_step(life: Sequence[dict[str, Any]]) -> str:
    return str(next((event["name"] for event in reversed(life) if event["event"] == "step"), "start"))
