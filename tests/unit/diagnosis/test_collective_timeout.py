"""Collectives that timed out: what a rank waited for, and which rank is to blame."""

import pytest

from tests.failure_logs import block, read
from torchyard.diagnosis.collective_timeout import RankLine, explain_timeout

# The watchdog's words in torch 1.9, 1.13, 2.0, 2.1, 2.3 and 2.6.
_HEAD = "[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL("
_TAIL = "Timeout(ms)=1800000) ran for 1802710 milliseconds before timing out."
_SIZES = "NumelIn=4096, NumelOut=4096, "
_NEWEST = "[rank{rank}]:[E1206 18:44:13.715298746 ProcessGroupNCCL.cpp:616] "
WORDS = {
    "1.9": f"[E ProcessGroupNCCL.cpp:566] {_HEAD}OpType={{op}}, {_TAIL}",
    "1.13": f"[E ProcessGroupNCCL.cpp:821] {_HEAD}SeqNum={{seq}}, OpType={{op}}, {_TAIL}",
    "2.0": f"[E ProcessGroupNCCL.cpp:828] {_HEAD}SeqNum={{seq}}, OpType={{op}}, TensorShape=[4096], {_TAIL}",
    "2.1": f"[E ProcessGroupNCCL.cpp:474] {_HEAD}SeqNum={{seq}}, OpType={{op}}, {_SIZES}{_TAIL}",
    "2.3": f"[rank{{rank}}]:[E ProcessGroupNCCL.cpp:563] {_HEAD}SeqNum={{seq}}, OpType={{op}}, {_SIZES}{_TAIL}",
    "2.6": f"{_NEWEST}{_HEAD}SeqNum={{seq}}, OpType={{op}}, {_SIZES}{_TAIL}",
}
# What follows: the second line names an exception that is no cause of its own.
_ABORT = "  what():  [PG 0 Rank {rank}] Process group watchdog thread terminated with exception: "
AFTER = (
    "[E ProcessGroupNCCL.cpp:456] Some NCCL operations have failed or timed out.",
    "terminate called after throwing an instance of 'c10::DistBackendError'",
    f"{_ABORT}{_HEAD}SeqNum={{seq}}, OpType={{op}}, {_SIZES}{_TAIL}",
)


def watchdog(rank: int, seq: int = 9, op: str = "ALLREDUCE", version: str = "2.6") -> list[str]:
    """What a rank logs when its collective times out."""
    return [line.format(rank=rank, seq=seq, op=op) for line in (WORDS[version], *AFTER)]


def explain(*said: tuple[int | None, list[str]]) -> tuple[str, bool]:
    """The explanation for the first of these ranks; each node has two of them."""
    lines = [RankLine(f"node-{(rank or 0) // 2}", rank, text) for rank, texts in said for text in texts]
    found = explain_timeout(lines[0], lines)
    assert found
    return found


@pytest.mark.parametrize("version", WORDS)
def test_timeout_is_no_error_of_nccl(version: str) -> None:
    """The exception with which the watchdog ends its process is not the cause: the timeout before it is."""
    said = [f"[default0]:{line}" for line in watchdog(0, version=version)]
    found = read({"node_0": 1}, node_0=[*said, *block(0, 0, -6, 10)])
    assert (found.cause, found.rank, found.retry) == ("nccl-timeout", 0, True)
    assert found.sentence.startswith("Rank 0 on node-0 waited 1,803 s for ALLREDUCE")


@pytest.mark.parametrize(
    ("version", "what"),
    [
        ("1.9", "waited 1,803 s for BROADCAST until"),
        ("1.13", "waited 1,803 s for BROADCAST number 1,024 until"),
        ("2.0", "waited 1,803 s for BROADCAST number 1,024 until"),
        ("2.6", "waited 1,803 s for BROADCAST number 1,024 of 4,096 elements until"),
    ],
)
def test_collective_is_named_as_far_as_it_is_known(version: str, what: str) -> None:
    """Operation, sequence number and size are in the sentence if the version of torch prints them."""
    assert explain((0, watchdog(0, 1024, "BROADCAST", version)))[0].startswith(what)


def test_rank_that_does_not_wait_is_named() -> None:
    """Where most ranks wait and one does not, that one did not come."""
    said, retry = explain((0, watchdog(0)), (1, watchdog(1)), (2, watchdog(2)), (3, ["loading batch 17"]))
    assert (said.endswith(": rank 3 on node-1 did not wait for it, so look there"), retry) == (True, True)


def test_rank_in_an_earlier_collective_is_named() -> None:
    """A rank that waits in an earlier collective of the same group holds up the others."""
    said, _ = explain((0, watchdog(0, 12)), (1, watchdog(1, 12)), (2, watchdog(2, 11)))
    assert said.endswith(": rank 2 on node-1 still waits in an earlier collective, so look there")


def test_first_collective_that_no_rank_ends_is_the_set_up() -> None:
    """If every rank waits in the first collective, none has ever worked: another attempt would do the same."""
    said, retry = explain((0, watchdog(0, 1)), (1, watchdog(1, 1)), (2, watchdog(2, 1)))
    assert ("not even the first collective works" in said, retry) == (True, False)


def test_lone_report_blames_nobody() -> None:
    """One rank's report alone, or that of a few among many silent ranks, does not say who is missing."""
    for said in ([(0, watchdog(0, 1))], [(0, watchdog(0)), *((rank, ["hello"]) for rank in range(1, 4))]):
        assert explain(*said)[0].endswith(": look for the rank that is missing or slow")


@pytest.mark.parametrize(
    "line",
    [
        "\t     [1, 3] finished collective #9, but didn't join collective #10 (count from 1)",
        "\t - To our best knowledge, ranks [1, 3] are the lagging ranks that caused this timeout.",
        "RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 30000 ms",
    ],
)
def test_ranks_that_torch_names_are_believed(line: str) -> None:
    """torch's own desync report, and that of the monitored barrier, name the absent ranks."""
    said, _ = explain((0, [*watchdog(0), line]), (3, ["hello"]))
    assert said.endswith(": rank 1, rank 3 on node-1 did not join it, so look there")


def test_rank_of_another_group_is_not_global() -> None:
    """The rank in a sub-group's message is its place in that group, so it is not taken for a global rank."""
    text = WORDS["2.1"].format(rank=1, seq=1, op="ALLREDUCE").replace("[Rank", "[PG ID 3 PG GUID 7 Rank")
    said, retry = explain((None, [text]), (0, ["hello"]), (1, ["hello"]), (2, ["hello"]))
    assert (said.endswith(": look for the rank that is missing or slow"), retry) == (True, True)


def test_other_words_about_a_timeout_say_no_more() -> None:
    """Where no watchdog's line is known, there is nothing to add."""
    line = RankLine("node-0", 0, "Heartbeat monitor timed out! Process will be terminated after dumping debug info.")
    assert explain_timeout(line, [line]) is None
