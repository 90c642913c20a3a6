"""The failure that collect reports: from the logs, from the cluster, or a full disk; and the network."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inputs.nccl_lines import list_rdma_lines, list_socket_lines
from torchyard.common.private_files import make_private_folder
from torchyard.model.hang import Hang, HangClass
from torchyard.model.hardware import Expect
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import MetricsPattern, MetricsSetting
from torchyard.model.run import BadLoss, Failure, LogFile, Outcome, State, Status
from torchyard.steps import log_scan
from torchyard.steps.collect import blame_disk, collect, find_failure
from torchyard.steps.log_reader import read_blocks
from torchyard.steps.log_scan import LogScan

ENDED = Outcome(status=Status(state="succeeded", reason=""), exit_codes={})
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
def test_full_disk_replaces_a_failure_of_peers(cause: str, lost: str, is_disk_blamed: bool) -> None:
    """If a full disk has lost lines, only a failure that a process reports about itself stays the cause."""
    logs = (LogFile(node="node-0", path="", lines=1, lost=lost),)
    failure = blame_disk(Failure(cause=cause, sentence="", retry=True), logs)
    assert (failure.cause == "disk-full", failure.retry) == (is_disk_blamed, not is_disk_blamed)


def test_explained_cause_goes_before_the_deadline(plan: ManifestPlan) -> None:
    """If the cluster reports why a deadline expired, that failure is the cause and decides about a retry."""
    host_port_failure = Failure(
        cause="host-port", sentence="not started within 4 s (deadlines.start): port", retry=True
    )
    status = Status(state="failed", reason=host_port_failure.sentence, failure=host_port_failure)
    outcome = Outcome(status=status, cause="start-deadline", exit_codes={})
    failure = find_failure(plan, outcome, LogScan(plan))
    assert (failure.cause, failure.sentence, failure.retry) == (
        host_port_failure.cause,
        host_port_failure.sentence,
        True,
    )


def test_tail_of_an_expired_deadline_ends_before_the_stop(plan: ManifestPlan) -> None:
    """The last lines show what the program did until the stop, and not the traceback of torchrun that it caused."""
    stop_lines = [
        "W0101 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, shutting down workers",
        "Traceback (most recent call last):",
        *('  File "torch/distributed/run.py", line 1, in main' for _ in range(60)),
        "SignalException: Process 7 got signal: 15",
    ]
    write_logs(plan, [[*(f"step {step}" for step in range(60)), *stop_lines] for _ in plan.logs])
    outcome = Outcome(status=Status(state="failed", reason="late"), cause="silence", exit_codes={})
    tail = find_failure(plan, outcome, LogScan(plan)).tail
    assert (len(tail), tail[0], tail[-1]) == (50, "[default0]:step 10", "[default0]:step 59")
    write_logs(plan, [stop_lines for _ in plan.logs])
    assert len(find_failure(plan, outcome, LogScan(plan)).tail) == 50


def test_hang_keeps_the_stack_of_its_rank(plan: ManifestPlan) -> None:
    """The last lines of the log, which the stop of the job has printed, do not replace the stack."""
    write_logs(plan, [["Received Signals.SIGTERM death signal"] for _ in plan.logs])
    stack = ("rank 1:", '  File "train.py", line 8, in stuck')
    hang = Failure(cause="rank-hangs", sentence="rank 1 hangs", node=next(iter(plan.nodes)), tail=stack)
    outcome = Outcome(status=Status(state="failed", reason="rank 1 hangs", failure=hang), exit_codes={})
    assert find_failure(plan, outcome, LogScan(plan)).tail == stack


@pytest.mark.parametrize(
    ("kind", "rank", "names_hang"),
    [("missing-rank", 0, True), ("missing-rank", 1, False), ("deadlock-between-groups", 1, True)],
)
def test_failure_of_a_rank_that_waited_names_the_hang(
    plan: ManifestPlan, kind: HangClass, rank: int, names_hang: bool
) -> None:
    """The failure of a rank that timed out has the verdict; calls that exclude each other would do so again."""
    error = "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 12000ms for recv operation to complete"
    write_logs(plan, [[f"[rank{rank}]: {error}", ""], [""]])
    sentence = "rank 1 on worker-1 hangs in load (train.py:88): rank 0 waits for it"
    hang = Hang(kind=kind, ranks=(1,), nodes=("worker-1",), waiting=(0,), sentence=sentence)
    outcome = Outcome(status=Status(state="failed", reason=""), exit_codes=dict.fromkeys(plan.logs, 1), hang=hang)
    failure = collect(plan, outcome).failure
    assert failure
    assert (failure.cause, failure.rank) == ("peer-timeout", rank)
    assert failure.sentence.endswith(f"; {sentence}.") is names_hang
    assert failure.retry is (kind == "missing-rank")


@pytest.mark.parametrize(
    ("row", "is_warned"),
    [('{"epoch": 1, "world_size": 1}', True), ('{"world_size": 1}', True), ('{"epoch": 1, "world_size": 2}', False)],
)
def test_program_with_one_rank_on_two_nodes_is_a_warning(
    plan: ManifestPlan, row: str, is_warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """If a program reports one rank on two nodes, the report and the log warn that each node may have run alone."""
    for number, path in enumerate(plan.logs.values()):
        make_private_folder(Path(path).parent)
        prefix = f"2026-11-21T08:00:47.123Z worker-{number} | "
        Path(path).write_text(f"{prefix}INFO group_rank={number}\n{prefix}[default0]:{row}\n")
    collected = collect(plan.model_copy(update={"metrics": "json-lines"}), ENDED)
    assert collected.metrics.rows or collected.metrics.summary
    assert (bool(collected.warnings), "each may have run alone" in caplog.text) == (is_warned, is_warned)


@pytest.mark.parametrize(
    ("metrics", "state", "is_warned"),
    [
        ("json-lines", "succeeded", True),
        (MetricsPattern(pattern="loss=(?P<loss>.+)"), "succeeded", True),
        ("json-lines", "failed", False),
        ("none", "succeeded", False),
    ],
)
def test_metrics_that_nothing_was_read_from_are_a_warning(
    plan: ManifestPlan, metrics: MetricsSetting, state: State, is_warned: bool
) -> None:
    """If no line of rank 0 of a job that succeeded has the format of the metrics, the report warns with its name."""
    plan = plan.model_copy(update={"metrics": metrics})
    write_logs(plan, [["epoch 1, 0.5", ""], ['{"epoch": 1}', ""]])
    outcome = ENDED.model_copy(update={"status": Status(state=state, reason="")})
    warnings = collect(plan, outcome).warnings
    assert [warning.startswith(f"metrics: {metrics} has read nothing") for warning in warnings] == [True] * is_warned


def test_loss_that_is_nan_is_a_warning(plan: ManifestPlan) -> None:
    """A loss that the wait has found to be nan is a warning of the report, also if the job succeeded."""
    bad_loss = BadLoss(name="loss", row="epoch 3: loss nan", count=7)
    warnings = collect(plan, ENDED.model_copy(update={"bad_loss": bad_loss})).warnings
    assert warnings == ("loss is nan or infinite in the row `epoch 3: loss nan`, the first of 7",)


def write_logs(plan: ManifestPlan, lines_by_node: list[list[str]]) -> None:
    """Write the log of each node; its last line has no newline."""
    for (node, path), lines in zip(plan.logs.items(), lines_by_node, strict=True):
        make_private_folder(Path(path).parent)
        Path(path).write_text("\n".join(f"2026-11-21T08:00:47.123Z {node} | [default0]:{line}" for line in lines))


def test_network_is_evaluated_by_the_logs_of_all_nodes(plan: ManifestPlan) -> None:
    """One node with TCP makes the network unexpected, and the sentence contains that node's name."""
    plan = plan.model_copy(update={"expect": Expect(transport="roce", gdr=True)})
    write_logs(plan, [list_rdma_lines("gpu-1"), list_socket_lines("gpu-2", 8)])
    fabric = collect(plan, ENDED).fabric
    assert fabric
    assert (fabric.verdict, fabric.sentence.partition(":")[0]) == ("not-rdma", "TCP over eth0 on worker-1, not roce")


