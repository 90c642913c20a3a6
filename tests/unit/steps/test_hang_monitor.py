"""What the wait for a job does about a rank that hangs."""

import logging
from pathlib import Path

import pytest

from tests.conftest import plan_of
from tests.hang_tables import plant_absent, table
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
        self.folder, self.box = folder, BlackBox(clock=lambda: 0.0)
        plan = plan_of(load_profile("digits-local"), folder)
        self.updates = list[HangUpdate]()
        self.monitor = HangMonitor(plan.model_copy(update={"on_hang": on_hang}), self.updates.append)

    def feed(self, records: dict[int, RankRecord]) -> Status | None:
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
    return table(*(record.model_copy(update={"stalled_s": seconds}) for record in plant_absent().values()))


def resumed_records() -> dict[int, RankRecord]:
    return table(*(record.model_copy(update={"kind": "resume"}) for record in plant_absent().values()))


def test_hang_is_told_once_and_written(scripted_job: ScriptedJob, caplog: pytest.LogCaptureFixture) -> None:
    """The first proof is a warning and a page in the attempt's folder; the same hang is not told again."""
    with caplog.at_level(logging.WARNING):
        assert scripted_job.feed(stalled_records(5.0)) is None
        assert scripted_job.feed(stalled_records(7.0)) is None
    assert [record.getMessage().split(" hangs")[0] for record in caplog.records] == ["rank 3 on node-1"]
    assert scripted_job.page.read_text().startswith("rank 3 on node-1 hangs")


def test_ranks_that_go_on_are_no_hang_any_more(scripted_job: ScriptedJob) -> None:
    """What the outcome says is what was true at the end."""
    scripted_job.feed(stalled_records(5.0))
    hung = scripted_job.monitor.findings(RUNNING)["hang"]
    scripted_job.feed(resumed_records())
    assert (hung is not None, scripted_job.monitor.findings(RUNNING)["hang"]) == (True, None)


def test_news_are_passed_on_when_they_change(scripted_job: ScriptedJob) -> None:
    """A hang, that it is beyond doubt, and its end are news; that it lasts is none."""
    for seconds in (5.0, 7.0, 31.0, 33.0):
        scripted_job.feed(stalled_records(seconds))
    scripted_job.feed(resumed_records())
    assert [(update.hang is not None, update.is_certain) for update in scripted_job.updates] == [
        (True, False),
        (True, True),
        (False, False),
    ]


def test_job_that_succeeded_did_not_hang(scripted_job: ScriptedJob) -> None:
    """A hang that the job has overcome is not in its outcome."""
    scripted_job.feed(stalled_records(5.0))
    assert scripted_job.monitor.findings(Status(state="succeeded", reason="all exited with 0"))["hang"] is None


@pytest.mark.parametrize(("scripted_job", "retry"), [("fail", False), ("restart", True)], indirect=["scripted_job"])
def test_job_is_ended_once_the_hang_is_beyond_doubt(scripted_job: ScriptedJob, retry: bool) -> None:
    """A pause of a few seconds is told and ends nothing; half a minute does, and only `restart` is worth a retry."""
    assert scripted_job.feed(stalled_records(12.0)) is None
    status = scripted_job.feed(stalled_records(31.0))
    assert status
    assert status.failure
    assert (status.state, status.failure.cause, status.failure.rank) == ("failed", "rank-hangs", 3)
    assert status.failure.retry is retry


@pytest.mark.parametrize("scripted_job", ["off"], indirect=True)
def test_job_without_the_black_box_is_not_judged(scripted_job: ScriptedJob) -> None:
    """With `on_hang: off` nothing is told, whatever the log says."""
    scripted_job.feed(stalled_records(60.0))
    assert not scripted_job.page.exists()


def test_node_is_avoided_only_for_what_another_would_cure(tmp_path: Path) -> None:
    """The next attempt leaves a node whose process was stopped; a data loader hangs on every node."""
    nodes = {}
    for name, fields in (("stopped", {"state": "T"}), ("gil", {"blind_s": 31.0, "state": "R", "is_active": True})):
        scripted_job = ScriptedJob(tmp_path / name, "fail")
        records = table(*(record.model_copy(update={"stalled_s": 31.0}) for record in plant_absent(**fields).values()))
        status = scripted_job.feed(records)
        assert status
        assert status.failure
        nodes[name] = status.failure.node
    assert nodes == {"stopped": "node-1", "gil": None}
