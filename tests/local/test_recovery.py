"""Lost runs are resumed and ended ones are not: the states of real flow runs in a real Prefect API."""

import contextlib
import itertools
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from datetime import UTC, datetime
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

from flows.recover import recover
from flows.train import train
from scripts.automations import (
    RECOVERY_DEPLOYMENT,
    create_automations,
)
from tests.conftest import Write
from tests.processes.flow_processes import FlowRunProcesses
from tests.processes.local_runs import WITHOUT_AGENT
from tests.support.waiting import wait_until
from torchyard.assembly import sweep_run
from torchyard.model.errors import DetachedError
from torchyard.model.run import RunEnd
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.run.resume import LOST_MESSAGE
from torchyard.tasks.flow_run.states import report_end, reschedule_run
from torchyard.tasks.recovery import recover_lost_runs, report_lost_run

pytestmark = pytest.mark.usefixtures("api")
CRASHED = State[Any](type=StateType.CRASHED, name="Crashed")
RUNNING = State[Any](type=StateType.RUNNING)


@pytest.fixture
def client(api: None) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as client:
        yield client


class Run(NamedTuple):
    """A flow run of a deployment in the default pool, and the folder of its lost process on this machine."""

    client: SyncPrefectClient
    id: UUID
    folder: RunFolder

    def now(self) -> FlowRun:
        return self.client.read_flow_run(self.id)

    def left(self, *events: dict[str, Any]) -> None:
        """Write the journal of the launch that Prefect has counted, with these events after its start."""
        self.folder.path.mkdir(parents=True)
        self.folder.record_event("start", run=str(self.id), flow_run=str(self.id), count=self.now().run_count)
        for event in events:
            self.folder.record_event(**event)


@pytest.fixture
def create_run(client: SyncPrefectClient) -> Callable[[State[Any]], Run]:
    def make(state: State[Any]) -> Run:
        with contextlib.suppress(ObjectAlreadyExists):
            client.create_work_pool(WorkPoolCreate(name="torchyard", type="process"))
        deployment = client.create_deployment(client.create_flow(train), name="of-a-test", work_pool_name="torchyard")
        run_id = client.create_flow_run_from_deployment(deployment).id
        client.set_flow_run_state(run_id, state, force=True)
        return Run(client, run_id, RunFolder(runs_folder() / f"sample-{str(run_id)[-8:]}"))

    return make


def test_lost_run_that_prefect_calls_running_is_rescheduled(create_run: Callable[[State[Any]], Run]) -> None:
    """A run that is Running in Prefect, but whose lock is free, is rescheduled, and its lease is renewed."""
    lost_run = create_run(RUNNING)
    lost_run.left()
    (lost_run.folder.path / "lease").write_text("600")
    assert recover_lost_runs().resumed == (lost_run.now().name,)
    assert (lost_run.now().state_type, lost_run.folder.remaining_lease_s() > 590) == (StateType.SCHEDULED, True)


def test_owned_run_is_not_rescheduled(create_run: Callable[[State[Any]], Run]) -> None:
    """A run whose process is alive is neither reported as lost nor rescheduled."""
    owned_run = create_run(RUNNING)
    owned_run.left()
    code = "import sys; from pathlib import Path; from torchyard.run.folder import RunFolder\n"
    code += "with RunFolder(Path(sys.argv[1])).owned(): print(1, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        ["python3", "-c", code, str(owned_run.folder.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout
        owner.stdout.readline()
        assert recover_lost_runs().resumed == ()
        owner.communicate(b"")
    assert owned_run.now().state_type == StateType.RUNNING


def test_end_that_prefect_has_not_received_is_reported(create_run: Callable[[State[Any]], Run]) -> None:
    """The end of a run that is Crashed in Prefect is reported to Prefect, and the run is not resumed."""
    ended_run = create_run(RUNNING)
    ended_run.left({"event": "end", "end": "failed", "by": "flow", "sentence": "it broke"})
    ended_run.client.set_flow_run_state(ended_run.id, CRASHED, force=True)
    assert recover_lost_runs().resumed == ()
    state = ended_run.now().state
    assert state
    assert (state.name, state.message) == ("Failed", "it broke")


def test_crashed_run_of_another_machine_is_rescheduled(create_run: Callable[[State[Any]], Run]) -> None:
    """The automation's check reschedules a crashed run without a folder on this machine, and names it."""
    lost_run = create_run(CRASHED)
    message = recover(return_state=True).message
    assert (message, lost_run.now().state_type) == (f"resumed 1: {lost_run.now().name}", StateType.SCHEDULED)


