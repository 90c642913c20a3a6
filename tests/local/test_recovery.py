"""Lost runs are resumed, ended ones are not: the states of real flow runs on a real Prefect API."""

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.events.actions import ChangeFlowRunState, RunDeployment
from prefect.exceptions import ObjectAlreadyExists
from prefect.states import Scheduled

from flows.comeback import comeback
from flows.train import train
from scripts.automations import (
    _RECOVERY_DEPLOYMENT,
    _RETIRED_NAMES,
    _build_heartbeat_automation,
    _format_automation_name,
    create_automations,
)
from tests.conftest import Write
from tests.flow_processes import Carried, until
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.run.resume import LOST_MESSAGE
from torchyard.run.sweep import sweep_run
from torchyard.tasks.flow_run.states import report_end, reschedule_run
from torchyard.tasks.recovery import _report_lost_run, recover_lost_runs

pytestmark = pytest.mark.usefixtures("api")
CRASHED = State[Any](type=StateType.CRASHED, name="Crashed")
RUNNING = State[Any](type=StateType.RUNNING)


@pytest.fixture
def client(api: None) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as opened:
        yield opened


class Run(NamedTuple):
    """A flow run of a deployment in our pool, and the folder that a process on this machine has left behind."""

    client: SyncPrefectClient
    id: UUID
    folder: RunFolder

    def now(self) -> FlowRun:
        return self.client.read_flow_run(self.id)

    def left(self, *events: dict[str, Any]) -> None:
        """Write the journal of the process that Prefect knows."""
        self.folder.path.mkdir(parents=True)
        self.folder.note("start", run=str(self.id), count=self.now().run_count)
        for event in events:
            self.folder.note(**event)


@pytest.fixture
def run(client: SyncPrefectClient) -> Callable[[State[Any]], Run]:
    def make(state: State[Any]) -> Run:
        with contextlib.suppress(ObjectAlreadyExists):
            client.create_work_pool(WorkPoolCreate(name="torchyard", type="process"))
        deployment = client.create_deployment(client.create_flow(train), name="of-a-test", work_pool_name="torchyard")
        run_id = client.create_flow_run_from_deployment(deployment).id
        client.set_flow_run_state(run_id, state, force=True)
        return Run(client, run_id, RunFolder(runs_folder() / f"sample-{str(run_id)[-8:]}"))

    return make


def test_run_that_prefect_calls_running_is_brought_back(run: Callable[[State[Any]], Run]) -> None:
    """A run that Prefect calls Running after a power cut is rescheduled if its lock is free, and its lease renewed."""
    lost = run(RUNNING)
    lost.left()
    (lost.folder.path / "lease").write_text("600")
    assert recover_lost_runs().resumed == (lost.now().name,)
    assert (lost.now().state_type, lost.folder.lease_left() > 590) == (StateType.SCHEDULED, True)


def test_run_that_is_carried_is_left_alone(run: Callable[[State[Any]], Run]) -> None:
    """A run whose process is alive is neither reported as lost nor scheduled."""
    carried = run(RUNNING)
    carried.left()
    code = "import sys; from pathlib import Path; from torchyard.run.folder import RunFolder\n"
    code += "with RunFolder(Path(sys.argv[1])).owned(): print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        ["python3", "-c", code, str(carried.folder.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout
        owner.stdout.readline()
        assert recover_lost_runs().resumed == ()
        owner.communicate(b"")
    assert carried.now().state_type == StateType.RUNNING


def test_end_that_prefect_did_not_hear_is_told(run: Callable[[State[Any]], Run]) -> None:
    """The end of a run is reported to Prefect, whatever state it has there, and the run is not trained again."""
    ended = run(RUNNING)
    ended.left({"event": "end", "end": "failed", "by": "flow", "sentence": "it broke"})
    ended.client.set_flow_run_state(ended.id, CRASHED, force=True)
    assert recover_lost_runs().resumed == ()
    state = ended.now().state
    assert state
    assert (state.name, state.message) == ("Failed", "it broke")


def test_run_of_another_machine_that_crashed_is_brought_back(run: Callable[[State[Any]], Run]) -> None:
    """The automation's check reschedules the runs that no machine has resumed, and names them."""
    lost = run(CRASHED)
    said = comeback(return_state=True).message
    assert (said, lost.now().state_type) == (f"resumed 1: {lost.now().name}", StateType.SCHEDULED)


def test_run_of_another_installation_is_not_ours(run: Callable[[State[Any]], Run]) -> None:
    """A check looks only at its own work pool: the runs of another installation on the server are that one's."""
    lost = run(CRASHED)
    os.environ["TORCHYARD_POOL"] = "team-b"
    assert (recover_lost_runs().resumed, reschedule_run(str(lost.id)), lost.now().state_name) == ((), False, "Crashed")
    del os.environ["TORCHYARD_POOL"]
    assert recover_lost_runs().resumed == (lost.now().name,)


def test_broken_run_does_not_hide_the_others(run: Callable[[State[Any]], Run]) -> None:
    """An unreadable journal is a fault of that run alone; the next run is still resumed."""
    lost = run(CRASHED)
    (runs_folder() / "a-broken-one" / "journal").mkdir(parents=True)
    looked = recover_lost_runs()
    assert (looked.resumed, len(looked.faults)) == ((lost.now().name,), 1)
    assert "a-broken-one: Is a directory" in looked.faults[0]


