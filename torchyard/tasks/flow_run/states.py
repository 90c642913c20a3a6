"""A run's state in Prefect: how an end is shown, what is set if no process of the run is alive, and who requested it.

All requests use `open_bounded_client`, whose calls end within `CALL_TIMEOUT_S` instead of Prefect's minutes.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, TypeVar
from uuid import UUID

from httpx import HTTPStatusError, Response, TransportError
from prefect import get_client, runtime
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Scheduled
from tenacity import (
    Retrying,
    retry,
    retry_if_exception,
    stop_after_delay,
    wait_fixed,
    wait_random,
)

from torchyard.common.json_text import parse_json
from torchyard.common.log import get_log
from torchyard.common.pool import read_pool
from torchyard.model.errors import PrefectError
from torchyard.model.run import End, RunEnd, RunResult
from torchyard.run.resume import (
    CRASHED,
    LEFT_MESSAGE,
    LOST_MESSAGE,
    ReportedState,
    choose_pause_s,
    is_requested_again,
)

CALL_TIMEOUT_S = 5.0  # for one request to Prefect
Result = TypeVar("Result")
_ENDS_BY_TYPE: dict[StateType, End] = {
    StateType.COMPLETED: "succeeded",
    StateType.FAILED: "failed",
    StateType.CANCELLED: "cancelled",
}
_TRANSIENT_STATUSES = (401, 403, 408, 429)  # below 500, but may change a moment later
_UNKNOWN_PATH = "Not Found"  # the detail of FastAPI's 404
_DATE_RESOLUTION_S = 2.0  # of a response's date, and the time that the response takes
_REPORT_TIMEOUT_S = 30.0  # for retrying the report of an end while Prefect is unreachable


def build_final_state(end: str, sentence: str, result: RunResult | None = None) -> State[Any]:
    """The Prefect state of an end. The state of a success contains `result`, which callers of the flow get.

    An intended end is never *named* Crashed: that is the name of a run that was lost and will be resumed.
    """
    state_types = {"succeeded": StateType.COMPLETED, "failed": StateType.FAILED, "cancelled": StateType.CANCELLED}
    name = {"succeeded": "Completed", "gave-up": "GaveUp"}.get(end, end.title())
    state_type = state_types.get(end, StateType.CRASHED)
    data = result if state_type == StateType.COMPLETED else None  # Prefect would raise a failed state's data
    return State(type=state_type, name=name, message=sentence, data=data)


class _ServerClock:
    """Prefect's clock: this machine's may be hours ahead of it or behind.

    Measured by the `Date` of Prefect's last response, which has whole seconds: a smaller difference than
    `_DATE_RESOLUTION_S` counts as none.
    """

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def measure(self, response: Response) -> None:
        """Compare the clocks by a response; one without a valid date changes nothing."""
        try:
            date = parsedate_to_datetime(response.headers["Date"])
        except (KeyError, ValueError):
            return
        ahead_s = date.timestamp() - time.time()
        self._ahead_s = ahead_s if abs(ahead_s) > _DATE_RESOLUTION_S else 0.0

    def now(self) -> float:
        return time.time() + self._ahead_s


_server_clock = _ServerClock()


class NotRecordedError(Exception):
    """Prefect has not recorded the end of a task run yet."""


@contextlib.contextmanager
def open_bounded_client() -> Iterator[SyncPrefectClient]:
    """Open a client whose calls end within seconds: Prefect's default repeats each for a minute if the server is busy.

    Calls raise the errors of httpx and Prefect.
    """
    hooks = [_disable_retry_delay, _server_clock.measure]
    httpx_settings = {"timeout": CALL_TIMEOUT_S, "event_hooks": {"response": hooks}}
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
        get_client(sync_client=True, httpx_settings=httpx_settings) as client,
    ):
        yield client


def _disable_retry_delay(response: Response) -> None:
    """Set the header without which Prefect's client waits two seconds before it reports that the server is busy."""
    response.headers.setdefault("Retry-After", "0")


def read_server_time() -> float:
    """The time by Prefect's clock, in seconds since the epoch, as its last response has shown it."""
    return _server_clock.now()


def retry_while_busy(call: Callable[[], Result]) -> Result:
    """Repeat a call to Prefect for `CALL_TIMEOUT_S`: on SQLite it refuses some calls while another one writes.

    Raises the last error if it stays busy, and any other error immediately.
    """
    retrying = Retrying(
        stop=stop_after_delay(CALL_TIMEOUT_S),
        wait=wait_random(0.05, 0.3),
        retry=retry_if_exception(is_transient_error),
        reraise=True,
    )
    return retrying(call)


