"""What collect makes of logs that a full disk has cut."""

import pytest

from tasks.collect import blame_disk
from tasks.model import Failure, LogFile

FULL = "9 lines: No space left on device"


@pytest.mark.parametrize(
    ("cause", "lost", "blamed"),
    [("peer-lost", FULL, True), ("program-error", FULL, True), ("unknown", "", False), ("oom-gpu", FULL, False)],
)
def test_lost_lines_outweigh_what_peers_say(cause: str, lost: str, blamed: bool) -> None:
    """With lines lost to a full disk an echo is no cause; what a process says of itself is."""
    logs = (LogFile(node="node-0", path="", lines=1, lost=lost),)
    found = blame_disk(Failure(cause=cause, sentence="", retry=True), logs)
    assert (found.cause == "disk-full", found.retry) == (blamed, not blamed)