def test_run_of_another_installation_is_not_rescheduled(create_run: Callable[[State[Any]], Run]) -> None:
    """A check reschedules only runs of its own work pool, because another installation resumes its runs itself."""
    lost_run = create_run(CRASHED)
    os.environ["TORCHYARD_POOL"] = "team-b"
    assert (recover_lost_runs().resumed, reschedule_run(str(lost_run.id)), lost_run.now().state_name) == (
        (),
        False,
        "Crashed",
    )
    del os.environ["TORCHYARD_POOL"]
    assert recover_lost_runs().resumed == (lost_run.now().name,)


def test_broken_run_does_not_hide_the_others(create_run: Callable[[State[Any]], Run]) -> None:
    """An unreadable journal is reported as a fault, and the other runs are resumed nevertheless."""
    lost_run = create_run(CRASHED)
    (runs_folder() / "a-broken-one" / "journal").mkdir(parents=True)
    check = recover_lost_runs()
    assert (check.resumed, len(check.faults)) == ((lost_run.now().name,), 1)
    assert "a-broken-one: Is a directory" in check.faults[0]


def test_sweep_reports_a_lost_run(create_run: Callable[[State[Any]], Run]) -> None:
    """A swept run gets the state name Swept, because another machine would resume a run that is Crashed."""
    lost_run = create_run(CRASHED)
    lost_run.left()
    sweep_run(lost_run.folder, "sweep", RunEnd("swept", "its lease has ended"), report_end)
    assert lost_run.now().state_name == "Swept"


def test_end_of_an_earlier_launch_is_not_the_end_of_a_retry(create_run: Callable[[State[Any]], Run]) -> None:
    """A retry that is swept ends as swept, although an earlier launch ended as cancelled."""
    retried = create_run(RUNNING)
    retried.left({"event": "ending", "end": "cancelled", "sentence": "cancelled"}, {"event": "end", "end": "cancelled"})
    retried.folder.record_event("start", run=str(retried.id), flow_run=str(retried.id), count=2)
    sweep_run(retried.folder, "sweep", RunEnd("swept", "its lease has ended"), report_end)
    assert (retried.folder.read_record().find_last("end")["end"], retried.now().state_name) == ("swept", "Swept")


def test_watchdog_reschedules_its_run(create_run: Callable[[State[Any]], Run]) -> None:
    """If no worker reports the death of a flow process, its watchdog does, and checks until another process starts."""
    lost_run = create_run(RUNNING)
    lost_run.left()
    watchdog = threading.Thread(target=copy_context().run, args=(report_lost_run, lost_run.folder))
    watchdog.start()
    wait_until(lambda: lost_run.now().state_type == StateType.SCHEDULED, 120)
    lost_run.client.set_flow_run_state(lost_run.id, CRASHED, force=True)  # a worker that reports it late
    wait_until(lambda: lost_run.now().state_type == StateType.SCHEDULED, 120)
    lost_run.folder.record_event("start", run=str(lost_run.id), flow_run=str(lost_run.id), count=2)
    watchdog.join(60)
    assert not watchdog.is_alive()
    state_names = [state.name for state in lost_run.client.read_flow_run_states(lost_run.id)][-4:]
    assert state_names == ["Crashed", "Scheduled", "Crashed", "Scheduled"]


# --- runs whose processes leave


@pytest.fixture
def leaving_run(create_run: Callable[[State[Any]], Run]) -> Run:
    """A run whose second process in a row has just left because of its own problem; its lease is 300 s."""
    run = create_run(RUNNING)
    departure = State[Any](type=StateType.CRASHED, name="Crashed", message=str(DetachedError("HTTP 403")))
    for state in (departure, Scheduled(message=LOST_MESSAGE), RUNNING, departure):
        run.client.set_flow_run_state(run.id, state, force=True)
    run.left({"event": "left", "sentence": "HTTP 403"})
    run.folder.renew(300)
    return run


def is_due(run: Run) -> bool:
    """Whether a worker may start the run now."""
    responses = run.client.get_scheduled_flow_runs_for_work_pool("torchyard", scheduled_before=datetime.now(UTC))
    return run.id in [response.flow_run.id for response in responses]


def test_run_whose_processes_leave_waits_before_it_resumes(leaving_run: Run) -> None:
    """No worker gets it before its pause is over, no check schedules it earlier, and its lease has started again."""
    assert recover_lost_runs().resumed == (leaving_run.now().name,)
    state = leaving_run.now().state
    assert state
    assert state.state_details.scheduled_time
    assert 5 < state.state_details.scheduled_time.timestamp() - state.timestamp.timestamp() <= 10
    assert (recover_lost_runs().resumed, reschedule_run(str(leaving_run.id))) == ((), False)
    assert (leaving_run.now().state, is_due(leaving_run)) == (state, False)
    assert leaving_run.folder.remaining_lease_s() > 290
    wait_until(lambda: is_due(leaving_run), 30)


