"""Runs that have lost their launcher, brought back: by the guard of one, or all that this machine can know of.

Nothing here acts on an event, which Prefect may deliver a quarter of an hour late: each look reads how the run is now.
"""

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateName,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from prefect.states import Scheduled

from tasks.flow_states import final_state, open_bounded_client, report_end, report_state
from torchyard.common.log import get_log
from torchyard.model.errors import TorchyardError
from torchyard.run.folder import RunFolder, list_run_folders
from torchyard.run.resume import (
    CRASHED,
    LOST_MESSAGE,
    MAX_LOSS_AGE_S,
    NEVER_BEGAN_MESSAGE,
    ReportedState,
    choose_recovery,
    find_last_event,
    is_lost,
    is_requested_again,
)
from torchyard.run.sweep import LAUNCHER_LOST_SENTENCE, sweep_run
from torchyard.steps.descriptors import raise_file_limit

# A living worker tells within a second or two that its flow died; only then is it the guard's turn.
_WORKER_REPORT_TIMEOUT_S = 5.0
# It tells so twice, and its second word would end the process that comes back.
_SECOND_REPORT_DELAY_S = 1.5
_POLL_INTERVAL_S = 2.0  # seconds between two looks of a guard
_WATCH_TIMEOUT_S = 125.0  # how long a guard looks after a run that is on its way back, in a Prefect that answers
_FLOW_NAME, _POOL_NAME = "train", "torchyard"
_RUNS_PER_PAGE = 200  # flow runs that Prefect lists at once


class RecoveryResult(NamedTuple):
    """What a look has done: the runs that come back, and what could not be looked at."""

    back: tuple[str, ...]
    faults: tuple[str, ...]

    def __str__(self) -> str:
        return f"brought {len(self.back)} back" + (f": {', '.join(self.back)}" if self.back else "")


def recover_lost_runs(leased: bool = False) -> RecoveryResult:
    """Schedule every run that has lost its launcher: one of this machine's at once, others that Prefect calls Crashed.

    `leased`: of this machine's only those whose lease lasts.
    """
    back, faults = list[str](), list[str]()
    here = dict(_list_local_runs(faults))
    try:
        with open_bounded_client() as client:
            for run_id in dict.fromkeys(
                (*_list_unended_runs(client), *(each for each in here if is_lost(here[each].events())))
            ):
                try:
                    if name := _recover_run(client, run_id, here.get(run_id), leased):
                        back.append(name)
                except TorchyardError as error:
                    faults.append(str(error))
    except Exception as error:
        faults.append(f"Prefect cannot be asked for lost runs: {error}")
    return RecoveryResult(tuple(back), tuple(faults))


def _list_local_runs(faults: list[str]) -> Iterator[tuple[str, RunFolder]]:
    """The runs that this machine has carried, by flow run; one that cannot be read is a fault of its own."""
    for folder in list_run_folders():
        try:
            if run_id := folder.last("start").get("run"):
                yield str(run_id), folder
        except TorchyardError as error:
            faults.append(str(error))


def _list_unended_runs(client: SyncPrefectClient) -> list[str]:
    """The runs that Prefect takes for alive, and the latest of those that it takes for lost."""
    living = FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING, StateType.CANCELLING])
    found = list[FlowRun]()
    while more := _find_flow_runs(client, FlowRunFilterState(type=living), len(found)):
        found += more
    crashed = _find_flow_runs(client, FlowRunFilterState(name=FlowRunFilterStateName(any_=[CRASHED])))
    return [
        str(run.id)
        for run in (*found, *(each for each in crashed if _reported_state(each.state).age_s < MAX_LOSS_AGE_S))
    ]


def _find_flow_runs(client: SyncPrefectClient, state: FlowRunFilterState, offset: int = 0) -> list[FlowRun]:
    return client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=[_FLOW_NAME])),
        flow_run_filter=FlowRunFilter(state=state),
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[_POOL_NAME])),
        sort=FlowRunSort.START_TIME_DESC,
        limit=_RUNS_PER_PAGE,
        offset=offset,
    )


