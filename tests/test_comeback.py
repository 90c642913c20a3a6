"""How a process begins, from the journal alone."""

from typing import Any

import pytest

from tasks.comeback import entry

NOW = 10_000.0


def life(
    *steps: str, end: str = "", by: str = "flow", at: float = NOW - 30, lasting: float = 1.0
) -> list[dict[str, Any]]:
    """One process: its start, its steps, and its end where it came to one."""
    events: list[dict[str, Any]] = [{"event": "start", "at": at}]
    events += [{"event": "step", "name": name, "at": at + lasting} for name in steps]
    return events + ([{"event": "end", "end": end, "by": by, "at": at + lasting, "sentence": ""}] if end else [])


LOST = life("preflight", "submit", "wait")
DAYS = life("wait", lasting=9000.0, at=0.0)


@pytest.mark.parametrize(
    ("lives", "expected"),
    [
        ([], "fresh"),
        ([LOST], "attach"),
        ([LOST, LOST], "attach"),
        ([[*LOST, {"event": "ending", "at": NOW, "end": "cancelled"}]], "finish"),
        ([LOST, LOST, LOST], "give-up"),
        ([LOST, life("preflight"), LOST], "attach"),
        ([LOST, DAYS, LOST], "attach"),
        ([LOST, LOST, life("wait", end="failed", at=0.0), LOST], "attach"),
        ([life("wait", end="failed")], "fresh"),
        ([life("wait", end="cancelled")], "fresh"),
        ([life("wait", end="stopped")], "fresh"),
        ([life("wait", end="succeeded", at=0.0)], "echo"),
        ([LOST, life("wait", end="failed")], "echo"),
        ([LOST, life("wait", end="failed", at=0.0)], "fresh"),
        ([life("wait", end="swept", by="sweep", at=0.0)], "echo"),
        ([life("wait", end="swept", by="guard")], "echo"),
        ([life("wait", end="swept", by="sweep"), life(end="swept")], "fresh"),
        ([LOST, LOST, LOST, life(end="gave-up")], "echo"),
        ([LOST, LOST, LOST, life(end="gave-up", at=0.0)], "attach"),
    ],
)
def test_entry_follows_from_the_journal(lives: list[list[dict[str, Any]]], expected: str) -> None:
    """A lost run is attached to, a loop is given up, an ended run is told again or begun anew."""
    assert entry([event for each in lives for event in each], NOW) == expected
