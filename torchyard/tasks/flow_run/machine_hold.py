"""Which machine holds a run of plain machines: only Prefect says so to another one that takes the run from the pool.

Such a run lives in processes and in a folder of one machine. A worker elsewhere sees neither, and would train a second
time: its process gives the run back to the pool, until the machine that holds it takes it or the lease there has ended.
"""

import contextlib
import logging
import os
import time
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, NoReturn
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.runtime import flow_run
from prefect.states import Scheduled
from tenacity import retry, retry_if_not_exception_type, stop_after_delay, wait_fixed

from torchyard.common.identity import identify_machine
from torchyard.common.log import get_log
from torchyard.common.private_files import make_private_folder
from torchyard.host.state import read_boot_id
from torchyard.launchers.registry import load_launcher
from torchyard.model.errors import HolderGoneError, LeftError
from torchyard.model.plan import CommandPlan
from torchyard.model.profile import Profile
from torchyard.model.run import Run
from torchyard.run.folder import RunFolder, runs_folder
from torchyard.run.resume import is_launcher_dead, is_started_anew

from .states import list_flow_runs_around, open_bounded_client, read_reported_states, repeat_while_busy

_LABELS = ("torchyard.machine", "torchyard.boot", "torchyard.states", "torchyard.sought")  # of the flow run
_ANSWER_TIMEOUT_S = 60.0  # how long Prefect is asked who holds the run
_MAX_RETURN_DELAY_S = 30.0  # between two times that a machine takes the run and gives it back
_RETURNS_PER_LEASE = 10


class MachineHold(NamedTuple):
    """Who holds a run: the machine, and the boot of its kernel.

    `states`: how many states the run had before. `sought_at`: when another machine first took the run instead.
    """

    machine: str = ""
    boot: str = ""
    states: int = 0
    sought_at: float = 0.0

    def is_elsewhere(self, mine: "MachineHold", has_journal: bool) -> bool:
        """Whether the processes may be where this process cannot see them.

        A machine with another name that has the run's journal, and is the same kernel, is a container that was renamed.
        """
        return self.machine not in ("", mine.machine) and not (has_journal and self.boot == mine.boot)


def hold_run(profile: Profile, run_id: str, folder: RunFolder, count: int) -> None:
    """Record that this machine holds the run; if another one does, give the run back and end this process.

    HolderGoneError once the lease there has ended, unless the launcher there is known to be dead. A run that has ended,
    and that a user asks for again, is nobody's. LeftError if Prefect does not say who holds the run.
    """
    if not flow_run.id or not _has_processes_here(profile, run_id, folder):
        return
    with contextlib.suppress(OSError):  # the runner reports a folder that cannot be used
        make_private_folder(runs_folder())  # it holds the machine's id
    mine = MachineHold(identify_machine(runs_folder()), read_boot_id())
    if count > 1:
        try:
            mine = _leave_to_holder(profile, folder, mine)
        except HolderGoneError:
            raise
        except Exception as error:
            raise LeftError(f"Prefect does not say which machine holds this run: {error}") from error
    try:
        with open_bounded_client() as client:
            _write_hold(client, _read_worker_run(client), mine)
    except Exception as error:
        get_log().warning("Prefect does not know which machine holds this run: %s", error)


def _has_processes_here(profile: Profile, run_id: str, folder: RunFolder) -> bool:
    """Whether the run starts processes on its launcher's machine; hosts behind ssh know the run's owner themselves."""
    launcher = load_launcher(profile.launcher)
    if not launcher.PROGRAM_IS_A_FILE:
        return False
    plan = launcher.plan(profile, Run(id=run_id, attempt=1, folder=str(folder.path)))
    return isinstance(plan, CommandPlan) and any(block.site is None for block in plan.blocks)


@retry(
    stop=stop_after_delay(_ANSWER_TIMEOUT_S),
    wait=wait_fixed(1),
    retry=retry_if_not_exception_type(HolderGoneError),
    reraise=True,
)
def _leave_to_holder(profile: Profile, folder: RunFolder, mine: MachineHold) -> MachineHold:
    """Return only if the run may go on here: the new hold."""
    with open_bounded_client() as client:
        run = _read_worker_run(client)
        states = read_reported_states(str(run.id))
        held, has_journal = _read_hold(run), bool(folder.path.is_dir() and folder.events())
        mine, since = mine._replace(states=len(states)), states[held.states :]
        if run.deployment_id is None or not held.is_elsewhere(mine, has_journal) or is_started_anew(since):
            return mine
        sought_at = held.sought_at or time.time()
        ends_at = sought_at + profile.deadlines.lease + profile.deadlines.grace
        left = folder.lease_left() if has_journal else ends_at - time.time()
        if left > 0:
            delay = min(_MAX_RETURN_DELAY_S, profile.deadlines.lease / _RETURNS_PER_LEASE)
            _write_hold(client, run, held._replace(sought_at=sought_at))
            _give_back(client, run, held.machine, delay)
        if not has_journal and not is_launcher_dead(since):
            raise HolderGoneError(held.machine, profile.deadlines.lease)
        return mine


def _give_back(client: SyncPrefectClient, run: FlowRun, machine: str, delay_s: float) -> NoReturn:
    """Schedule the run again a moment later, and end this process without touching the run."""
    said = f"its processes are on {machine}: another machine has given the run back"
    if run.state and run.state.is_running():  # not if a user has cancelled it meanwhile
        at = datetime.now(UTC) + timedelta(seconds=delay_s)
        client.set_flow_run_state(run.id, Scheduled(scheduled_time=at, message=said), force=True)
    get_log().warning("%s", said)
    logging.shutdown()
    os._exit(0)


def _read_worker_run(client: SyncPrefectClient) -> FlowRun:
    """The flow run that a worker has started: this one, or the one around it."""
    this = client.read_flow_run(UUID(str(flow_run.id)))
    around = list_flow_runs_around(client, this)
    return client.read_flow_run(around[-1]) if around and this.deployment_id is None else this


def _read_hold(run: FlowRun) -> MachineHold:
    machine, boot, states, sought_at = ((run.labels or {}).get(label) or 0 for label in _LABELS)
    return MachineHold(str(machine or ""), str(boot or ""), int(states), float(sought_at))


def _write_hold(client: SyncPrefectClient, run: FlowRun, hold: MachineHold) -> None:
    repeat_while_busy(lambda: client.update_flow_run_labels(run.id, dict(zip(_LABELS, hold, strict=True))))
