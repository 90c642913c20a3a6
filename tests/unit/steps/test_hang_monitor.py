"""HangMonitor: what it reports of a hanging rank, and when it ends the job."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.builders.rank_records import (
    LOADER,
    build_missing_rank_records,
    build_record,
    build_waiting_record,
    index_by_rank,
)
from tests.conftest import plan_of
from torchyard.diagnosis.hang.records import BlackBox
from torchyard.loading.profile import load_profile
from torchyard.model.hang import RECORD_PREFIX, HangUpdate, OnHang, RankRecord
from torchyard.model.run import Status
from torchyard.steps.hang_files import HANG_FOLDER, HANG_PAGE, read_hang
from torchyard.steps.hang_monitor import HangMonitor

RUNNING = Status(state="running", reason="all nodes have joined")


class ScriptedJob:
    """A job of four ranks whose records the test writes."""

    def __init__(self, folder: Path, on_hang: OnHang) -> None:
        plan = plan_of(load_profile("digits-local"), folder)
        self.folder = folder
        self.now = 0.0
        self.box = BlackBox(clock=lambda: self.now)
        self.updates: list[HangUpdate] = []
        self.monitor = HangMonitor(
            plan.model_copy(update={"on_hang": on_hang}), self.updates.append, clock=lambda: self.now
        )

    def check(self, records: dict[int, RankRecord], at_s: float = 0.0) -> Status | None:
        """Add the records to the job's log, at this second; return the status that the monitor derives."""
        self.now = at_s
        for made in records.values():
            record = made.model_copy(update={"timestamp": at_s})
            self.box.process_text(record.node, f"{RECORD_PREFIX}{record.model_dump_json(exclude={'node'})}\n")
        return self.monitor.check(self.box)

    @property
    def page(self) -> Path:
        return self.folder / "attempt-1" / HANG_FOLDER / HANG_PAGE


@pytest.fixture(params=["report"])
def scripted_job(tmp_path: Path, request: pytest.FixtureRequest) -> ScriptedJob:
    return ScriptedJob(tmp_path, request.param)


def stalled_records(seconds: float, **fields: object) -> dict[int, RankRecord]:
    """All ranks have stalled for some seconds, and were idle for as long; rank 3, which hangs, has these facts."""
    return build_missing_rank_records(stalled_s=seconds, **fields) | {
        rank: build_waiting_record(rank, stalled_s=seconds) for rank in range(3)
    }


def resumed_records() -> dict[int, RankRecord]:
    return index_by_rank(
        *(record.model_copy(update={"kind": "resume"}) for record in build_missing_rank_records().values())
    )


def test_hang_is_reported_once_and_written(scripted_job: ScriptedJob, caplog: pytest.LogCaptureFixture) -> None:
    """A hang is one warning and a page in the attempt's folder, however many records prove it."""
    with caplog.at_level(logging.WARNING):
        assert scripted_job.check(stalled_records(5.0)) is None
        assert scripted_job.check(stalled_records(7.0)) is None
    assert [record.getMessage().split(" hangs")[0] for record in caplog.records] == ["rank 3 on node-1"]
    assert scripted_job.page.read_text().startswith("rank 3 on node-1 hangs")


def test_ranks_that_continue_do_not_hang(scripted_job: ScriptedJob) -> None:
    """The outcome contains only a hang that lasts until the end."""
    scripted_job.check(stalled_records(5.0))
    assert scripted_job.monitor.get_outcome_fields(RUNNING)["hang"] is not None
    scripted_job.check(resumed_records())
    assert scripted_job.monitor.get_outcome_fields(RUNNING)["hang"] is None


def test_update_is_published_when_it_changes(scripted_job: ScriptedJob) -> None:
    """A hang, its certainty and its end are updates, and its duration is not."""
    for seconds in (5.0, 7.0, 36.0, 38.0):
        scripted_job.check(stalled_records(seconds), at_s=seconds)
    scripted_job.check(resumed_records())
    assert [(update.hang is not None, update.is_certain) for update in scripted_job.updates] == [
        (True, False),
        (True, True),
        (False, False),
    ]


