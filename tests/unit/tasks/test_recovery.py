"""Lost runs are resumed, here with a fake Prefect; tests/local uses a real one."""

import errno
import os
import time
from datetime import datetime
from pathlib import Path
from unittest.mock import Mock
from uuid import uuid4

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from scripts.server import find_free_port
from tests.conftest import RUN_ID, Write, command_plan_of, load
from tests.doubles.fake_prefect import STATE, FakePrefect
from torchyard.common.pool import read_pool
from torchyard.model.errors import DetachedError
from torchyard.model.profile import Deadlines
from torchyard.run.folder import AttemptPlan, RunFolder, runs_folder
from torchyard.tasks.flow_run.states import reschedule_run
from torchyard.tasks.recovery import complete_cancel, main, recover_lost_runs


@pytest.fixture
def lost(fake_prefect: FakePrefect) -> RunFolder:
    """The folder of a run whose state is Running in Prefect, and whose process has died."""
    fake_prefect.run_fields = {"deployment_id": RUN_ID, "run_count": 1}
    folder = RunFolder(runs_folder() / "sample-a1b2c3d4")
    folder.path.mkdir(parents=True)
    folder.record_event("start", run=RUN_ID, flow_run=RUN_ID, count=1)
    return folder


def test_lost_run_is_scheduled(fake_prefect: FakePrefect, lost: RunFolder) -> None:
    """A run whose process died here is first set to Crashed, then scheduled, and its lease starts again."""
    (lost.path / "lease").write_text("600")
    os.utime(lost.path / "lease", (time.time() - 300,) * 2)
    assert str(recover_lost_runs()) == "resumed 1: a-run"
    assert fake_prefect.requested_states == ["Crashed", "Scheduled"]
    assert lost.remaining_lease_s() > 590


def set_departures(prefect: FakePrefect, count: int) -> float:
    """Set the states of a run whose processes have left as often; return when the last one did, by Prefect's clock."""
    message = str(DetachedError("HTTP 403"))
    running = STATE | {"type": "RUNNING", "name": "Running"}
    crashed = STATE | {"type": "CRASHED", "name": "Crashed", "message": message}
    prefect.responses["/flow_run_states/"] = [running, crashed] * count
    prefect.state = "CRASHED"
    return datetime.fromisoformat(str(STATE["timestamp"])).timestamp()


def get_scheduled_times(prefect: FakePrefect) -> list[float]:
    """When the run was scheduled for, in seconds since the epoch."""
    details = [body["state"]["state_details"] for path, body in prefect.posted if path.endswith("/set_state")]
    return [datetime.fromisoformat(detail["scheduled_time"]).timestamp() for detail in details]


@pytest.mark.parametrize(("count", "pause_s"), [(1, 0), (2, 10), (3, 20), (9, 30)])
def test_run_whose_processes_leave_is_scheduled_after_a_pause(
    fake_prefect: FakePrefect, lost: RunFolder, count: int, pause_s: float
) -> None:
    """The pause counts from the last departure by Prefect's clock, whatever this machine's clock is."""
    lost.renew(300)
    left_at = set_departures(fake_prefect, count)
    assert recover_lost_runs().resumed == ("a-run",)
    assert get_scheduled_times(fake_prefect) == [left_at + pause_s]


def test_run_that_waits_for_its_pause_is_left_alone(fake_prefect: FakePrefect, lost: RunFolder) -> None:
    """Neither this machine's checks nor a cluster's sweep schedule it again, or count it as lost."""
    lost.record_event("left", sentence="HTTP 403")
    lost.renew(300)
    set_departures(fake_prefect, 3)
    fake_prefect.state = "SCHEDULED"
    fake_prefect.run_fields |= {"work_pool_name": read_pool(), "state_name": "Scheduled"}
    assert (recover_lost_runs().resumed, reschedule_run(RUN_ID), fake_prefect.requested_states) == ((), False, [])


def test_another_machine_resumes_after_the_same_pause(fake_prefect: FakePrefect) -> None:
    """A cluster's sweep on a machine that has no folder of the run reads from Prefect that its processes leave."""
    left_at = set_departures(fake_prefect, 2)
    fake_prefect.run_fields = {"deployment_id": RUN_ID, "work_pool_name": read_pool(), "state_name": "Crashed"}
    assert reschedule_run(RUN_ID)
    assert get_scheduled_times(fake_prefect) == [left_at + 10]