def is_transient_error(error: BaseException) -> bool:
    """Whether the same call may succeed later.

    The server is unreachable, busy or broken, has not authorized the call, or has not recorded yet what it needs.
    """
    if isinstance(error, HTTPStatusError):
        status = error.response.status_code
        if status == HTTPStatus.NOT_FOUND:
            return not is_reported_missing(error)
        return status >= 500 or status in _TRANSIENT_STATUSES
    return isinstance(error, TransportError | NotRecordedError)


def is_reported_missing(error: BaseException) -> bool:
    """Whether Prefect itself reports that an object does not exist.

    Its client raises ObjectNotFound for every 404. Prefect's own one names the object in `detail`; one of a proxy does
    not, nor does one of its web framework for an unknown path, and neither proves anything.
    """
    if isinstance(error, ObjectNotFound):
        error = error.http_exc
    if not isinstance(error, HTTPStatusError) or error.response.status_code != HTTPStatus.NOT_FOUND:
        return False
    try:
        body = parse_json(error.response.content)
    except ValueError:
        return False
    detail = body.get("detail") if isinstance(body, dict) else None
    return isinstance(detail, str) and detail not in ("", _UNKNOWN_PATH)


def get_flow_run_pool() -> str:
    """The work pool of this flow run; the installation's pool in a process that no worker has started."""
    context = FlowRunContext.get()
    pool = context.flow_run.work_pool_name if context and context.flow_run else None
    return pool or read_pool()


def read_liveness(run_id: str) -> str | None:
    """Why a run may be alive: its state's name, or that Prefect does not respond.

    None if the run has ended, is scheduled, or does not exist on this server: a 404 of a proxy does not prove that.
    """
    flow_run_id = parse_flow_run_id(run_id)
    if flow_run_id is None:
        return None
    try:
        with open_bounded_client() as client:
            state = client.read_flow_run(flow_run_id).state
    except Exception as error:  # also the ValueError of a login page in place of a response
        if is_reported_missing(error):
            return None
        return f"cannot query Prefect: {error}"
    if state is None or state.is_final() or state.is_scheduled():
        return None
    return state.name or "alive"


def read_reported_end(flow_run_id: str) -> RunEnd | None:
    """How a flow run has ended; None if it has not, was lost, or is unknown to Prefect.

    Raises PrefectError if Prefect cannot be queried.
    """
    parsed_id = parse_flow_run_id(flow_run_id)
    if parsed_id is None:
        return None
    try:
        with open_bounded_client() as client:
            state = client.read_flow_run(parsed_id).state
    except Exception as error:
        if is_reported_missing(error):
            return None
        raise PrefectError(f"cannot find out from Prefect whether a run has ended elsewhere: {error}") from error
    if state is None or not state.is_final() or state.name == CRASHED:
        return None
    end = _ENDS_BY_TYPE.get(state.type, "swept")
    return RunEnd(end, f"it ended elsewhere: {state.message or state.name}")


def parse_flow_run_id(run_id: str) -> UUID | None:
    """The id of a flow run; None for that of a run without Prefect."""
    try:
        return UUID(run_id)
    except ValueError:
        return None


def is_cancelled(state: State[Any] | None) -> bool:
    """Whether a user has cancelled the run."""
    return state is not None and (state.is_cancelling() or state.is_cancelled())


def will_be_resumed() -> bool:
    """Whether Prefect starts this flow run again elsewhere after a SIGTERM, as it does if a pod is evicted."""
    return os.environ.get("PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR", "").lower() in ("reschedule", "relinquish")


def list_ancestors(client: SyncPrefectClient, run: FlowRun) -> tuple[UUID, ...]:
    """The ids of the flow runs that have started this one, as a subflow or through its deployment; the parent first."""
    ancestor_ids: list[UUID] = []
    while run.parent_task_run_id:
        parent_id = client.read_task_run(run.parent_task_run_id).flow_run_id
        if parent_id is None:  # the task was called outside of a flow
            break
        ancestor_ids.append(parent_id)
        run = client.read_flow_run(parent_id)
    return tuple(ancestor_ids)


def to_reported_state(state: State[Any] | None) -> ReportedState:
    """Convert a state of Prefect to the plain value that torchyard.run uses."""
    if state is None:
        return ReportedState("", "")
    set_at = state.timestamp.timestamp()
    age_s = read_server_time() - set_at
    return ReportedState(state.type.value, state.name or "", state.message or "", age_s, set_at)


