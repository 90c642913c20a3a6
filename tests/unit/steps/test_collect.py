"""The cause that collect reports: what the logs prove, what the cluster knows, or a full disk."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.nccl_lines import socket_node, verbs_node
from torchyard.common.private_files import make_private_folder
from torchyard.model.hardware import Expect
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import Failure, LogFile, Outcome, Status
from torchyard.steps import log_reader
from torchyard.steps.collect import _blame_disk, _find_failure, collect

DISK_FULL_LOSS = "9 lines: No space left on device"


@pytest.mark.parametrize(
    ("cause", "lost", "is_disk_blamed"),
    [
        ("peer-lost", DISK_FULL_LOSS, True),
        ("program-error", DISK_FULL_LOSS, True),
        ("unknown", "", False),
        ("oom-gpu", DISK_FULL_LOSS, False),
    ],
)
def test_lost_lines_outweigh_what_peers_say(cause: str, lost: str, is_disk_blamed: bool) -> None:
    """If a full disk has lost lines, only an error that a process clearly reports about itself is believed."""
    logs = (LogFile(node="node-0", path="", lines=1, lost=lost),)
    failure = _blame_disk(Failure(cause=cause, sentence="", retry=True), logs)
    assert (failure.cause == "disk-full", failure.retry) == (is_disk_blamed, not is_disk_blamed)


def test_explained_cause_goes_before_the_deadline(plan: ManifestPlan) -> None:
    """If the cluster knows why a deadline passed, that is the cause and decides about a retry."""
    host_port_failure = Failure(
        cause="host-port", sentence="not started within 4 s (deadlines.start): port", retry=True
    )
    status = Status(state="failed", reason=host_port_failure.sentence, failure=host_port_failure)
    failure = _find_failure(plan, Outcome(status=status, cause="start-deadline", exit_codes={}))
    assert (failure.cause, failure.sentence, failure.retry) == (
        host_port_failure.cause,
        host_port_failure.sentence,
        True,
    )


@pytest.mark.parametrize(
    ("row", "is_warned"),
    [('{"epoch": 1, "world_size": 1}', True), ('{"world_size": 1}', True), ('{"epoch": 1, "world_size": 2}', False)],
)
def test_run_that_fell_apart_into_single_ranks_says_so(
    plan: ManifestPlan, row: str, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A program that reports one rank on two nodes did not find its peers: the report and the log warn of it."""
    for number, path in enumerate(plan.logs.values()):
        make_private_folder(Path(path).parent)
        head = f"2026-11-21T08:00:47.123Z worker-{number} | "
        Path(path).write_text(f"{head}INFO group_rank={number}\n{head}[default0]:{row}\n")
    collected = collect(plan, Outcome(status=Status(state="succeeded", reason=""), exit_codes={}), "json-lines")
    assert collected.metrics.rows or collected.metrics.summary
    assert ("warning" in collected.metrics.summary, "each may have run alone" in caplog.text) == (is_warned, is_warned)


def write_logs(plan: ManifestPlan, lines_by_node: list[list[str]]) -> None:
    """The log of each node, with lines that have no end of their own at the end."""
    for (node, path), lines in zip(plan.logs.items(), lines_by_node, strict=True):
        make_private_folder(Path(path).parent)
        Path(path).write_text("\n".join(f"2026-11-21T08:00:47.123Z {node} | [default0]:{line}" for line in lines))


ENDED = Outcome(status=Status(state="succeeded", reason=""), exit_codes={})


def test_network_is_judged_by_the_logs_of_all_nodes(plan: ManifestPlan) -> None:
    """One node's TCP breaks the promise of the job's hardware, and its name is that of the job's node."""
    plan = plan.model_copy(update={"expect": Expect(transport="roce", gdr=True)})
    write_logs(plan, [verbs_node("gpu-1"), socket_node("gpu-2", 8)])
    fabric = collect(plan, ENDED, "none").fabric
    assert fabric
    assert (fabric.verdict, fabric.sentence.partition(":")[0]) == ("not-rdma", "TCP over eth0 on worker-1, not roce")


def test_nothing_is_said_of_a_network_that_nobody_speaks_of(plan: ManifestPlan) -> None:
    """Without a promise and without a line of NCCL there is no verdict; a promise alone is unknown."""
    write_logs(plan, [["epoch 1"], ["epoch 1"]])
    assert collect(plan, ENDED, "none").fabric is None
    promised = plan.model_copy(update={"expect": Expect(transport="roce")})
    fabric = collect(promised, ENDED, "none").fabric
    assert fabric
    assert fabric.verdict == "unknown"


@given(st.binary(max_size=300), st.integers(1, 40))
def test_blocks_are_the_whole_file(tmp_path_factory: pytest.TempPathFactory, content: bytes, size: int) -> None:
    """However a log is cut into blocks, each ends with a line, and together they are the log."""
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_reader, "_MAX_READ_BYTES", size)
        blocks = list(log_reader.read_blocks(str(path)))
    assert b"".join(blocks) == content
    assert all(block.endswith(b"\n") for block in blocks[:-1])
