"""The runs that this folder's worker has taken, and what `make down` does about them."""

import sys
import time
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import ObjectNotFound

from scripts.api import YardError, prefect_client
from scripts.deployments import POOL
from scripts.processes import FORMER_WORKER, until, worker_name
from torchyard.machines.strays import end_stray, strays
from torchyard.model.errors import TorchyardError
from torchyard.run.folder import RunFolder, all_runs, runs
from torchyard.run.sweep import is_open, sweep_run

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

CANCEL_S = 45  # Prefect gives a cancelled flow 30 s
KILLED_S = 5
PAGE = 200
GOING = [StateType.RUNNING, StateType.PENDING, StateType.CANCELLING]


def cancel_carried() -> None:
    """Cancel what our worker carries and wait for its teardown; what does not end is told and left."""
    with prefect_client() as client:
        for run in carried(client):
            print(f"cancelling {run.name} ...", flush=True)
            client.set_flow_run_state(run.id, State(type=StateType.CANCELLING))
        try:
            until("not every run has ended", lambda: not carried(client), CANCEL_S)
        except YardError as error:
            print(f"{error}: {', '.join(run.name for run in carried(client))}", file=sys.stderr)


def carried(client: "SyncPrefectClient") -> list[FlowRun]:
    """The runs that our worker took and that have not ended."""
    going = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=GOING)))
    pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[POOL]))
    return taken(client, flow_run_filter=going, work_pool_filter=pool)


def taken(client: "SyncPrefectClient", **filters: Any) -> list[FlowRun]:
    """The runs that our worker took, of those that some filters choose."""
    found: list[FlowRun] = []
    while page := client.read_flow_runs(**filters, limit=PAGE, offset=len(found)):
        found += page
    return [run for run in found if is_ours(run)]


def is_ours(run: FlowRun) -> bool:
    return run.labels.get("prefect.worker.name") in (worker_name(), FORMER_WORKER)


def tear_down_left() -> None:
    """Tear down the open runs of this folder that our worker took and that no living process carries.

    A run that was started otherwise, or that another machine carries, is told and left.
    """
    with prefect_client() as client:
        for folder in all_runs():
            try:
                if told := tear_down_one(client, folder):
                    print(f"{folder.name}: {told}")
            except TorchyardError as error:  # one run's fault
                print(f"{folder.name}: {error}", file=sys.stderr)
        end_strays(client)


def tear_down_one(client: "SyncPrefectClient", folder: RunFolder) -> str:
    """What became of a run; "" of one that has ended."""
    if not is_open(folder):
        return ""
    if not took(client, folder):
        return "has not ended, and this folder's worker did not take it: left"
    left = tear_down(folder)
    return "a living process carries it: left" if left is None else "; ".join(left) or "nothing left"


def tear_down(folder: RunFolder) -> tuple[str, ...] | None:
    """What is left of a run; None where a living process carries it for longer than a killed one takes to go."""
    deadline = time.monotonic() + KILLED_S
    while (left := sweep_run(folder, "down", "`make down`: its worker was stopped")) is None:
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    return left


def end_strays(client: "SyncPrefectClient") -> None:
    """End the processes of runs that our worker took, and whose folder somebody has removed since."""
    if found := strays(runs()):
        train = FlowFilter(name=FlowFilterName(any_=["train"]))
        ours = {run.id.hex[-8:] for run in taken(client, flow_filter=train)}
        for stray in found:
            left = "; ".join(end_stray(stray)) or "ended" if stray.run[-8:] in ours else "left"
            print(f"{stray}: {left}")


def tell_open() -> None:
    """Name the runs that may train on, where nobody can be asked who took them."""
    for folder in filter(is_open, all_runs()):
        if (left := folder.lease_left()) > 0:
            print(f"{folder.name} has not ended: `make up` brings it back, or it ends with its lease in {left:.0f} s")


def took(client: "SyncPrefectClient", folder: RunFolder) -> bool:
    try:
        return is_ours(client.read_flow_run(UUID(str(folder.last("start").get("run")))))
    except (ObjectNotFound, ValueError):
        return False
