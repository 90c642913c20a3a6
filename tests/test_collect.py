"""What collect makes of logs that a full disk has cut."""

import pytest

from torchyard.diagnosis.root_cause import read_failure
from torchyard.model.run import Failure, LogFile, LogLine
from torchyard.steps.collect import _blame_disk

FULL = "9 lines: No space left on device"


@pytest.mark.parametrize(
    ("cause", "lost", "blamed"),
    [("peer-lost", FULL, True), ("program-error", FULL, True), ("unknown", "", False), ("oom-gpu", FULL, False)],
)
def test_lost_lines_outweigh_what_peers_say(cause: str, lost: str, blamed: bool) -> None:
    """With lines lost to a full disk an echo is no cause; what a process says of itself is."""
    logs = (LogFile(node="node-0", path="", lines=1, lost=lost),)
    found = _blame_disk(Failure(cause=cause, sentence="", retry=True), logs)
    assert (found.cause == "disk-full", found.retry) == (blamed, not blamed)


def test_peer_that_was_lost_by_an_exit_is_not_its_cause() -> None:
    """A rank leaves with 7, and its node was the rendezvous' host: what the other node then misses is no cause."""
    block = ["Root Cause (first observed failure):", "[0]:", "  time      : 2026-11-21_10:37:42", "  host      : h"]
    block += ["  rank      : 1 (local_rank: 0)", "  exitcode  : 7 (pid: 22)", "  error_file: <N/A>"]
    dead = ["[default0]:out of ideas", "failed (exitcode: 7) local_rank: 0 (pid: 22) of binary: python", *block]
    lost = [
        "[W1 socket.cpp:461] waitForInput: poll for socket returned POLLHUP",
        "c10d.DistNetworkError: Connection reset",
    ]
    lines = {
        "node-0": [LogLine(2.5, "node-0", text) for text in dead],
        "node-1": [LogLine(4.1, "node-1", t) for t in lost],
    }
    found = read_failure(lines, {"node-0": 1, "node-1": None})
    assert found
    assert (found.node, found.rank, found.exit_code, found.retry) == ("node-0", 1, 7, False)