def test_run_that_was_resumed_meanwhile_is_not_scheduled_again(fake_prefect: FakePrefect, lost: RunFolder) -> None:
    """Two checks may find the same crash: the second one changes nothing once the run is scheduled."""
    set_departures(fake_prefect, 1)
    fake_prefect.responses["/flow_run_states/"].append(STATE | {"type": "SCHEDULED", "name": "Scheduled"})
    assert (recover_lost_runs().resumed, fake_prefect.requested_states) == ((), [])


def test_departure_that_prefect_has_not_received_is_its_message(fake_prefect: FakePrefect, lost: RunFolder) -> None:
    """A process that could not report why it left has journalled it: the state Crashed gets that as its message."""
    lost.record_event("left", sentence=str(DetachedError("HTTP 403")))
    recover_lost_runs()
    crashed_state, _ = [body["state"] for path, body in fake_prefect.posted if path.endswith("/set_state")]
    assert (crashed_state["name"], crashed_state["message"]) == ("Crashed", str(DetachedError("HTTP 403")))


def test_run_without_a_deployment_is_not_scheduled(fake_prefect: FakePrefect, lost: RunFolder) -> None:
    """No worker would take such a run: it is only shown as Crashed."""
    fake_prefect.run_fields["deployment_id"] = None
    assert (recover_lost_runs().resumed, fake_prefect.requested_states) == ((), ["Crashed"])


def test_run_that_a_process_owns_is_not_touched(fake_prefect: FakePrefect, lost: RunFolder) -> None:
    """The lock decides, not the state in Prefect: a living process keeps its run."""
    with lost.owned():
        assert (recover_lost_runs().resumed, fake_prefect.requested_states) == ((), [])


@pytest.mark.parametrize(("lease", "is_resumed"), [(600, True), (-1, False)])
def test_run_whose_lease_has_ended_is_for_the_sweep(lost: RunFolder, lease: float, is_resumed: bool) -> None:
    """A sweep resumes only runs whose lease has not ended: the others it removes."""
    lost.renew(lease)
    assert recover_lost_runs(only_leased=True).resumed == (("a-run",) if is_resumed else ())


@pytest.fixture
def lost_training(fake_prefect: FakePrefect) -> RunFolder:
    """The folder of a training inside another flow, whose process has died; that flow run is Running in Prefect."""
    fake_prefect.run_fields = {"deployment_id": RUN_ID, "run_count": 1}
    folder = RunFolder(runs_folder() / "sample-0badcafe")
    folder.path.mkdir(parents=True)
    folder.record_event("start", run=str(uuid4()), flow_run=RUN_ID, count=1)
    return folder


@pytest.mark.parametrize(("flow_name", "is_resumed"), [("benchmark", True), ("my-flow", False)])
def test_benchmark_with_a_lost_training_is_scheduled(
    fake_prefect: FakePrefect, lost_training: RunFolder, flow_name: str, is_resumed: bool
) -> None:
    """A benchmark whose process died in a training is resumed; a user's own flow is not, as its steps may not be."""
    fake_prefect.responses[f"/flows/{RUN_ID}"] = {"id": RUN_ID, "name": flow_name}
    assert recover_lost_runs().resumed == (("a-run",) if is_resumed else ())
    assert fake_prefect.requested_states == (["Crashed", "Scheduled"] if is_resumed else [])


@pytest.mark.parametrize(("flow_name", "states"), [("benchmark", ["Cancelled"]), ("my-flow", [])])
def test_training_of_a_cancelled_flow_is_ended(
    fake_prefect: FakePrefect, lost_training: RunFolder, flow_name: str, states: list[str]
) -> None:
    """A training whose process died while its flow was being cancelled is torn down, and not started again."""
    fake_prefect.state = "CANCELLING"
    fake_prefect.responses[f"/flows/{RUN_ID}"] = {"id": RUN_ID, "name": flow_name}
    assert recover_lost_runs().resumed == ()
    assert (lost_training.read_record().find_last("end")["end"], fake_prefect.requested_states) == ("cancelled", states)


@pytest.mark.parametrize(("state", "requested"), [("CANCELLING", ["Cancelled"]), ("CRASHED", [])])
def test_cancel_before_the_start_is_completed(fake_prefect: FakePrefect, state: str, requested: list[str]) -> None:
    """A flow run that is still Cancelling when its own process ends becomes Cancelled; another state stays."""
    fake_prefect.state = state
    complete_cancel(RUN_ID)
    assert fake_prefect.requested_states == requested