def test_network_without_expectation_and_lines_has_no_verdict(plan: ManifestPlan) -> None:
    """Without a line of NCCL the verdict is None, or `unknown` if the plan expects a network."""
    write_logs(plan, [["epoch 1"], ["epoch 1"]])
    assert collect(plan, ENDED).fabric is None
    plan = plan.model_copy(update={"expect": Expect(transport="roce")})
    fabric = collect(plan, ENDED).fabric
    assert fabric
    assert fabric.verdict == "unknown"


FAILED = Outcome(status=Status(state="failed", reason="it failed"), exit_codes={"worker-0": 1, "worker-1": 1})


def test_each_log_is_read_forward_once(plan: ManifestPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collection of a failed job reads each log once; after that it reads only the end of a log."""
    plan = plan.model_copy(update={"ranks": "placed", "metrics": "json-lines"})
    write_logs(plan, [["start", '{"epoch": 1}', "RuntimeError: boom", ""], ["epoch 1", ""]])
    read_paths: list[str] = []

    def read_and_record(path: str) -> Iterator[bytes]:
        read_paths.append(path)
        return read_blocks(path)

    monkeypatch.setattr(log_scan, "read_blocks", read_and_record)
    collected = collect(plan, FAILED)
    assert read_paths == list(plan.logs.values())
    assert [log.lines for log in collected.logs] == [3, 1]
    assert (collected.metrics.rows, collected.failure and collected.failure.cause) == (({"epoch": 1},), "program-error")


def test_failure_before_many_lines_is_the_cause(plan: ManifestPlan) -> None:
    """A failure thousands of lines before the end of a log is the cause, if all ends show only a lost peer."""
    traceback = ["Traceback (most recent call last):", '  File "a.py", line 1', "KeyError: 'x'"]
    peer_lost = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
    steps = [f"step {number}" for number in range(12_000)]
    write_logs(plan, [[*traceback, *steps, ""], [*steps, peer_lost, ""]])
    failure = collect(plan, FAILED).failure
    assert failure
    assert (failure.cause, failure.node) == ("program-error", "worker-0")
