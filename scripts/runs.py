"""The runs that this folder's worker has taken, and how `make down` ends them."""

import sys
import time
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import ObjectNotFound

from scripts.api import YardError, open_prefect_client
from scripts.processes import get_worker_name, wait_for_result
from torchyard.assembly import sweep_run
from torchyard.common.pool import read_pool
from torchyard.machines.orphan_processes import end_orphan_process, find_orphan_processes
from torchyard.model.errors import TorchyardError
from torchyard.model.run import RunEnd
from torchyard.run.folder import RunFolder, list_run_folders, runs_folder
from torchyard.run.sweep import is_run_open
from torchyard.tasks.flow_run.states import report_end

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

_CANCEL_TIMEOUT_S = 45  # Prefect kills a cancelled flow after 30 s
_KILL_TIMEOUT_S = 5  # for a killed process to exit
_RUNS_PER_PAGE = 200
_LIVE_STATES = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]


def cancel_worker_runs() -> None:
    """Cancel the worker's runs and wait for their teardown; runs that do not end in time are printed and left."""
    with open_prefect_client() as client:
        for run in _list_live_worker_runs(client):
            print(f"cancelling {run.name} ...", flush=True)
            client.set_flow_run_state(run.id, State(type=StateType.CANCELLING))
        try:
            wait_for_result(
                "not every run has ended", lambda: not _list_live_worker_runs(client), timeout_s=_CANCEL_TIMEOUT_S
            )
        except YardError as error:
            print(f"{error}: {', '.join(run.name for run in _list_live_worker_runs(client))}", file=sys.stderr)


def _list_live_worker_runs(client: "SyncPrefectClient") -> list[FlowRun]:
    """The worker's runs that have not ended."""
    live_filter = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_LIVE_STATES)))
    pool_filter = WorkPoolFilter(name=WorkPoolFilterName(any_=[read_pool()]))
    return _list_worker_runs(client, flow_run_filter=live_filter, work_pool_filter=pool_filter)


def _list_worker_runs(client: "SyncPrefectClient", **filters: Any) -> list[FlowRun]:
    """The worker's runs among those that match the filters of `read_flow_runs`."""
    runs: list[FlowRun] = []
    while page := client.read_flow_runs(**filters, limit=_RUNS_PER_PAGE, offset=len(runs)):
        runs += page
    return [run for run in runs if is_worker_run(run)]


def is_worker_run(run: FlowRun) -> bool:
    """Whether this folder's worker has taken the flow run."""
    return run.labels.get("prefect.worker.name") == get_worker_name()


def tear_down_open_runs() -> None:
    """Tear down the open runs of this folder that the worker has taken and that no living process owns.

    A run that was started in another way, or that another machine owns, is printed and left. The fault of one run is
    printed and does not stop the others.
    """
    with open_prefect_client() as client:
        for folder in list_run_folders():
            try:
                outcome = _tear_down_open_run(client, folder)
                if outcome:
                    print(f"{folder.name}: {outcome}")
            except TorchyardError as error:
                print(f"{folder.name}: {error}", file=sys.stderr)
        _end_orphan_processes(client)


def _tear_down_open_run(client: "SyncPrefectClient", folder: RunFolder) -> str | None:
    """Tear down one run if the worker has taken it; return the outcome for the user, None if it had ended before."""
    if not is_run_open(folder):
        return None
    if not _has_worker_taken(client, folder.read_record().flow_run_id):
        return "has not ended, and this folder's worker did not take it: left"
    leftovers = _tear_down_run(folder)
    if leftovers is None:
        return "a living process owns it: left"
    return "; ".join(leftovers) or "nothing left"


def _tear_down_run(folder: RunFolder) -> tuple[str, ...] | None:
    """Tear down a run and return its leftovers; None if a living process still owns it after `_KILL_TIMEOUT_S`."""
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while True:
        leftovers = sweep_run(folder, "down", RunEnd("swept", "`make down`: its worker was stopped"), report_end)
        if leftovers is not None or time.monotonic() > deadline:
            return leftovers
        time.sleep(0.2)


def _end_orphan_processes(client: "SyncPrefectClient") -> None:
    """End the processes of the worker's runs whose folder has been removed; print and leave those of other runs."""
    for orphan_process in find_orphan_processes(runs_folder()):
        outcome = "left"
        if _has_worker_taken(client, orphan_process.flow_run):
            try:
                outcome = "; ".join(end_orphan_process(orphan_process)) or "ended"
            except TorchyardError as error:
                outcome = str(error)
        print(f"{orphan_process}: {outcome}")


def print_open_runs() -> None:
    """Print the runs that may still be training. For use when no server can report which worker took them."""
    for folder in list_run_folders():
        try:
            remaining_s = folder.remaining_lease_s()
            if is_run_open(folder) and remaining_s > 0:
                print(
                    f"{folder.name} has not ended: `make up` resumes it, or it ends with its lease in "
                    f"{remaining_s:.0f} s"
                )
        except TorchyardError as error:
            print(f"{folder.name} may not have ended: {error}", file=sys.stderr)


def _has_worker_taken(client: "SyncPrefectClient", flow_run_id: str) -> bool:
    """Whether the worker has taken this flow run; False if the server has no such flow run."""
    try:
        return is_worker_run(client.read_flow_run(UUID(flow_run_id)))
    except (ObjectNotFound, ValueError):
        return False
