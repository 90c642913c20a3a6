"""HangMonitor: what it reports of a hanging rank, and when it ends the job."""

import logging
from pathlib import Path

import pytest

from tests.builders.rank_records import build_missing_rank_records, index_by_rank
from tests.conftest import plan_of
from torchyard.diagnosis.hang.records import BlackBox
from torchyard.loading.profile import load_profile
from torchyard.model.hang import RECORD_PREFIX, HangUpdate, OnHang, RankRecord
from torchyard.model.run import Status
from torchyard.steps.hang_files import HANG_FOLDER, HANG_PAGE
from torchyard.steps.hang_monitor import HangMonitor

RUNNING = Status(state="running", reason="all nodes have joined")


class ScriptedJob:
    """A job of four ranks whose records the test writes."""

    def __init__(self, folder: Path, on_hang: OnHang) -> None:
        plan = plan_of(load_profile("digits-local"), folder)
        self.folder = folder
        self.box = BlackBox(clock=lambda: 0.0)
        self.updates: list[HangUpdate] = []
        self.monitor = HangMonitor(plan.model_copy(update={"on_hang": on_hang}), self.updates.append)

    def check(self, records: dict[int, RankRecord]) -> Status | None:
        """Add the records to the job's log; return the status that the monitor derives."""
        for record in records.values():
            self.box.process_text(record.node, f"{RECORD_PREFIX}{record.model_dump_json(exclude={'node'})}\n")
        return self.monitor.check(self.box)

    @property
    def page(self) -> Path:
        return self.folder / "attempt-1" / HANG_FOLDER / HANG_PAGE


@pytest.fixture(params=["report"])
def scripted_job(tmp_path: Path, request: pytest.FixtureRequest) -> ScriptedJob:
    return ScriptedJob(tmp_path, request.param)


def stalled_records(seconds: float) -> dict[int, RankRecord]:
    return index_by_rank(
        *(record.model_copy(update={"stalled_s": seconds}) for record in build_missing_rank_records().values())
    )


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
    assert scripted_job.monitor.get_findings(RUNNING)["hang"] is not None
    scripted_job.check(resumed_records())
    assert scripted_job.monitor.get_findings(RUNNING)["hang"] is None


def test_update_is_published_when_it_changes(scripted_job: ScriptedJob) -> None:
    """A hang, its certainty and its end are updates, and its duration is not."""
    for seconds in (5.0, 7.0, 31.0, 33.0):
        scripted_job.check(stalled_records(seconds))
    scripted_job.check(resumed_records())
    assert [(update.hang is not None, update.is_certain) for update in scripted_job.updates] == [
        (True, False),
        (True, True),
        (False, False),
    ]


def test_job_that_succeeded_did_not_hang(scripted_job: ScriptedJob) -> None:
    """A hang of a job that succeeded is not in its outcome."""
    scripted_job.check(stalled_records(5.0))
    assert scripted_job.monitor.get_findings(Status(state="succeeded", reason="all exited with 0"))["hang"] is None


@pytest.mark.parametrize(("scripted_job", "retry"), [("fail", False), ("restart", True)], indirect=["scripted_job"])
def test_certain_hang_ends_the_job(scripted_job: ScriptedJob, retry: bool) -> None:
    """A hang ends the job after half a minute, not after seconds, and only `restart` makes it worth a retry."""
    assert scripted_job.check(stalled_records(12.0)) is None
    status = scripted_job.check(stalled_records(31.0))
    assert status
    assert status.failure
    assert (status.state, status.failure.cause, status.failure.rank) == ("failed", "rank-hangs", 3)
    assert status.failure.retry is retry


@pytest.mark.parametrize("scripted_job", ["off"], indirect=True)
def test_hangs_are_not_detected_with_on_hang_off(scripted_job: ScriptedJob) -> None:
    """With `on_hang: off` no hang is reported, whatever records the log contains."""
    scripted_job.check(stalled_records(60.0))
    assert not scripted_job.page.exists()


def test_node_is_avoided_only_if_another_would_not_hang(tmp_path: Path) -> None:
    """The next attempt avoids the node of a stopped process, but not that of a program that hangs on every node."""
    nodes: dict[str, str | None] = {}
    for name, fields in (("stopped", {"state": "T"}), ("gil", {"frozen_s": 31.0, "state": "R", "is_active": True})):
        scripted_job = ScriptedJob(tmp_path / name, "fail")
        records = index_by_rank(
            *(record.model_copy(update={"stalled_s": 31.0}) for record in build_missing_rank_records(**fields).values())
        )
        status = scripted_job.check(records)
        assert status
        assert status.failure
        nodes[name] = status.failure.node
    assert nodes == {"stopped": "node-1", "gil": None}
