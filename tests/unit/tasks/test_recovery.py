"""Lost runs are resumed, here with a fake Prefect; tests/local uses a real one."""

import os
import time
from uuid import uuid4

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from scripts.server import find_free_port
from tests.conftest import RUN_ID
from tests.doubles.fake_prefect import FakePrefect
from torchyard.run.folder import RunFolder, runs_folder
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