def has_user_request(run_id: str, active_count: int) -> bool:
    """Whether a user has requested a run again (`is_requested_again`); False if Prefect does not respond."""
    try:
        return is_requested_again(read_reported_states(run_id), active_count)
    except Exception as error:
        get_log().warning("cannot read from Prefect whether a user has requested this run again: %s", error)
        return False


def read_reported_states(run_id: str) -> list[ReportedState]:
    """All states of a run, the oldest first. Raises Prefect's own error if the server does not respond."""
    with open_bounded_client() as client:
        return [to_reported_state(state) for state in client.read_flow_run_states(UUID(run_id))]


def report_state(run_id: str, state: State[Any], run_count: int | None = None) -> None:
    """Set the state of a flow run that has no living process and would stay Running or Crashed forever.

    `run_count`: set it only if the flow run has been started this many times, so that a process that has resumed the
    run meanwhile keeps its state. A state that has ended, other than Crashed, is not overwritten. Nothing is raised:
    after `_REPORT_TIMEOUT_S` without success the state stays as it is.
    """
    try:
        _set_flow_run_state(run_id, state, run_count)
    except Exception as error:
        get_log().debug("cannot set the state of flow run %s: %s", run_id, error)


@retry(
    stop=stop_after_delay(_REPORT_TIMEOUT_S),
    wait=wait_fixed(1),
    retry=retry_if_exception(lambda error: not isinstance(error, ValueError) and not is_reported_missing(error)),
)
def _set_flow_run_state(run_id: str, state: State[Any], run_count: int | None) -> None:
    with open_bounded_client() as client:
        flow_run: FlowRun = client.read_flow_run(UUID(run_id))
        current = flow_run.state
        is_settled = current is None or (current.is_final() and current.name != CRASHED) or current.name == state.name
        if not is_settled and run_count in (None, flow_run.run_count):
            client.set_flow_run_state(flow_run.id, state, force=True)


def delete_runs_with_same_end(end: State[Any]) -> None:
    """Delete the earlier runs of this flow run's deployment with the same end: they would fill the list of runs.

    An end is the same if the state's type and message are. An unreachable server leaves them.
    """
    if not runtime.deployment.id:
        return
    same_end_filter = FlowRunFilter(
        deployment_id=FlowRunFilterDeploymentId(any_=[UUID(runtime.deployment.id)]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[end.type])),
    )
    try:
        with open_bounded_client() as client:
            for run in client.read_flow_runs(flow_run_filter=same_end_filter):
                if run.state and run.state.message == end.message and str(run.id) != str(runtime.flow_run.id):
                    client.delete_flow_run(run.id)
    except Exception as error:
        get_log().debug("cannot delete earlier runs: %s", error)


def reschedule_run(run_id: str) -> bool:
    """Schedule a flow run again if it is a deployment's in this work pool, and its state is still named Crashed.

    Return whether it was scheduled; False also if the server cannot be reached.
    """
    try:
        with open_bounded_client() as client:
            flow_run: FlowRun = client.read_flow_run(UUID(run_id))
            is_in_pool = flow_run.deployment_id is not None and flow_run.work_pool_name == get_flow_run_pool()
            if not is_in_pool or flow_run.state_name != CRASHED:
                return False
            return resume_flow_run(client, flow_run.id, LOST_MESSAGE)
    except Exception as error:
        get_log().debug("cannot schedule flow run %s: %s", run_id, error)
        return False


def resume_flow_run(
    client: SyncPrefectClient, flow_run_id: UUID, message: str, *, lease_s: float | None = None
) -> bool:
    """Schedule a run that has lost its process; return False if it is already scheduled, or running.

    It is scheduled at once, or after a pause if its processes leave repeatedly (`choose_pause_s`), which counts from
    the run's last state by Prefect's clock. `message`: of the state without a pause. Raises Prefect's own errors.
    """
    states = [to_reported_state(state) for state in client.read_flow_run_states(flow_run_id)]
    if not states or states[-1].kind in ("SCHEDULED", "RUNNING"):
        return False
    pause_s = choose_pause_s(states, lease_s)
    scheduled_at = datetime.fromtimestamp(states[-1].set_at + pause_s, UTC)
    state_message = LEFT_MESSAGE if pause_s else message
    scheduled_state: State[Any] = Scheduled(scheduled_time=scheduled_at, message=state_message)
    client.set_flow_run_state(flow_run_id, scheduled_state, force=True)
    return True


def report_end(run_id: str, end: str, sentence: str) -> None:
    """Report to Prefect how a run without a process has ended."""
    report_state(run_id, build_final_state(end, sentence))
