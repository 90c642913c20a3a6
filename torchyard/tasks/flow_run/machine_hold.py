"""Which machine holds a run on plain machines: Prefect alone can report that to another machine of the work pool.

The processes and the folder of such a run are on one machine. A worker on another machine sees neither and would train
a second time. Its process therefore gives the run back to the pool, until the machine that holds it takes it or the
lease there has ended.
"""

import logging
import os
from datetime import UTC, datetime
from typing import NamedTuple, NoReturn
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.runtime import flow_run
from prefect.states import Scheduled
from tenacity import retry, retry_if_not_exception_type, stop_after_delay, wait_fixed

from torchyard.common.identity import identify_machine
from torchyard.common.log import get_log
from torchyard.host.identity import read_boot_id
from torchyard.launchers import registry
from torchyard.model.errors import DetachedError, HolderGoneError
from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Profile
from torchyard.model.run import Run
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.run.resume import is_launcher_dead, is_started_anew

from .states import list_ancestors, open_bounded_client, read_reported_states, read_server_time, retry_while_busy

# Labels of the flow run, in the order of MachineHold's fields.
_LABELS = ("torchyard.machine", "torchyard.boot", "torchyard.states", "torchyard.sought")
_HOLDER_QUERY_TIMEOUT_S = 60.0  # for reading from Prefect which machine holds the run
_MAX_GIVE_BACK_DELAY_S = 30.0  # until a run that was given back is scheduled again
_GIVE_BACKS_PER_LEASE = 10


class MachineHold(NamedTuple):
    """The machine that holds a run, as the flow run's labels record it.

    machine: identity of the machine; empty if no machine is recorded.
    boot_id: of its kernel.
    state_count: states that the flow run had in Prefect when the machine took the run.
    claimed_at: when another machine first took the run instead, in seconds since the epoch by Prefect's clock, which
        all machines share; 0 if none has.
    """

    machine: str = ""
    boot_id: str = ""
    state_count: int = 0
    claimed_at: float = 0.0

    def is_elsewhere(self, own_hold: "MachineHold", *, has_journal: bool) -> bool:
        """Whether the run's processes may be on a machine whose processes this one cannot see.

        A machine with another name that has the run's journal and the same boot id is a container that was renamed.
        """
        is_same_kernel = has_journal and self.boot_id == own_hold.boot_id
        return self.machine not in ("", own_hold.machine) and not is_same_kernel


def hold_run(profile: Profile, run_id: str, folder: RunFolder, run_count: int) -> None:
    """Record that this machine holds the run; if another machine does, give the run back and exit this process.

    `run_count`: how many processes have started this run, this one included.

    Raises HolderGoneError once the lease on the other machine has ended, unless the launcher there is known to be dead.
    Raises DetachedError if Prefect does not report within `_HOLDER_QUERY_TIMEOUT_S` which machine holds the run. A run
    that has ended, and that a user requests again, may be taken by any machine.
    """
    if not flow_run.id or not _starts_local_processes(profile, run_id, folder):
        return
    own_hold = MachineHold(identify_machine(runs_folder()), read_boot_id())
    if run_count > 1:
        try:
            own_hold = _take_over_or_give_back(profile, folder, own_hold)
        except HolderGoneError:
            raise
        except Exception as error:
            raise DetachedError(f"cannot read from Prefect which machine holds this run: {error}") from error
    try:
        with open_bounded_client() as client:
            _write_hold(client, _read_worker_run(client), own_hold)
    except Exception as error:
        get_log().warning("cannot record in Prefect that this machine holds the run: %s", error)


def _starts_local_processes(profile: Profile, run_id: str, folder: RunFolder) -> bool:
    """Whether the run starts processes on the launcher's machine. Hosts behind ssh store the run's owner themselves."""
    if not registry.load_launcher(profile.launcher).PROGRAM_IS_A_FILE:
        return False
    plan = registry.make_plan(profile, Run(id=run_id, attempt=1, folder=str(folder.path)))
    return isinstance(plan, CommandPlan) and any(process.site is None for process in plan.all_processes)


