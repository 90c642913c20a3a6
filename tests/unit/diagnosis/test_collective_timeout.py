"""Collectives that timed out: what a rank waited for, and which rank did not take part."""

import pytest

from tests.inputs.failure_logs import build_summary_entry, diagnose_lines
from torchyard.diagnosis.collective_timeout import RankLine, TimeoutExplanation, explain_timeout

# The watchdog's messages in torch 1.9, 1.13, 2.0, 2.1, 2.3 and 2.6.
_HEAD = "[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL("
_TAIL = "Timeout(ms)=1800000) ran for 1802710 milliseconds before timing out."
_SIZES = "NumelIn=4096, NumelOut=4096, "
_NEWEST = "[rank{rank}]:[E1206 18:44:13.715298746 ProcessGroupNCCL.cpp:616] "
WATCHDOG_LINES = {
    "1.9": f"[E ProcessGroupNCCL.cpp:566] {_HEAD}OpType={{op}}, {_TAIL}",
    "1.13": f"[E ProcessGroupNCCL.cpp:821] {_HEAD}SeqNum={{seq}}, OpType={{op}}, {_TAIL}",
    "2.0": f"[E ProcessGroupNCCL.cpp:828] {_HEAD}SeqNum={{seq}}, OpType={{op}}, TensorShape=[4096], {_TAIL}",
    "2.1": f"[E ProcessGroupNCCL.cpp:474] {_HEAD}SeqNum={{seq}}, OpType={{op}}, {_SIZES}{_TAIL}",
    "2.3": f"[rank{{rank}}]:[E ProcessGroupNCCL.cpp:563] {_HEAD}SeqNum={{seq}}, OpType={{op}}, {_SIZES}{_TAIL}",
    "2.6": f"{_NEWEST}{_HEAD}SeqNum={{seq}}, OpType={{op}}, {_SIZES}{_TAIL}",
}
# The lines that follow: the exception in the second one is not a cause of its own.
_ABORT = "  what():  [PG 0 Rank {rank}] Process group watchdog thread terminated with exception: "
ABORT_LINES = (
    "[E ProcessGroupNCCL.cpp:456] Some NCCL operations have failed or timed out.",
    "terminate called after throwing an instance of 'c10::DistBackendError'",
    f"{_ABORT}{_HEAD}SeqNum={{seq}}, OpType={{op}}, {_SIZES}{_TAIL}",
)

# How far a rank has come: in torch 2.3, 2.4, 2.6 and 2.13.
_OF_RANK = "[rank{rank}]:[E626 16:48:25.440238649 ProcessGroupNCCL.cpp:2268] "
PROGRESS = {
    "2.3": "[rank{rank}]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank {rank}] Timeout at NCCL work: {seq}, "
    "last enqueued NCCL work: {last_enqueued}, last completed NCCL work: 76280750235782912.",
    "2.4": f"{_OF_RANK}[PG 0 (default_pg) Rank {{rank}}] Exception (either an error or timeout) detected by watchdog "
    "at work: {seq}, last enqueued NCCL work: {last_enqueued}, last completed NCCL work: 8.",
    "2.6": f"{_OF_RANK}[PG ID 0 PG GUID 0(default_pg) Rank {{rank}}]  failure detected by watchdog at work sequence "
    "id: {seq} PG status: last enqueued work: {last_enqueued}, last completed work: 8",
    "2.13": f"{_OF_RANK}[PG ID 0 PG GUID 0 Rank {{rank}}]  failure detected by watchdog at work sequence id: {{seq}} "
    "PG status: last enqueued work: {last_enqueued}, last started work: 9 (ALLREDUCE), last completed work: 8",
}
_DUMP = (
    f"{_OF_RANK}[PG ID 0 PG GUID 0(default_pg) Rank {{rank}}] Received a dump signal due to a collective timeout from  "
    "rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: {last_enqueued}, last completed "
    "NCCL work: {last_enqueued}.This is most likely caused by incorrect usages of collectives"
)


def report_timeout(rank: int, last_enqueued: int, seq: int = 9, version: str = "2.6") -> list[str]:
    """The lines of a rank whose collective in the default group times out, with the last one that it has enqueued."""
    return [*watchdog(rank, seq), PROGRESS[version].format(rank=rank, seq=seq, last_enqueued=last_enqueued)]


def dump_progress(rank: int, last_enqueued: int) -> list[str]:
    """The line of a rank when another one has timed out."""
    return [_DUMP.format(rank=rank, last_enqueued=last_enqueued)]


