"""Runs a deployment and prints the run until its final end."""

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import httpx
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import LogSort
from prefect.exceptions import ObjectNotFound

from scripts.api import open_prefect_client
from torchyard.common.pool import format_deployment_name, read_pool
from torchyard.loading.profile import list_profiles

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

ANY_PROFILE = "any-profile"  # the deployment of `train` that takes any profile
_CRASHED_TIMEOUT_S = 30.0  # a run that stays Crashed for longer is not expected to be resumed
_END_PREFIX = "Finished in state"  # Prefect's line about an end, which is printed below the log


class RunFollower:
    """Follows one run: prints its states and its log lines until its end. Used by one thread."""

    def __init__(self, client: "SyncPrefectClient", run: FlowRun) -> None:
        self.client = client
        self.run = run
        self._printed_ids: set[UUID] = set()  # of log lines

    def follow(self) -> State:
        """Print the run's log lines until its end, and return its final state.

        A run whose state is named Crashed counts as ended only after `_CRASHED_TIMEOUT_S`, because it may be resumed.
        An unreachable server is waited for.
        """
        printed_name = ""
        changed_at = 0.0  # when the printed state was first seen, in monotonic seconds
        while True:
            try:
                state = self._poll_state()
            except httpx.HTTPError:
                time.sleep(1)
                continue
            if state.name != printed_name:
                printed_name = state.name or ""
                changed_at = time.monotonic()
                print(f"  [{printed_name}]", flush=True)
            may_be_resumed = printed_name == "Crashed" and time.monotonic() - changed_at < _CRASHED_TIMEOUT_S
            if state.is_final() and not may_be_resumed:
                self._print_last_logs()
                return state
            time.sleep(0.5)

    def cancel(self) -> None:
        self.client.set_flow_run_state(self.run.id, State(type=StateType.CANCELLING))

    def _poll_state(self) -> State:
        """Read the run's state, then print the log lines that have arrived."""
        state = self.client.read_flow_run(self.run.id).state
        self.print_new_logs()
        assert state is not None  # Prefect gives every run a state
        return state

    def _print_last_logs(self) -> None:
        """Print the last log lines, which reach the API up to two seconds late."""
        for _ in range(5):
            time.sleep(0.5)
            self.print_new_logs()

    def print_new_logs(self) -> None:
        """Print the lines that were not printed before. They arrive late and out of order: offsets would skip some."""
        log_filter = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[self.run.id]))
        for line in reversed(self.client.read_logs(log_filter, limit=200, sort=LogSort.TIMESTAMP_DESC)):
            if line.id not in self._printed_ids and not line.message.startswith(_END_PREFIX):
                print(f"  {line.timestamp:%H:%M:%S} {line.message}", flush=True)
            self._printed_ids.add(line.id)


def run_and_follow(api_url: str, profile: str) -> int:
    """Run train/PROFILE and print it; return 0 if it succeeded, else 1. Ctrl-C cancels the run."""
    with open_prefect_client() as client:
        follower = RunFollower(client, _create_flow_run(client, profile))
        run_url = f"{api_url.removesuffix('/api')}/runs/flow-run/{follower.run.id}"
        print(f"train/{Path(profile).stem}: {run_url}", flush=True)
        try:
            state = follower.follow()
        except KeyboardInterrupt:
            print("cancelling the run; Ctrl-C again exits without waiting for its end", flush=True)
            follower.cancel()
            state = follower.follow()
    print(f"{state.name}: {state.message or ''}\nin the UI: {run_url}\nto stop the server and the worker: make down")
    return 0 if state.is_completed() else 1


def _create_flow_run(client: "SyncPrefectClient", profile: str) -> FlowRun:
    """Create a run of the profile's deployment, or of the one that takes any profile if the profile has none."""
    path = list_profiles().get(profile)
    key = uuid4().hex  # Prefect's client repeats a request to a busy server: without a key that may start two runs
    with suppress(ObjectNotFound):
        if path:
            return client.create_flow_run_from_deployment(_find_deployment(client, profile), idempotency_key=key)
    deployment_id = _find_deployment(client, ANY_PROFILE)
    profile_path = path or Path(profile).expanduser().absolute()
    return client.create_flow_run_from_deployment(
        deployment_id, parameters={"profile": str(profile_path)}, idempotency_key=key
    )


def _find_deployment(client: "SyncPrefectClient", name: str) -> UUID:
    return client.read_deployment_by_name(f"train/{format_deployment_name(name, read_pool())}").id