def test_sweep_tells_a_lost_run(run: Callable[[State[Any]], Run]) -> None:
    """A run that was swept does not keep the state name Crashed: another machine would resume it."""
    lost = run(CRASHED)
    lost.left()
    sweep_run(lost.folder, "sweep", "its lease has ended", report_end)
    assert lost.now().state_name == "Swept"


def test_earlier_ending_is_not_the_end_of_this_life(run: Callable[[State[Any]], Run]) -> None:
    """A retry that is swept ends as swept, although the launch before it ended as cancelled."""
    again = run(RUNNING)
    again.left({"event": "ending", "end": "cancelled", "sentence": "cancelled"}, {"event": "end", "end": "cancelled"})
    again.folder.note("start", run=str(again.id), count=2)
    sweep_run(again.folder, "sweep", "its lease has ended", report_end)
    assert (again.folder.last("end")["end"], again.now().state_name) == ("swept", "Swept")


def test_guard_brings_its_run_back(run: Callable[[State[Any]], Run]) -> None:
    """If no worker reports that a flow died, its watchdog does, and keeps checking until another process starts."""
    lost = run(RUNNING)
    lost.left()
    guard = threading.Thread(target=copy_context().run, args=(_report_lost_run, lost.folder))
    guard.start()
    until(lambda: lost.now().state_type == StateType.SCHEDULED, 120)
    lost.client.set_flow_run_state(lost.id, CRASHED, force=True)  # a worker that reports it late
    until(lambda: lost.now().state_type == StateType.SCHEDULED, 120)
    lost.folder.note("start", run=str(lost.id), count=2)
    guard.join(60)
    assert not guard.is_alive()
    names = [state.name for state in lost.client.read_flow_run_states(lost.id)][-4:]
    assert names == ["Crashed", "Scheduled", "Crashed", "Scheduled"]


# --- ended runs


@pytest.fixture
def failed(write: Write) -> Carried:
    """A run that has failed."""
    found = Carried(write(code="raise SystemExit(3)", agent="none", rendezvous="env"))
    found.process().wait()
    assert found.state().name == "Failed"
    return found


def test_late_comeback_does_not_train_again(failed: Carried, client: SyncPrefectClient) -> None:
    """A run that an automation of the previous version schedules after its end reports that end again."""
    before = failed.state().message
    client.set_flow_run_state(failed.id, Scheduled(message=LOST_MESSAGE), force=True)
    failed.process().wait()
    assert (failed.state().name, failed.state().message, failed.folder.attempts()) == ("Failed", before, [1])


@pytest.mark.parametrize("end", ["failed", "swept"])
def test_retry_of_a_person_trains_again(failed: Carried, client: SyncPrefectClient, end: str) -> None:
    """A retry by a person starts a new attempt at once, even of a run that was swept."""
    if end == "swept":
        failed.folder.note("end", end="swept", by="sweep", sentence="its lease has ended")
    retry = State[Any](type=StateType.SCHEDULED, name="AwaitingRetry", message="Retry from the UI")
    client.set_flow_run_state(failed.id, retry, force=True)
    failed.process().wait()
    assert failed.folder.attempts() == [1, 2]


# --- the automations


@pytest.fixture
def looks(client: SyncPrefectClient) -> UUID:
    """The deployment that the automations call."""
    return client.create_deployment(client.create_flow(comeback), name=_RECOVERY_DEPLOYMENT.partition("/")[2])


def test_no_automation_starts_a_run(client: SyncPrefectClient, looks: UUID) -> None:
    """However late an automation fires, it only sets a run to Crashed or has the current state of all runs checked."""
    create_automations()
    actions = [action for each in client.read_automations() for action in each.actions]
    states = [action.state for action in actions if isinstance(action, ChangeFlowRunState)]
    called = [action.deployment_id for action in actions if isinstance(action, RunDeployment)]
    assert (states, called) == ([StateType.CRASHED], [looks, looks])


def test_automations_of_the_version_before_are_removed(client: SyncPrefectClient, looks: UUID) -> None:
    """An upgrade removes the old automations that scheduled runs by themselves."""
    names = [_format_automation_name(what) for what in _RETIRED_NAMES]
    for name in names:
        client.create_automation(_build_heartbeat_automation().model_copy(update={"name": name}))
    create_automations()
    assert [each for name in names for each in client.read_automations_by_name(name)] == []


def test_ended_run_is_never_called_crashed(run: Callable[[State[Any]], Run]) -> None:
    """Prefect refuses the state Crashed from the heartbeat automation for a run that has ended."""
    ended = run(State(type=StateType.FAILED))
    ended.client.set_flow_run_state(ended.id, CRASHED)
    assert ended.now().state_type == StateType.FAILED


# --- one run, by its id


@pytest.mark.parametrize(
    ("kind", "name", "comes_back"),
    [("CRASHED", "Crashed", True), ("CRASHED", "Stopped", False), ("FAILED", None, False), ("RUNNING", None, False)],
)
def test_crashed_run_is_scheduled(kind: str, name: str | None, comes_back: bool, run: Callable[..., Run]) -> None:
    """Only a run whose state has type and name Crashed is scheduled again."""
    looked = run(State(type=StateType(kind), name=name))
    assert reschedule_run(str(looked.id)) is comes_back
    assert (looked.now().state_type == StateType.SCHEDULED) is comes_back


def test_run_without_a_worker_is_not_scheduled(client: SyncPrefectClient) -> None:
    """A run without a deployment is not rescheduled: it would wait for ever."""
    run_id = client.create_flow_run(train, state=CRASHED).id
    assert not reschedule_run(str(run_id))