def test_user_starts_a_waiting_run_at_once(leaving_run: Run) -> None:
    """A worker gets a run that a user schedules during its pause, and the checks leave it so."""
    recover_lost_runs()
    leaving_run.client.set_flow_run_state(leaving_run.id, Scheduled(message="Run now"), force=True)
    assert (is_due(leaving_run), recover_lost_runs().resumed) == (True, ())
    assert leaving_run.now().state_type == StateType.SCHEDULED


# --- ended runs


@pytest.fixture
def failed_run(write: Write) -> FlowRunProcesses:
    """A flow run that has failed."""
    failed_run = FlowRunProcesses(write(code="raise SystemExit(3)", **WITHOUT_AGENT))
    failed_run.start_process().wait()
    assert failed_run.read_state().name == "Failed"
    return failed_run


def test_late_reschedule_does_not_train_again(failed_run: FlowRunProcesses, client: SyncPrefectClient) -> None:
    """A run that a retired automation schedules after its end reports that end again and does not train."""
    message = failed_run.read_state().message
    client.set_flow_run_state(failed_run.id, Scheduled(message=LOST_MESSAGE), force=True)
    failed_run.start_process().wait()
    assert (failed_run.read_state().name, failed_run.read_state().message, failed_run.folder.attempts()) == (
        "Failed",
        message,
        [1],
    )


@pytest.mark.parametrize("end", ["failed", "swept"])
def test_retry_by_a_user_trains_again(failed_run: FlowRunProcesses, client: SyncPrefectClient, end: str) -> None:
    """A retry by a user starts a new attempt, even of a run that was swept."""
    if end == "swept":
        failed_run.folder.record_event("end", end="swept", by="sweep", sentence="its lease has ended")
    retry = State[Any](type=StateType.SCHEDULED, name="AwaitingRetry", message="Retry from the UI")
    client.set_flow_run_state(failed_run.id, retry, force=True)
    failed_run.start_process().wait()
    assert failed_run.folder.attempts() == [1, 2]


# --- the automations


@pytest.fixture
def check_deployment(client: SyncPrefectClient) -> UUID:
    """The id of the deployment that the automations call."""
    return client.create_deployment(client.create_flow(recover), name=RECOVERY_DEPLOYMENT.partition("/")[2])


def test_no_automation_starts_a_run(client: SyncPrefectClient, check_deployment: UUID) -> None:
    """An automation only sets a run to Crashed or starts the check of all runs, so that a late one does no harm."""
    create_automations()
    actions = list(itertools.chain(*(automation.actions for automation in client.read_automations())))
    states = [action.state for action in actions if isinstance(action, ChangeFlowRunState)]
    called_ids = [action.deployment_id for action in actions if isinstance(action, RunDeployment)]
    assert (states, called_ids) == ([StateType.CRASHED], [check_deployment, check_deployment])


def test_ended_run_cannot_become_crashed(create_run: Callable[[State[Any]], Run]) -> None:
    """Prefect rejects the state Crashed of the heartbeat automation for a run that has ended."""
    ended_run = create_run(State(type=StateType.FAILED))
    ended_run.client.set_flow_run_state(ended_run.id, CRASHED)
    assert ended_run.now().state_type == StateType.FAILED


# --- one run, by its id


@pytest.mark.parametrize(
    ("state_type", "name", "is_rescheduled"),
    [("CRASHED", "Crashed", True), ("CRASHED", "Stopped", False), ("FAILED", None, False), ("RUNNING", None, False)],
)
def test_crashed_run_is_scheduled(
    state_type: str, name: str | None, is_rescheduled: bool, create_run: Callable[..., Run]
) -> None:
    """A run is rescheduled only if its state has the type and the name Crashed."""
    crashed_run = create_run(State(type=StateType(state_type), name=name))
    assert reschedule_run(str(crashed_run.id)) is is_rescheduled
    assert (crashed_run.now().state_type == StateType.SCHEDULED) is is_rescheduled


def test_run_without_a_worker_is_not_scheduled(client: SyncPrefectClient) -> None:
    """A run without a deployment is not rescheduled, because no worker would ever take it."""
    run_id = client.create_flow_run(train, state=CRASHED).id
    assert not reschedule_run(str(run_id))