@pytest.mark.parametrize("scripted_job", ["restart"], indirect=True)
def test_work_before_an_idle_moment_ends_no_job(scripted_job: ScriptedJob) -> None:
    """After an evaluation of 45 s the rank uploads for some seconds, idle: the time before it proves nothing."""
    assert scripted_job.check(stalled_records(45.0, idle_s=0.0), at_s=45.0) is None
    assert scripted_job.check(stalled_records(49.0, idle_s=4.0), at_s=49.0) is None
    assert scripted_job.monitor.hang is not None
    assert scripted_job.check(resumed_records(), at_s=50.0) is None
    assert scripted_job.monitor.hang is None


@pytest.mark.parametrize("scripted_job", ["restart"], indirect=True)
@pytest.mark.parametrize(
    ("fields", "ends_after_s"),
    [
        pytest.param({}, 35, id="idle"),
        pytest.param({"idle_s": 0.0}, None, id="computes"),
        pytest.param({"wchan": "nfs_wait_bit_killable"}, 120, id="storage"),
        pytest.param({"wchan": "sk_wait_data"}, 300, id="another machine"),
        pytest.param({"is_polling": True}, 300, id="polls"),
        pytest.param({"stack": LOADER}, 120, id="data loader"),
        pytest.param({"kernel_waits": ("D rpc_wait_bit_killable", "S do_wait")}, 120, id="storage in a child"),
        pytest.param({"kernel_waits": ("S do_wait", "S fifo_open")}, 120, id="FIFO in a child"),
        pytest.param({"kernel_waits": ("S do_wait", "S sk_wait_data")}, 300, id="another machine in a child"),
        pytest.param({"kernel_waits": ("S do_wait", "S futex_do_wait")}, 35, id="a lock in a child"),
    ],
)
def test_job_ends_only_by_a_proof(scripted_job: ScriptedJob, fields: dict[str, Any], ends_after_s: int | None) -> None:
    """A rank that works ends no job; one that waits for a file server or another machine ends it after minutes."""
    ended_at_s = None
    for seconds in range(5, 700, 5):
        status = scripted_job.check(stalled_records(float(seconds), **fields), at_s=float(seconds))
        if status and ended_at_s is None:
            ended_at_s = seconds
    assert scripted_job.monitor.hang is not None
    assert ended_at_s == ends_after_s


@pytest.mark.parametrize("scripted_job", ["restart"], indirect=True)
@pytest.mark.parametrize(
    ("fields", "ends_after_s"),
    [
        pytest.param({}, 45, id="idle"),
        pytest.param({"wchan": "nfs_wait_bit_killable"}, 120, id="storage"),
        pytest.param({"wchan": "sk_wait_data"}, 300, id="another machine"),
        pytest.param({"is_polling": True}, 300, id="polls"),
    ],
)
def test_job_whose_ranks_all_wait_elsewhere_ends_as_late_as_one_rank(
    scripted_job: ScriptedJob, fields: dict[str, Any], ends_after_s: int
) -> None:
    """All ranks that wait for a file server, or for another machine, may do so for as long as one rank."""
    for seconds in range(5, 700, 5):
        records = index_by_rank(*(build_record(rank, stalled_s=float(seconds), **fields) for rank in range(4)))
        if scripted_job.check(records, at_s=float(seconds)):
            break
    assert scripted_job.monitor.hang is not None
    assert (scripted_job.monitor.hang.kind, seconds) == ("all-waiting-outside", ends_after_s)


@pytest.mark.parametrize("scripted_job", ["restart"], indirect=True)
def test_proof_starts_again_after_each_activity(scripted_job: ScriptedJob) -> None:
    """A rank that is idle for 20 s again and again, and active in between, ends no job."""
    for seconds in range(5, 600, 5):
        records = stalled_records(float(seconds), idle_s=float(seconds % 25), longest_idle_s=20.0)
        assert scripted_job.check(records, at_s=float(seconds)) is None


@pytest.mark.parametrize("scripted_job", ["restart"], indirect=True)
def test_old_records_end_no_job(scripted_job: ScriptedJob) -> None:
    """While no new record arrives, the verdict is not renewed, however long it has stood."""
    scripted_job.check(stalled_records(20.0), at_s=20.0)
    for at_s in (30.0, 44.0, 60.0, 100.0):
        assert scripted_job.check({}, at_s=at_s) is None


