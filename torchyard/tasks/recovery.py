"""Resumes runs that have lost their launcher: one, for its watchdog, or all that this machine or Prefect lists.

Nothing here acts on an event, which Prefect may deliver 15 minutes late: each check reads the run's current state.
"""

import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
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

from torchyard.assembly import LAUNCHER_LOST_END, sweep_run
from torchyard.common.log import get_log
from torchyard.model.errors import FolderError, TorchyardError
from torchyard.model.run import RunEnd
from torchyard.run.folder import RunFolder, list_run_folders
from torchyard.run.record import RunRecord, find_last_event
from torchyard.run.resume import (
    CRASHED,
    LOST_MESSAGE,
    MAX_LOSS_AGE_S,
    MAX_PAUSE_S,
    NEVER_STARTED_MESSAGE,
    choose_recovery,
)
from torchyard.steps.descriptors import raise_file_limit

from .flow_run.states import (
    build_final_state,
    get_flow_run_pool,
    has_user_request,
    is_reported_missing,
    open_bounded_client,
    parse_flow_run_id,
    report_end,
    report_state,
    resume_flow_run,
    to_reported_state,
)

# A living worker reports within a second or two that its flow died; the watchdog acts only after that.
_WORKER_REPORT_TIMEOUT_S = 5.0
# The worker reports it twice, and its second report would end the process that resumes the run.
_SECOND_REPORT_DELAY_S = 1.5
_POLL_INTERVAL_S = 2.0  # between two checks of a watchdog
_WATCH_TIMEOUT_S = 125.0 + MAX_PAUSE_S  # for a watchdog to see its run resumed, while Prefect responds
_FLOW_NAMES = ("train", "benchmark")
_RUNS_PER_PAGE = 200  # flow runs that Prefect lists at once


class _Candidate(NamedTuple):
    """A flow run that may have lost its launcher.

    folder: of its run on this machine; None if there is none here.
    is_lost: whether the last process of that run has journalled no end.
    is_nested: whether that run is one of several trainings in the flow run, and not the flow run itself.
    """

    flow_run_id: str
    folder: RunFolder | None = None
    is_lost: bool = False
    is_nested: bool = False


class RecoveryResult(NamedTuple):
    """The names of the resumed runs, and a message for each thing that could not be checked."""

    resumed: tuple[str, ...]
    faults: tuple[str, ...]

    def __str__(self) -> str:
        suffix = f": {', '.join(self.resumed)}" if self.resumed else ""
        return f"resumed {len(self.resumed)}{suffix}"


def recover_lost_runs(*, only_leased: bool = False) -> RecoveryResult:
    """Schedule every run that has lost its launcher: this machine's at once, others once their state is Crashed.

    One that was cancelled is ended instead. `only_leased`: of this machine's runs, schedule only those whose lease has
    not ended. Nothing is raised: what could not be checked is in the result's `faults`.
    """
    resumed: dict[str, None] = {}  # each name once
    faults: list[str] = []
    local_runs = list(_list_local_runs(faults))
    try:
        with open_bounded_client() as client:
            unfinished = _list_unfinished_runs(client)
            candidates = [run for run in local_runs if run.is_lost or run.flow_run_id in unfinished]
            local_ids = {run.flow_run_id for run in local_runs}
            candidates += [_Candidate(run_id) for run_id in unfinished if run_id not in local_ids]
            for candidate in candidates:
                try:
                    name = _recover_run(client, candidate, check_lease=only_leased)
                    if name:
                        resumed[name] = None
                except TorchyardError as error:
                    faults.append(str(error))
    except Exception as error:
        faults.append(f"cannot query Prefect for lost runs: {error}")
    return RecoveryResult(tuple(resumed), tuple(faults))


def _list_local_runs(faults: list[str]) -> Iterator[_Candidate]:
    """This machine's runs that Prefect has started; a folder that cannot be read adds a message to `faults`.

    A training inside another flow is listed only while it is lost: its end is not the end of its flow run.
    """
    try:
        folders = list_run_folders()
    except FolderError as error:
        faults.append(str(error))
        return
    for folder in folders:
        try:
            candidate = _read_candidate(folder)
            if candidate.flow_run_id and (candidate.is_lost or not candidate.is_nested):
                yield candidate
        except TorchyardError as error:
            faults.append(str(error))