def watchdog(rank: int, seq: int = 9, op: str = "ALLREDUCE", version: str = "2.6") -> list[str]:
    """The watchdog's lines of a rank whose collective times out."""
    return [line.format(rank=rank, seq=seq, op=op) for line in (WATCHDOG_LINES[version], *ABORT_LINES)]


def explain(*logs: tuple[int | None, list[str]]) -> TimeoutExplanation:
    """The explanation for the first of these ranks, each given with its lines; a node has two ranks."""
    lines = [RankLine(f"node-{(rank or 0) // 2}", rank, text) for rank, texts in logs for text in texts]
    explanation = explain_timeout(lines[0], lines)
    assert explanation
    return explanation


@pytest.mark.parametrize("version", WATCHDOG_LINES)
def test_timeout_is_not_an_nccl_error(version: str) -> None:
    """The exception with which the watchdog ends its process is not the cause: the timeout before it is."""
    lines = [f"[default0]:{line}" for line in watchdog(0, version=version)]
    failure = diagnose_lines({"node_0": 1}, node_0=[*lines, *build_summary_entry(0, 0, -6, 10)])
    assert (failure.cause, failure.rank, failure.retry) == ("nccl-timeout", 0, True)
    assert failure.sentence.startswith("Rank 0 on node-0 waited 1,803 s for ALLREDUCE")


@pytest.mark.parametrize(
    ("version", "description"),
    [
        ("1.9", "waited 1,803 s for BROADCAST until"),
        ("1.13", "waited 1,803 s for BROADCAST number 1,024 until"),
        ("2.0", "waited 1,803 s for BROADCAST number 1,024 until"),
        ("2.6", "waited 1,803 s for BROADCAST number 1,024 of 4,096 elements until"),
    ],
)
def test_collective_is_named_as_far_as_it_is_known(version: str, description: str) -> None:
    """Operation, sequence number and size are in the sentence if the version of torch prints them."""
    assert explain((0, watchdog(0, 1024, "BROADCAST", version))).description.startswith(description)


def test_rank_that_does_not_wait_is_named() -> None:
    """Where most ranks wait and one does not, that one did not come."""
    summary, retry = explain((0, watchdog(0)), (1, watchdog(1)), (2, watchdog(2)), (3, ["loading batch 17"]))
    assert (summary.endswith(": rank 3 on node-1 did not wait for it, so look there"), retry) == (True, True)


def test_rank_in_an_earlier_collective_is_named() -> None:
    """A rank that waits in an earlier collective of the same group holds up the others."""
    summary, _ = explain((0, watchdog(0, 12)), (1, watchdog(1, 12)), (2, watchdog(2, 11)))
    assert summary.endswith(": rank 2 on node-1 still waits in an earlier collective, so look there")


def test_first_collective_that_times_out_on_all_ranks_is_a_setup_error() -> None:
    """If every rank waits in the first collective, none has ever worked: another attempt would do the same."""
    summary, retry = explain((0, watchdog(0, 1)), (1, watchdog(1, 1)), (2, watchdog(2, 1)))
    assert ("not even the first collective works" in summary, retry) == (True, False)


def test_report_of_few_ranks_names_no_missing_rank() -> None:
    """The report of one rank, or of a few among many silent ones, does not prove which rank is missing."""
    single_rank = [(0, watchdog(0, 1))]
    mostly_silent = [(0, watchdog(0)), *((rank, ["hello"]) for rank in range(1, 4))]
    for logs in (single_rank, mostly_silent):
        assert explain(*logs).description.endswith(": look for the rank that is missing or slow")


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
    summary, _ = explain((0, [*watchdog(0), line]), (3, ["hello"]))
    assert summary.endswith(": rank 1, rank 3 on node-1 did not join it, so look there")


def test_rank_of_another_group_is_not_global() -> None:
    """The rank in a sub-group's message is its place in that group, so it is not taken for a global rank."""
    text = WATCHDOG_LINES["2.1"].format(rank=1, seq=1, op="ALLREDUCE").replace("[Rank", "[PG ID 3 PG GUID 7 Rank")
    summary, retry = explain((None, [text]), (0, ["hello"]), (1, ["hello"]), (2, ["hello"]))
    assert (summary.endswith(": look for the rank that is missing or slow"), retry) == (True, True)