@pytest.mark.parametrize("end", [{"kind": "end", "state": ""}, {"kind": "resume", "raised_after": 7.0}])
def test_verdict_stays_while_the_job_dies(scripted_job: ScriptedJob, end: dict[str, Any]) -> None:
    """When the ranks that waited end, by a signal, their watchdog or an exception, the verdict stays and is on disk."""
    scripted_job.check(stalled_records(5.0), at_s=5.0)
    dying = {rank: build_waiting_record(rank, **end) for rank in range(2)}
    scripted_job.check(dying, at_s=8.0)
    scripted_job.check({3: build_record(3, kind="end", state="")}, at_s=30.0)
    hang = scripted_job.monitor.hang
    assert hang
    assert hang.ranks == (3,)
    assert read_hang(scripted_job.folder / "attempt-1") == hang


def test_verdict_on_disk_is_removed_when_the_ranks_continue(scripted_job: ScriptedJob) -> None:
    """The verdict file exists only while the verdict stands."""
    scripted_job.check(stalled_records(5.0), at_s=5.0)
    scripted_job.check(resumed_records(), at_s=6.0)
    assert read_hang(scripted_job.folder / "attempt-1") is None


def test_verdict_of_an_earlier_launcher_is_removed_when_no_rank_hangs(scripted_job: ScriptedJob) -> None:
    """A launcher that attaches finds the verdict of the lost one, which stands until all ranks are known to work."""
    scripted_job.check(stalled_records(5.0), at_s=5.0)
    folder = scripted_job.folder / "attempt-1"
    successor = ScriptedJob(scripted_job.folder, "report")
    some_records = dict(list(resumed_records().items())[:2])
    successor.check(some_records, at_s=60.0)
    assert read_hang(folder)
    successor.check(resumed_records(), at_s=61.0)
    assert read_hang(folder) is None


def test_job_that_succeeded_did_not_hang(scripted_job: ScriptedJob) -> None:
    """A hang of a job that succeeded is not in its outcome."""
    scripted_job.check(stalled_records(5.0))
    assert (
        scripted_job.monitor.get_outcome_fields(Status(state="succeeded", reason="all exited with 0"))["hang"] is None
    )


@pytest.mark.parametrize("scripted_job", ["fail", "restart"], indirect=True)
def test_certain_hang_ends_the_job(scripted_job: ScriptedJob) -> None:
    """A hang ends the job after half a minute, not after seconds; its failure quotes the stack of the rank."""
    assert scripted_job.check(stalled_records(5.0), at_s=5.0) is None
    assert scripted_job.check(stalled_records(34.0), at_s=34.0) is None
    status = scripted_job.check(stalled_records(36.0), at_s=36.0)
    assert status
    assert status.failure
    assert (status.state, status.failure.cause, status.failure.rank) == ("failed", "rank-hangs", 3)
    assert status.failure.retry
    assert status.failure.tail[0] == "rank 3:"
    assert status.failure.tail[1].startswith('  File "')


@pytest.mark.parametrize("scripted_job", ["off"], indirect=True)
def test_hangs_are_not_detected_with_on_hang_off(scripted_job: ScriptedJob) -> None:
    """With `on_hang: off` no hang is reported, whatever records the log contains."""
    scripted_job.check(stalled_records(60.0))
    assert not scripted_job.page.exists()


def test_node_is_avoided_only_if_another_would_not_hang(tmp_path: Path) -> None:
    """The next attempt avoids the node of a stopped process, but not that of a program that hangs on every node."""
    nodes: dict[str, str | None] = {}
    for name, fields in (("stopped", {"state": "T"}), ("gil", {"frozen_s": 71.0, "state": "R"})):
        scripted_job = ScriptedJob(tmp_path / name, "fail")
        scripted_job.check(stalled_records(40.0, **fields), at_s=40.0)
        status = scripted_job.check(stalled_records(71.0, **fields), at_s=71.0)
        assert status
        assert status.failure
        nodes[name] = status.failure.node
    assert nodes == {"stopped": "node-1", "gil": None}