@retry(
    stop=stop_after_delay(_HOLDER_QUERY_TIMEOUT_S),
    wait=wait_fixed(1),
    retry=retry_if_not_exception_type(HolderGoneError),
    reraise=True,
)
def _take_over_or_give_back(profile: Profile, folder: RunFolder, own_hold: MachineHold) -> MachineHold:
    """Return this machine's new hold if the run may continue here; otherwise give the run back and exit.

    Raises HolderGoneError as `hold_run` does, and Prefect's own error if the server does not respond.
    """
    with open_bounded_client() as client:
        run = _read_worker_run(client)
        states = read_reported_states(str(run.id))
        hold = _read_hold(run)
        has_journal = bool(folder.path.is_dir() and folder.events())
        own_hold = own_hold._replace(state_count=len(states))
        new_states = states[hold.state_count :]  # since the recorded machine holds the run
        is_elsewhere = hold.is_elsewhere(own_hold, has_journal=has_journal)
        if run.deployment_id is None or not is_elsewhere or is_started_anew(new_states):
            return own_hold

        now = _read_state_time(run)
        claimed_at = hold.claimed_at or now
        if has_journal:
            remaining_s = folder.remaining_lease_s()
        else:
            remaining_s = claimed_at + profile.deadlines.lease + profile.deadlines.grace - now
        if remaining_s > 0:
            delay_s = min(_MAX_GIVE_BACK_DELAY_S, profile.deadlines.lease / _GIVE_BACKS_PER_LEASE)
            _write_hold(client, run, hold._replace(claimed_at=claimed_at))
            give_back(client, run, hold.machine, delay_s=delay_s)
        if not has_journal and not is_launcher_dead(new_states):
            raise HolderGoneError(hold.machine, profile.deadlines.lease)
        return own_hold


def _read_state_time(run: FlowRun) -> float:
    """When the flow run took its state, by Prefect's clock: for a run that a worker has just started, a moment ago.

    An older time only makes this machine wait longer.
    """
    if run.state is None:
        raise ValueError(f"flow run {run.name} has no state")
    return run.state.timestamp.timestamp()


def give_back(client: SyncPrefectClient, run: FlowRun, machine: str, *, delay_s: float) -> NoReturn:
    """Schedule the run again after `delay_s`, and exit this process without touching the run."""
    message = f"its processes are on {machine}: another machine has given the run back"
    if run.state and run.state.is_running():  # not if a user has cancelled it meanwhile
        scheduled_at = datetime.fromtimestamp(read_server_time() + delay_s, UTC)
        client.set_flow_run_state(run.id, Scheduled(scheduled_time=scheduled_at, message=message), force=True)
    get_log().warning("%s", message)
    logging.shutdown()
    os._exit(0)  # an exception or a normal exit would make Prefect's engine set a final state


def _read_worker_run(client: SyncPrefectClient) -> FlowRun:
    """The flow run that a worker has started: this one, or the outermost flow run that contains it."""
    own_run = client.read_flow_run(UUID(str(flow_run.id)))
    ancestor_ids = list_ancestors(client, own_run)
    if ancestor_ids and own_run.deployment_id is None:
        return client.read_flow_run(ancestor_ids[-1])
    return own_run


def _read_hold(run: FlowRun) -> MachineHold:
    labels = run.labels or {}
    machine, boot_id, state_count, claimed_at = (labels.get(label) or 0 for label in _LABELS)
    return MachineHold(str(machine or ""), str(boot_id or ""), int(state_count), float(claimed_at))


def _write_hold(client: SyncPrefectClient, run: FlowRun, hold: MachineHold) -> None:
    labels: dict[str, bool | int | float | str] = dict(zip(_LABELS, hold, strict=True))
    retry_while_busy(lambda: client.update_flow_run_labels(run.id, labels))