def test_timeout_without_a_watchdog_line_has_no_explanation() -> None:
    """The explanation is None if no rank has logged the watchdog's line."""
    line = RankLine("node-0", 0, "Heartbeat monitor timed out! Process will be terminated after dumping debug info.")
    assert explain_timeout(line, [line]) is None


@pytest.mark.parametrize("version", PROGRESS)
def test_rank_that_has_begun_less_is_named(version: str) -> None:
    """Of ranks that report how far they have come, those that have not begun the collective did not come."""
    summary, retry = explain(
        (0, report_timeout(0, 9, version=version)),
        (1, report_timeout(1, 12)),
        (2, dump_progress(2, 8)),
        (3, dump_progress(3, 9)),
    )
    assert (summary.endswith(": rank 2 on node-1 had begun none after number 8, so look there"), retry) == (True, True)


def test_rank_that_has_begun_least_comes_before_one_that_waits() -> None:
    """A rank that waits in an earlier collective is not named if another one has not even begun that."""
    summary, _ = explain(
        (0, report_timeout(0, 12, 12)),
        (1, report_timeout(1, 11, 11)),
        (2, dump_progress(2, 10)),
        (3, dump_progress(3, -1)),
    )
    assert summary.endswith(": rank 3 on node-1 had begun none of that group at all, so look there")


@pytest.mark.parametrize("waiting_rank", [1, 2])
def test_rank_that_waits_shows_what_its_equals_do(waiting_rank: int) -> None:
    """Of ranks that are equally far behind, one that waits in its collective shows that they have not left it."""
    progress_lines = {1: dump_progress(1, 8), 2: dump_progress(2, 8)}
    progress_lines[waiting_rank] = report_timeout(waiting_rank, 8, 8)
    summary, _ = explain((0, report_timeout(0, 9, 9)), *progress_lines.items(), (3, report_timeout(3, 9, 9)))
    assert summary.endswith(": rank 1 on node-0, rank 2 on node-1 still waits in an earlier collective, so look there")


def test_no_rank_is_named_if_all_have_begun_the_collective() -> None:
    """If all ranks have begun the collective, a rank without a timeout of its own is not missing."""
    summary, _ = explain(
        (0, report_timeout(0, 9)), (1, report_timeout(1, 9)), (2, report_timeout(2, 9)), (3, dump_progress(3, 9))
    )
    assert summary.endswith(": look for the rank that is missing or slow")


def test_rank_that_waits_alone_is_named() -> None:
    """If no other rank has begun the collective, the rank that waits in it is the one that differs."""
    summary, _ = explain((0, report_timeout(0, 11, 11)), (1, dump_progress(1, 10)), (2, dump_progress(2, 10)))
    assert summary.endswith(": no other rank had begun it, so look at why this one did")


def test_numbers_after_a_restart_by_torchrun_are_not_compared() -> None:
    """The numbers begin again where torchrun starts the processes again: each rank's first timeout counts."""
    logs = [(rank, [*report_timeout(rank, 900, 900), *report_timeout(rank, 12, 12)]) for rank in range(3)]
    assert explain(*logs).description.endswith(": look for the rank that is missing or slow")


def report_group_timeout(rank: int, member: int, group: str, seq: int) -> list[str]:
    """The lines of a rank of a smaller group: the watchdog names its rank within the group, the next line the group."""
    timeout_line = watchdog(rank, seq)[0].replace(f"[Rank {rank}]", f"[Rank {member}]")
    progress_line = PROGRESS["2.6"].format(rank=rank, seq=seq, last_enqueued=seq)
    return [
        timeout_line,
        progress_line.replace(f"ID 0 PG GUID 0(default_pg) Rank {rank}", f"ID 5 PG GUID {group} Rank {member}"),
    ]


def test_numbers_of_different_groups_are_not_compared() -> None:
    """Numbers of two process groups are not compared with each other, nor with those of the default group."""
    tensor = "37(TENSOR_MODEL_PARALLEL_GROUP)"
    data = "41(DATA_PARALLEL_GROUP)"
    summary, _ = explain(
        (8, report_group_timeout(8, 0, tensor, 900)),
        (9, report_group_timeout(9, 1, data, 12)),
        (0, dump_progress(0, 51)),
        (1, ["hello"]),
    )
    assert summary.startswith(
        "waited 1,803 s for ALLREDUCE number 900 of 4,096 elements in the group TENSOR_MODEL_PARALL"
    )
    assert summary.endswith(": look for the rank that is missing or slow")