def _read_candidate(folder: RunFolder) -> _Candidate:
    """The run of a folder, as its journal describes it. FolderError if it cannot be read."""
    record = folder.read_record()
    is_nested = record.run_id != record.flow_run_id
    return _Candidate(record.flow_run_id, folder, is_lost=record.is_lost, is_nested=is_nested)


def _list_unfinished_runs(client: SyncPrefectClient) -> list[str]:
    """The ids of the flow runs that are active in Prefect, and of those that were set to Crashed in the last day."""
    live_types = FlowRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING, StateType.CANCELLING])
    flow_runs: list[FlowRun] = []
    while page := _list_flow_runs(client, FlowRunFilterState(type=live_types), offset=len(flow_runs)):
        flow_runs += page
    crashed_runs = _list_flow_runs(client, FlowRunFilterState(name=FlowRunFilterStateName(any_=[CRASHED])))
    flow_runs += filter(_is_recent, crashed_runs)
    return [str(flow_run.id) for flow_run in flow_runs]


def _is_recent(flow_run: FlowRun) -> bool:
    """Whether the flow run has been in its state for less than `MAX_LOSS_AGE_S`."""
    return to_reported_state(flow_run.state).age_s < MAX_LOSS_AGE_S


def _list_flow_runs(client: SyncPrefectClient, state: FlowRunFilterState, offset: int = 0) -> list[FlowRun]:
    """One page of the flow runs in this pool, the last started first."""
    return client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=[*_FLOW_NAMES])),
        flow_run_filter=FlowRunFilter(state=state),
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[get_flow_run_pool()])),
        sort=FlowRunSort.START_TIME_DESC,
        limit=_RUNS_PER_PAGE,
        offset=offset,
    )


def _recover_run(client: SyncPrefectClient, candidate: _Candidate, *, check_lease: bool = False) -> str | None:
    """Schedule, end or report one run, as its current state requires; return its name if it is resumed, else None.

    `check_lease`: schedule no run whose lease has ended. Raises TorchyardError if the folder cannot be used, and
    Prefect's own errors.
    """
    run_id = candidate.flow_run_id
    folder = candidate.folder
    flow_run_id = parse_flow_run_id(run_id)
    if flow_run_id is None:
        return None
    try:
        run = client.read_flow_run(flow_run_id)
    except ObjectNotFound as error:
        if is_reported_missing(error):  # a folder may be of a run on another server
            return None
        raise
    if folder and folder.is_owned():
        return None
    is_expired = check_lease and folder is not None and folder.remaining_lease_s() < 0
    # A user's own flow is never started again, because its other steps may not be repeatable.
    is_user_flow = candidate.is_nested and client.read_flow(run.flow_id).name not in _FLOW_NAMES
    record = folder.read_record() if folder else RunRecord(())
    match choose_recovery(to_reported_state(run.state), run.run_count, record, partial(has_user_request, run_id)):
        case "schedule" if not is_user_flow and not is_expired:
            return run.name if _schedule_run(client, run, folder, record) else None
        case "finish" if folder:
            on_end = _ignore_end if is_user_flow else partial(_report_flow_end, run_id)
            sweep_run(folder, "guard", RunEnd("cancelled", "cancelled through Prefect"), on_end)
        case "report":
            end = record.find_last("end")
            final_state = build_final_state(end.get("end", "failed"), end.get("sentence", ""))
            report_state(run_id, final_state, run.run_count)
        case _:
            pass
    return None


def _ignore_end(run_id: str, end: str, sentence: str) -> None:
    """Report nothing: the flow run is a user's."""


def _report_flow_end(flow_run_id: str, run_id: str, end: str, sentence: str) -> None:
    """Report the end of a run as the end of the flow run that contains it."""
    report_end(flow_run_id, end, sentence)