def test_cancel_before_the_restart_ends_the_job(fake_prefect: FakePrefect, lost: RunFolder) -> None:
    """A lost run that is cancelled before its flow starts again has a job: that is ended, and then it is Cancelled."""
    fake_prefect.state = "CANCELLING"
    complete_cancel(RUN_ID)
    assert lost.read_record().find_last("end")["end"] == "cancelled"
    assert fake_prefect.requested_states == ["Cancelled"]


@pytest.mark.parametrize("lease", [600, -1], ids=["during its lease", "after its lease"])
def test_sweep_ends_a_cancelled_run_as_cancelled(fake_prefect: FakePrefect, lost: RunFolder, lease: float) -> None:
    """Its newest process ended before it journalled anything: the sweep ends the job of the one before."""
    lost.renew(lease)
    fake_prefect.state = "CANCELLING"
    fake_prefect.run_fields["run_count"] = 2
    recover_lost_runs(only_leased=True)
    assert lost.read_record().find_last("end")["end"] == "cancelled"
    assert fake_prefect.requested_states == ["Cancelled"]


def test_cancel_does_not_end_the_run_of_another_machine(
    fake_prefect: FakePrefect, lost: RunFolder, write: Write, tmp_path: Path
) -> None:
    """A machine that was lost and is back leaves the teardown to the machine that owns the run, and records no end."""
    plan = command_plan_of(load(write(options={"hosts": ["gpu1"]})), lost.path)
    lost.save_attempt_plan(1, AttemptPlan(plan=plan, deadlines=Deadlines()))
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\necho \'{"other_owner": "there:/runs/a"}\'\n')
    ssh.chmod(0o755)
    os.environ["TORCHYARD_SSH"] = str(ssh)
    fake_prefect.state = "CANCELLING"
    fake_prefect.run_fields["run_count"] = 2
    recover_lost_runs()
    assert [event["event"] for event in lost.events()] == ["start"]
    assert fake_prefect.requested_states == []


def test_cancel_is_not_completed_while_a_folder_cannot_be_read(
    fake_prefect: FakePrefect, lost: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """The folder may be that of the cancelled run, whose job would run on: the run stays Cancelling for now."""
    fake_prefect.state = "CANCELLING"
    (lost.path / "journal").rename(lost.path / "readable-journal")
    (lost.path / "journal").mkdir()
    complete_cancel(RUN_ID)
    assert (fake_prefect.requested_states, "Is a directory" in caplog.text) == ([], True)


def test_runs_folder_that_cannot_be_listed_is_a_fault(
    fake_prefect: FakePrefect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of lost runs reports that it could not read this machine's runs, and raises nothing."""
    monkeypatch.setattr(os, "listdir", Mock(side_effect=OSError(errno.ESTALE, "Stale file handle")))
    (fault,) = recover_lost_runs().faults
    assert "it cannot be listed (Stale file handle)" in fault


def test_cancelled_run_with_an_end_has_it_reported(fake_prefect: FakePrefect, lost: RunFolder) -> None:
    """A run that has ended, and could not report that, gets its own end and sentence."""
    lost.record_event("end", end="cancelled", by="flow", sentence="cancelled through Prefect")
    fake_prefect.state = "CANCELLING"
    complete_cancel(RUN_ID)
    (state,) = [body["state"] for path, body in fake_prefect.posted if path.endswith("/set_state")]
    assert (state["name"], state["message"]) == ("Cancelled", "cancelled through Prefect")


def test_cancel_that_cannot_be_completed_is_logged(fake_prefect: FakePrefect, caplog: pytest.LogCaptureFixture) -> None:
    """A server that does not answer ends the process with the code that it has."""
    fake_prefect.status = 500
    complete_cancel(RUN_ID)
    assert "cannot complete the cancel of flow run" in caplog.text


def test_ended_training_does_not_end_its_flow(fake_prefect: FakePrefect, lost_training: RunFolder) -> None:
    """The end of a training is not reported as the end of the flow run that contains it, nor is that resumed."""
    lost_training.record_event("end", end="succeeded", by="flow", sentence="it went well")
    fake_prefect.responses[f"/flows/{RUN_ID}"] = {"id": RUN_ID, "name": "benchmark"}
    assert (recover_lost_runs().resumed, fake_prefect.requested_states) == ((), [])


def test_prefect_that_does_not_respond_is_a_fault(lost: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a response no run counts as resumed, and `make up` gets an exit code of 1 and the reason."""
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{find_free_port()}/api"}):
        assert main(["back"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "resumed 0"
    assert lines[1].startswith("cannot query Prefect for lost runs: ")