def test_rank_that_is_behind_in_a_smaller_group_is_named() -> None:
    """A smaller group is known by its name, which all its ranks share."""
    summary, _ = explain(
        (8, report_group_timeout(8, 0, "37(TP)", 900)),
        (9, report_group_timeout(9, 1, "37(TP)", 899)),
        (0, dump_progress(0, 51)),
    )
    assert summary.endswith(": rank 9 on node-4 still waits in an earlier collective, so look there")


def test_numbered_groups_may_differ() -> None:
    """A number without a name, as in torch 2.3, means the same group only for ranks in their own places."""
    numbered = PROGRESS["2.3"].replace("[PG 0", "[PG 1")

    def explain_with_group_rank(member: int) -> str:
        timeout_line = [
            watchdog(rank, seq)[0].replace("[Rank 2]", f"[Rank {member}]") for rank, seq in ((0, 20), (2, 9))
        ]
        progress_lines = [numbered.format(rank=rank, seq=seq, last_enqueued=seq) for rank, seq in ((0, 20), (2, 9))]
        progress_lines[1] = progress_lines[1].replace("Rank 2]", f"Rank {member}]")
        return explain((0, [timeout_line[0], progress_lines[0]]), (2, [timeout_line[1], progress_lines[1]]))[0]

    assert explain_with_group_rank(member=2).endswith(
        ": rank 2 on node-1 still waits in an earlier collective, so look there"
    )
    assert explain_with_group_rank(member=0).endswith(": look for the rank that is missing or slow")


@pytest.mark.parametrize("op", ["SEND", "RECV", "COALESCED"])
def test_point_to_point_numbers_are_not_compared(op: str) -> None:
    """Each rank counts its own messages, so a lower number is not an earlier collective."""
    line = PROGRESS["2.6"].format(rank=0, seq=40, last_enqueued=40)
    summary, _ = explain(
        (0, [*watchdog(0, 40, op), line]), (1, watchdog(1, 12, op)), (2, dump_progress(2, 3)), (3, dump_progress(3, 40))
    )
    assert summary.endswith(": look for the rank that is missing or slow")


def test_line_that_called_the_collective_is_named() -> None:
    """If torch recorded the stack, the sentence has the program's own line: not torch's, nor a library's."""
    stack = [
        "[rank0]:[E508 07:35:59.440171617 ProcessGroupNCCL.cpp:733] Stack trace of the failed collective: ",
        "#0 all_reduce from /usr/lib/python3.12/dist-packages/torch/distributed/distributed_c10d.py:3174",
        "#1 reduce from /usr/lib/python3.12/dist-packages/accelerate/utils/operations.py:711",
        "#2 step from /workspace/job/train.py:210",
        "#3 <module> from <frozen runpy>:88",
    ]
    summary, _ = explain((0, [watchdog(0)[0], *stack]))
    assert summary.startswith("waited 1,803 s for ALLREDUCE number 9 of 4,096 elements (train.py:210 in step) until")
    library, _ = explain((0, [watchdog(0)[0], *stack[:3], "other", stack[3]]))
    assert "(operations.py:711 in reduce)" in library


def test_line_of_an_installed_program_is_named() -> None:
    """A program that lies in site-packages is the package of the outermost frame, not the library that it calls."""
    stack = [
        "[rank0]:[E508 07:35:59.440171617 ProcessGroupNCCL.cpp:733] Stack trace of the failed collective: ",
        "#0 all_reduce from /usr/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py:3174",
        "#1 reduce from /usr/lib/python3.12/site-packages/accelerate/utils/operations.py:711",
        "#2 step from /usr/lib/python3.12/site-packages/mytrainer/loop.py:88",
        "#3 main from /usr/lib/python3.12/site-packages/mytrainer/cli.py:12",
        "#4 <module> from /usr/local/bin/mytrainer:8",
    ]
    summary, _ = explain((0, [watchdog(0)[0], *stack]))
    assert "(loop.py:88 in step)" in summary


def test_rank_without_a_line_is_missing() -> None:
    """torchrun's line about the ranks of a node names those that have printed nothing about the timeout."""
    ranks = [(None, ["I1121 api.py:553]   global_ranks=[0, 1, 2, 3]"]), *((rank, watchdog(rank)) for rank in (0, 1, 3))]
    lines = [RankLine("node-0", rank, text) for rank, texts in ranks for text in texts]
    explanation = explain_timeout(lines[1], lines)
    assert explanation
    assert explanation.description.endswith(": rank 2 on node-0 did not wait for it, so look there")