def _schedule_run(client: SyncPrefectClient, run: FlowRun, folder: RunFolder | None, record: RunRecord) -> bool:
    """Schedule a run, so that a worker starts it again; return whether it was scheduled.

    A run without a deployment is not scheduled: no worker would ever take it.
    """
    has_started = run.state is None or not run.state.is_pending()
    if has_started and run.state and not run.state.is_final():
        departure = str(find_last_event(record.launches[-1], "left").get("sentence", "")) if record.launches else ""
        crash_message = departure or "the process of this run died"
        crashed_state: State[Any] = State(type=StateType.CRASHED, name=CRASHED, message=crash_message)
        report_state(str(run.id), crashed_state, run.run_count)
    if run.deployment_id is None:
        return False
    if folder:
        folder.extend()
    message = LOST_MESSAGE if has_started else NEVER_STARTED_MESSAGE
    return resume_flow_run(client, run.id, message, lease_s=folder.lease_s() if folder else None)


def complete_cancel(flow_run_id: str) -> None:
    """End a flow run that was cancelled before its flow started; for its own process, after Prefect's engine has ended.

    The engine leaves such a run Cancelling, in which it holds its deployment's slot for minutes. A job that an earlier
    process of the run has started is ended first, and the end of a run that has ended is reported. What cannot be done
    is logged, and Prefect sets the state later.
    """
    try:
        with open_bounded_client() as client:
            run = client.read_flow_run(UUID(flow_run_id))
            if run.state is None or not run.state.is_cancelling():
                return
            faults: list[str] = []
            for candidate in _list_local_runs(faults):
                if candidate.flow_run_id == flow_run_id:
                    _recover_run(client, candidate)
                    return
        if faults:  # one of them may be the folder of this run, with a job
            raise TorchyardError("; ".join(faults))
        report_state(flow_run_id, build_final_state("cancelled", "cancelled through Prefect before it started"))
    except Exception as error:
        get_log().warning("cannot complete the cancel of flow run %s: %s", flow_run_id, error)


# --- the watchdog of one run


def report_lost_run(folder: RunFolder) -> None:
    """Report to Prefect that the launcher died or left, so that the run is resumed now and not after missed heartbeats.

    A run that was being cancelled is not resumed: it is ended here. Returns once another process has started the run
    or its end is recorded, at the latest after `_WATCH_TIMEOUT_S`, or when the lease ends if Prefect is unreachable.
    """
    start = folder.read_record().last_start
    _wait_for_worker_report(UUID(_read_candidate(folder).flow_run_id))
    deadline = time.monotonic() + _WATCH_TIMEOUT_S
    while time.monotonic() < deadline and (record := folder.read_record()).is_lost and record.last_start == start:
        try:
            with open_bounded_client() as client:
                _recover_run(client, _read_candidate(folder))
        except Exception as error:  # an unreachable server is queried for as long as the lease lasts
            get_log().debug("cannot check %s: %s (retrying)", folder.name, error)
            deadline = max(deadline, time.monotonic() + min(_WATCH_TIMEOUT_S, folder.remaining_lease_s()))
        time.sleep(_POLL_INTERVAL_S)


def _wait_for_worker_report(run_id: UUID) -> None:
    """Wait until the worker has sent both of its reports of how its flow died, at most `_WORKER_REPORT_TIMEOUT_S`."""
    deadline = time.monotonic() + _WORKER_REPORT_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            with open_bounded_client() as client:
                state = client.read_flow_run(run_id).state
            if state and not state.is_running():
                delay_s = _SECOND_REPORT_DELAY_S - to_reported_state(state).age_s
                time.sleep(max(0.0, min(_SECOND_REPORT_DELAY_S, delay_s)))
                return
        except Exception as error:
            get_log().debug("cannot read flow run %s: %s (retrying)", run_id, error)
        time.sleep(0.3)


def main(argv: Iterable[str]) -> int:
    """Run a command and return its exit code.

    `keep FOLDER` resumes one lost run, and `stop FOLDER` tears it down: for its watchdog. `back` resumes all lost runs.
    """
    raise_file_limit()
    command, *arguments = argv
    if command == "back":
        result = recover_lost_runs()
        print(result, *result.faults, sep="\n")
        return 1 if result.faults else 0
    folder = RunFolder(Path(arguments[0]))
    if command == "keep":
        report_lost_run(folder)
    else:
        sweep_run(folder, "guard", LAUNCHER_LOST_END, report_end)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
