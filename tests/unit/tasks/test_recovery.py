"""Lost runs are resumed, here with a fake Prefect; tests/local uses a real one."""

import os
import time

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from scripts.server import find_free_port
from tests.conftest import RUN_ID
from tests.fake_prefect import FakePrefect
from torchyard.run.folder import RunFolder, benchmark_folder, runs_folder
from torchyard.tasks.recovery import main, recover_lost_runs


@pytest.fixture
def lost(fake_prefect: FakePrefect) -> RunFolder:
    """The folder of a run whose state is Running in Prefect, and whose process has died."""
    fake_prefect.run_fields = {"deployment_id": RUN_ID, "run_count": 1}
    folder = RunFolder(runs_folder() / "sample-a1b2c3d4")
    folder.path.mkdir(parents=True)
    folder.record_event("start", run=RUN_ID, count=1)
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


@pytest.mark.parametrize("only_leased", [True, False])
def test_lost_benchmark_is_scheduled(fake_prefect: FakePrefect, only_leased: bool) -> None:
    """A lost benchmark is resumed, also by the sweep: it has no lease, because no job of its own keeps running."""
    fake_prefect.run_fields = {"deployment_id": RUN_ID, "run_count": 1}
    folder = benchmark_folder("sample-a1b2c3d4")
    with folder.owned():
        folder.record_event("start", run=RUN_ID, count=1)
        assert recover_lost_runs(only_leased=only_leased).resumed == ()
    assert recover_lost_runs(only_leased=only_leased).resumed == ("a-run",)
    assert fake_prefect.requested_states == ["Crashed", "Scheduled"]


def test_cancelled_benchmark_ends(fake_prefect: FakePrefect) -> None:
    """A benchmark whose process died while it was being cancelled is ended as cancelled, and not started again."""
    fake_prefect.run_fields = {"deployment_id": RUN_ID, "run_count": 1}
    fake_prefect.state = "CANCELLING"
    folder = benchmark_folder("sample-a1b2c3d4")
    folder.path.mkdir(parents=True)
    folder.record_event("start", run=RUN_ID, count=1)
    assert recover_lost_runs().resumed == ()
    assert (folder.last("end")["end"], fake_prefect.requested_states) == ("cancelled", ["Cancelled"])


def test_prefect_that_does_not_respond_is_a_fault(lost: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a response no run counts as resumed, and `make up` gets an exit code of 1 and the reason."""
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{find_free_port()}/api"}):
        assert main(["back"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "resumed 0"
    assert lines[1].startswith("cannot query Prefect for lost runs: ")
