"""What went wrong says nothing of the job: the process ends, the job lives, and the run comes back."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from prefect.exceptions import TerminationSignal

import tasks.train
from flows.sweep import sweep
from flows.train import train
from tasks.reporter import PrefectReporter
from tests.conftest import RUN_ID, Write, command_plan_of, load
from tests.test_comeback import NOW, life
from tests.test_line import labelled_with
from torchyard.loading.profile import load_profile
from torchyard.model.errors import FolderError, HostError, LeftError
from torchyard.model.run import End
from torchyard.run.folder import list_run_folders
from torchyard.run.reporter import LocalReporter
from torchyard.run.resume import find_submission_time, has_possible_job
from torchyard.run.runner import Runner
from torchyard.run.signals import SignalHold
from torchyard.steps.submit import submit

MOVED: list[dict[str, Any]] = [{"event": "start", "entry": "moved", "at": 1.0}]
WAITED = life("preflight", "submit", "wait")


def joined(*lives: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for each in lives for event in each]


@pytest.mark.parametrize(
    ("lives", "at", "runs"),
    [
        ([], None, False),
        ([life("preflight", "submit")], None, False),
        ([life("preflight", "submit"), life()], None, True),
        ([WAITED, life()], NOW, True),
        ([WAITED, life("submit", "wait", lasting=-40.0), life()], NOW, True),
        ([life("submit", "wait", "collect", "teardown"), life()], None, False),
        ([life("submit", "wait", "teardown", "submit"), life()], None, True),
        ([life("submit", "wait", end="swept", by="sweep"), life()], None, False),
        ([WAITED, life(end="gave-up"), life()], NOW, True),
        ([MOVED], None, True),
    ],
)
def test_journal_tells_whether_a_job_may_run(lives: list[list[dict[str, Any]]], at: float | None, runs: bool) -> None:
    """One that was submitted by an earlier process, and neither torn down nor ended since."""
    events = joined(*lives)
    assert (find_submission_time(events), has_possible_job(events)) == (at, runs)


@pytest.mark.parametrize("error", [HostError("h", "x", "y"), FolderError("x", "y"), ValueError("a fault of ours")])
@pytest.mark.parametrize("runs", [True, False])
def test_only_a_job_that_cannot_run_is_ended_by_a_fault(write: Write, error: Exception, runs: bool) -> None:
    """Before the submit a fault ends the run; once there is a job, the process leaves it alone."""
    line = Runner(load_profile(str(write())), RUN_ID, LocalReporter())
    line.may_run = runs

    def work() -> tuple[End, str]:
        raise error

    if runs:
        with pytest.raises(LeftError):
            line.protect(work, SignalHold())
    else:
        assert line.protect(work, SignalHold())[0] == "failed"


def test_stop_that_prefect_stumbles_over_is_a_stop(write: Write) -> None:
    """SIGTERM as a task begins becomes an error of Prefect's engine: the run ends all the same."""
    line = Runner(load_profile(str(write())), RUN_ID, PrefectReporter(RUN_ID))
    line.may_run = True

    def work() -> tuple[End, str]:
        try:
            raise TerminationSignal(signal.SIGTERM)
        except TerminationSignal:
            raise ValueError("Task run is not set")  # noqa: B904 - as Prefect does it

    with SignalHold() as signals:
        assert line.protect(work, signals) == ("stopped", "stopped by SIGTERM")


def test_attaching_asks_no_host_to_start_anything(write: Write, tmp_path: Path) -> None:
    """A host that is away when a run comes back does not fail it, and one that was wiped gets no second job."""
    options = {"hosts": ["nowhere.invalid"], "python": "python3"}
    plan = command_plan_of(load(write(agent="none", rendezvous="env", options=options)), tmp_path)
    handle = submit(plan, load(write()).deadlines, since=1.0)
    assert (handle.created, handle.submitted_at, handle.age > 1e6) == (False, 1.0, True)


@pytest.mark.slow
@pytest.mark.usefixtures("api")
def test_fault_in_the_wait_leaves_the_job_alone(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is Crashed by that name, so that it comes back; its agents run on, and its journal says why."""

    def fault(*_: object) -> Any:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(tasks.train, "STEPS", tasks.train.STEPS._replace(wait=fault))
    state = train(str(write(code="import time; time.sleep(60)")), return_state=True)
    (folder,) = list_run_folders()
    try:
        assert (state.name, folder.report(), folder.last("end")) == ("Crashed", None, {})
        assert "a fault of ours" in folder.last("left")["sentence"]
        assert labelled_with(folder.name)
    finally:
        os.utime(folder.path / "lease", (0, 0))
        sweep(runs=[folder.name], return_state=True)
