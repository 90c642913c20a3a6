"""The flow that an automation calls for runs that nothing else has resumed."""

from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.recover import recover
from scripts.server import find_free_port
from tests.conftest import RUN_ID
from tests.doubles.fake_prefect import FakePrefect
from torchyard.run.folder import RunFolder, runs_folder


def test_flow_names_the_runs_that_it_has_resumed(fake_prefect: FakePrefect) -> None:
    """The flow is Completed with the names of the runs that it has scheduled."""
    folder = RunFolder(runs_folder() / "sample-a1b2c3d4")
    folder.path.mkdir(parents=True)
    folder.record_event("start", run=RUN_ID, flow_run=RUN_ID, count=1)
    fake_prefect.run_fields = {"deployment_id": RUN_ID, "run_count": 1}
    state = recover.fn()
    assert (state.is_completed(), state.message) == (True, "resumed 1: a-run")


def test_flow_fails_where_runs_were_not_checked() -> None:
    """A recovery that could not query Prefect is Failed: a Completed one would mean that no run is lost."""
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{find_free_port()}/api"}):
        state = recover.fn()
    assert state.is_failed()
    assert str(state.message).startswith("resumed 0; not checked: cannot query Prefect for lost runs: ")
