"""Runs a deployment and watches the run to its final end."""

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import httpx
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import LogSort
from prefect.exceptions import ObjectNotFound

from scripts.api import open_prefect_client
from torchyard.common.pool import name_deployment, read_pool
from torchyard.loading.profile import list_profiles

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

ANY_PROFILE = "any-profile"  # the deployment of `train` that takes any profile
# A run that stays Crashed for longer is not expected to be resumed.
_CRASHED_TIMEOUT_S = 30.0
_END_PREFIX = "Finished in state"  # Prefect's line about an end, which is printed below the log


class _RunWatch:
    """Follows one run."""

    def __init__(self, client: "SyncPrefectClient", run: FlowRun) -> None:
        self.client, self.run = client, run
        self._shown: set[UUID] = set()

    def follow(self) -> State:
        """Print the run's log lines until its end. A run whose state is named Crashed may be resumed."""
        since, told = 0.0, ""
        while True:
            try:
                state = self._look()
            except httpx.HTTPError:
                time.sleep(1)
                continue
            if state.name != told:
                told, since = state.name or "", time.monotonic()
                print(f"  [{told}]", flush=True)
            coming_back = told == "Crashed" and time.monotonic() - since < _CRASHED_TIMEOUT_S
            if state.is_final() and not coming_back:
                self._settle()
                return state
            time.sleep(0.5)

    def cancel(self) -> None:
        self.client.set_flow_run_state(self.run.id, State(type=StateType.CANCELLING))

    def _look(self) -> State:
        state = self.client.read_flow_run(self.run.id).state
        self._print_logs()
        assert state is not None  # Prefect gives every run a state
        return state

    def _settle(self) -> None:
        """Print the last log lines, which reach the API up to two seconds late."""
        for _ in range(5):
            time.sleep(0.5)
            self._print_logs()

    def _print_logs(self) -> None:
        """Print the lines that were not shown before. They arrive late and out of order: offsets would skip some."""
        asked = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[self.run.id]))
        for line in reversed(self.client.read_logs(asked, limit=200, sort=LogSort.TIMESTAMP_DESC)):
            if line.id not in self._shown and not line.message.startswith(_END_PREFIX):
                print(f"  {line.timestamp:%H:%M:%S} {line.message}", flush=True)
            self._shown.add(line.id)


def run_and_follow(api: str, profile: str) -> int:
    """Run train/PROFILE and watch it: 0 where it succeeded, else 1. Ctrl-C cancels it."""
    with open_prefect_client() as client:
        watch = _RunWatch(client, _create_flow_run(client, profile))
        page = f"{api.removesuffix('/api')}/runs/flow-run/{watch.run.id}"
        print(f"train/{Path(profile).stem}: {page}", flush=True)
        try:
            state = watch.follow()
        except KeyboardInterrupt:
            print("cancelling the run; Ctrl-C again leaves it to the server", flush=True)
            watch.cancel()
            state = watch.follow()
    print(f"{state.name}: {state.message or ''}\nin the UI: {page}\nto stop the server and the worker: make down")
    return 0 if state.is_completed() else 1


def _create_flow_run(client: "SyncPrefectClient", profile: str) -> FlowRun:
    """A run of the profile's own deployment; of a profile that has none, a run of the one that takes any profile."""
    path = list_profiles().get(profile)
    with suppress(ObjectNotFound):
        if path:
            return client.create_flow_run_from_deployment(_find_deployment(client, profile))
    known = _find_deployment(client, ANY_PROFILE)
    file = path or Path(profile).expanduser().absolute()
    return client.create_flow_run_from_deployment(known, parameters={"profile": str(file)})


def _find_deployment(client: "SyncPrefectClient", name: str) -> UUID:
    return client.read_deployment_by_name(f"train/{name_deployment(name, read_pool())}").id