def _recover_run(client: SyncPrefectClient, run_id: str, folder: RunFolder | None, leased: bool = False) -> str:
    """Do about one run what must be done now; its name where it comes back."""
    try:
        run = client.read_flow_run(UUID(run_id))
    except (ObjectNotFound, ValueError):  # of another server
        return ""
    if folder and (folder.is_owned() or (leased and folder.lease_left() < 0)):
        return ""
    events = folder.events() if folder else []
    match choose_recovery(_reported_state(run.state), run.run_count, events, lambda: has_person_request(run_id)):
        case "schedule":
            return run.name if _schedule_run(client, run, folder) else ""
        case "finish" if folder:
            folder.note("ending", end="cancelled", sentence="cancelled through Prefect")
            sweep_run(folder, "guard", "", report_end)
        case "tell":
            end = find_last_event(events, "end")
            report_state(run_id, final_state(end.get("end", "failed"), end.get("sentence", "")))
        case _:
            pass
    return ""


def _schedule_run(client: SyncPrefectClient, run: FlowRun, folder: RunFolder | None) -> bool:
    """Let a worker carry a run again; a run that no deployment started would wait for one for ever."""
    began = run.state is None or not run.state.is_pending()
    if began and run.state and not run.state.is_final():
        lost: State[Any] = State(type=StateType.CRASHED, name=CRASHED, message="the process of this run died")
        report_state(str(run.id), lost, run.run_count)
    if run.deployment_id is None:
        return False
    if folder:
        folder.extend()
    client.set_flow_run_state(run.id, Scheduled(message=LOST_MESSAGE if began else NEVER_BEGAN_MESSAGE), force=True)
    return True


def _reported_state(state: State[Any] | None) -> ReportedState:
    """A state of Prefect as a value."""
    if state is None:
        return ReportedState("", "")
    return ReportedState(
        state.type.value, state.name or "", state.message or "", time.time() - state.timestamp.timestamp()
    )


def has_person_request(run_id: str) -> bool:
    """Whether a person asked for a run again since it ended. Where Prefect does not say so, nobody did."""
    try:
        with open_bounded_client() as client:
            return is_requested_again([_reported_state(state) for state in client.read_flow_run_states(UUID(run_id))])
    except Exception as error:
        get_log().warning("Prefect does not say whether somebody asked for this run again: %s", error)
        return False


# --- the guard of one run


def _report_lost_run(folder: RunFolder) -> None:
    """Tell Prefect that the launcher died, and see to it that the run comes back: now, not at a missed heartbeat.

    A run that was being cancelled does not come back: it is ended here.
    """
    start = folder.last("start")
    _await_worker(UUID(start["run"]))
    until = time.monotonic() + _WATCH_TIMEOUT_S
    while time.monotonic() < until and folder.last("start") == start and is_lost(folder.events()):
        try:
            with open_bounded_client() as client:
                _recover_run(client, start["run"], folder)
        except Exception as error:  # a server that is away for as long as the lease lasts
            get_log().debug("%s was not looked at: %s", folder.name, error)
            until = max(until, time.monotonic() + min(_WATCH_TIMEOUT_S, folder.lease_left()))
        time.sleep(_POLL_INTERVAL_S)


def _await_worker(run_id: UUID) -> None:
    """Let the worker say first how its flow died, and say all of it."""
    until = time.monotonic() + _WORKER_REPORT_TIMEOUT_S
    while time.monotonic() < until:
        try:
            with open_bounded_client() as client:
                state = client.read_flow_run(run_id).state
            if state and not state.is_running():
                time.sleep(max(0.0, min(_SECOND_REPORT_DELAY_S, _SECOND_REPORT_DELAY_S - _reported_state(state).age_s)))
                return
        except Exception as error:
            get_log().debug("flow run %s was not read: %s", run_id, error)
        time.sleep(0.3)


def main(words: Iterable[str]) -> int:
    """`keep FOLDER` and `stop FOLDER`: what becomes of one run, by its guard. `back`: bring back all that are lost."""
    raise_file_limit()
    verb, *rest = words
    if verb == "back":
        looked = recover_lost_runs()
        print("\n".join((str(looked), *looked.faults)))
        return 1 if looked.faults else 0
    folder = RunFolder(Path(rest[0]))
    if verb == "keep":
        _report_lost_run(folder)
    else:
        sweep_run(folder, "guard", LAUNCHER_LOST_SENTENCE, report_end)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
