"""LogScan: one forward pass over a job's logs feeds the line counts, rank 0, the network, records and failures."""

import json
from pathlib import Path

import pytest

from tests.builders.rank_records import build_record
from tests.inputs.nccl_lines import list_rdma_lines
from torchyard.common.private_files import make_private_folder
from torchyard.model.hang import RECORD_PREFIX
from torchyard.model.plan import ManifestPlan
from torchyard.steps import log_reader
from torchyard.steps.log_scan import LogScan
from torchyard.steps.log_tail import LogTails

PREFIX = "2026-11-21T08:00:47.123Z worker-0 | "


@pytest.fixture(params=[300, 1 << 20])
def logs(plan: ManifestPlan, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ManifestPlan:
    """The log of worker-0 has rank 0, a record, NCCL's lines and an error; that of worker-1 is missing."""
    monkeypatch.setattr(log_reader, "MAX_READ_BYTES", request.param)
    record = build_record(0).model_dump_json()
    lines = [
        "INFO group_rank=0",
        *(f"[default0]:{line}" for line in list_rdma_lines("gpu-1")),
        "[default1]:other",
        '[default0]:{"epoch": 1}',
        f"{RECORD_PREFIX}{record}",
        "[default0]:Error 17",
        "[default0]:cut",
    ]
    path = Path(plan.nodes["worker-0"])
    make_private_folder(path.parent)
    path.write_text("\n".join(PREFIX + line for line in lines))
    return plan


def test_one_pass_feeds_every_reader(logs: ManifestPlan) -> None:
    """Complete lines are counted, and rank 0, the network, the records and the failure words are read, in one pass."""
    scan = LogScan(logs, with_failures=True, with_records=True)
    texts = list(scan.read_rank_zero())
    assert texts[-2:] == ['{"epoch": 1}', "Error 17"]
    assert scan.line_counts == {"worker-0": len(list_rdma_lines("gpu-1")) + 5, "worker-1": 0}
    assert [node.node for node in scan.nccl.build_reading().nodes] == ["worker-0"]
    assert list(scan.records.latest) == [0]
    lines = LogTails(logs.logs, scan.failure_lines)["worker-0"]
    assert lines[-1].text == "[default0]:Error 17"
    assert len(scan.failure_lines["worker-0"].offsets) == 1


def test_marker_selects_lines(logs: ManifestPlan) -> None:
    """With a marker, only the lines of rank 0 that contain it are returned."""
    assert [json.loads(text) for text in LogScan(logs).read_rank_zero(b"{")] == [{"epoch": 1}]


def test_pass_without_rank_zero_reads_the_same(logs: ManifestPlan) -> None:
    """A job whose output is not parsed has the same counts, and no record or failure is read if it is not needed."""
    scan = LogScan(logs)
    scan.read()
    parsed = LogScan(logs)
    list(parsed.read_rank_zero())
    assert scan.line_counts == parsed.line_counts
    assert scan.nccl.build_reading() == parsed.nccl.build_reading()
    assert (scan.records.latest, scan.failure_lines) == ({}, {})


def test_last_end_of_each_rank_is_read(plan: ManifestPlan) -> None:
    """Of ranks that were started again the later end counts, and a program's own line is not an end."""
    path = Path(plan.nodes["worker-0"])
    make_private_folder(path.parent)
    ends = [
        build_record(0, kind="end", timestamp=timestamp, collectives=count)
        for timestamp, count in ((2000.0, 7), (1000.0, 3))
    ]
    texts = [f"{RECORD_PREFIX}{end.model_dump_json()}" for end in ends]
    path.write_text("".join(f"{PREFIX}{text}\n" for text in [*texts, '{"kind":"end"}']))
    scan = LogScan(plan, with_ends=True)
    scan.read()
    assert {rank: end.collectives for rank, end in scan.ends.items()} == {0: 7}
