"""The state of a run in Prefect: how an end is shown, and what is set if no process of the run is alive."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
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
    retry_if_not_exception_type,
    stop_after_delay,
    wait_fixed,
    wait_random,
)

from torchyard.common.log import get_log
from torchyard.common.pool import read_pool
from torchyard.model.result import RunResult
from torchyard.run.resume import CRASHED, LOST_MESSAGE, ReportedState, count_requests, is_requested_again

CALL_TIMEOUT_S = 5.0  # of one call to Prefect
Result = TypeVar("Result")
_TRANSIENT_STATUSES = (401, 403, 408, 429)  # below 500, but may change a moment later
_REPORT_TIMEOUT_S = 30.0  # how long the report of an end is retried while Prefect is unreachable


def build_final_state(end: str, sentence: str, result: RunResult | None = None) -> State[Any]:
    """The Prefect state of an end; of a success with its result, which callers of the flow get.

    An intended end is never *named* Crashed: that is the name of a run that is lost and will be resumed.
    """
    state_types = {"succeeded": StateType.COMPLETED, "failed": StateType.FAILED, "cancelled": StateType.CANCELLED}
    name = {"succeeded": "Completed", "gave-up": "GaveUp"}.get(end, end.title())
    state_type = state_types.get(end, StateType.CRASHED)
    # The data of a failed state would be taken for its exception.
    return State(
        type=state_type, name=name, message=sentence, data=result if state_type == StateType.COMPLETED else None
    )


@contextlib.contextmanager
def open_bounded_client() -> Iterator[SyncPrefectClient]:
    """A client whose calls end within seconds: Prefect's own repeats each for a minute if its server is busy."""
    httpx_settings = {"timeout": CALL_TIMEOUT_S, "event_hooks": {"response": [_disable_retry_delay]}}
    with (
        temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
        get_client(sync_client=True, httpx_settings=httpx_settings) as client,
    ):
        yield client


def _disable_retry_delay(response: Response) -> None:
    """Without this header Prefect's client waits two seconds before it tells that the server is busy."""
    response.headers.setdefault("Retry-After", "0")


def retry_while_busy(call: Callable[[], Result]) -> Result:
    """Make a call to Prefect again for some seconds: on SQLite it refuses one in several while another one writes."""
    retrying = Retrying(
        stop=stop_after_delay(CALL_TIMEOUT_S),
        wait=wait_random(0.05, 0.3),
        retry=retry_if_exception(is_transient_error),
        reraise=True,
    )
    return retrying(call)


def is_transient_error(error: BaseException) -> bool:
    """Whether the same call may succeed later."""
    if isinstance(error, HTTPStatusError):
        return error.response.status_code >= 500 or error.response.status_code in _TRANSIENT_STATUSES
    return isinstance(error, TransportError)


def get_flow_run_pool() -> str:
    """The work pool of this flow run; of a process that no worker has started, its installation's."""
    context = FlowRunContext.get()
    return (context.flow_run.work_pool_name if context and context.flow_run else None) or read_pool()


def read_liveness(run_id: str) -> str:
    """A run's state if Prefect says that it may be alive; empty if it has ended, is scheduled or is unknown.

    If Prefect does not answer, the run may be alive.
    """
    try:
        with open_bounded_client() as client:
            state = client.read_flow_run(UUID(run_id)).state
    except (ObjectNotFound, ValueError):
        return ""
    except Exception as error:
        return f"Prefect cannot be asked: {error}"
    return "" if state is None or state.is_final() or state.is_scheduled() else state.name or "alive"


def is_cancelled(state: State[Any] | None) -> bool:
    """Whether a user has cancelled the run."""
    return state is not None and (state.is_cancelling() or state.is_cancelled())


def is_handed_on() -> bool:
    """Whether Prefect starts this flow run again elsewhere after a SIGTERM: so it is with a pod that is evicted."""
    return os.environ.get("PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR", "").lower() in ("reschedule", "relinquish")


def list_ancestors(client: SyncPrefectClient, run: FlowRun) -> tuple[UUID, ...]:
    """The flow runs that have started this one, as a subflow or through its deployment: the nearest first."""
    ancestor_ids = list[UUID]()
    while run.parent_task_run_id and (parent_id := client.read_task_run(run.parent_task_run_id).flow_run_id):
        ancestor_ids.append(parent_id)
        run = client.read_flow_run(parent_id)
    return tuple(ancestor_ids)


def to_reported_state(state: State[Any] | None) -> ReportedState:
    """A state of Prefect as a plain value."""
    if state is None:
        return ReportedState("", "")
    return ReportedState(
        state.type.value, state.name or "", state.message or "", time.time() - state.timestamp.timestamp()
    )


def has_user_request(run_id: str) -> bool:
    """Whether a user asked for a run again since it ended; False if Prefect does not answer."""
    try:
        return is_requested_again(read_reported_states(run_id))
    except Exception as error:
        get_log().warning("Prefect does not say whether a user asked for this run again: %s", error)
        return False


def count_user_requests(run_id: str) -> int:
    """How often a user asked for a run again; Prefect's own error if it does not answer."""
    return count_requests(read_reported_states(run_id))


def read_reported_states(run_id: str) -> list[ReportedState]:
    """All states of a run, the oldest first; Prefect's own error if it does not answer."""
    with open_bounded_client() as client:
        return [to_reported_state(state) for state in client.read_flow_run_states(UUID(run_id))]


def report_state(run_id: str, state: State[Any], run_count: int | None = None) -> None:
    """Set the state of a flow run without a living process, which would stay Running or Crashed for ever.

    With `count`, only if no process has started the run again since.
    """
    try:
        _set_flow_run_state(run_id, state, run_count)
    except Exception as error:
        get_log().debug("the state of flow run %s was not set: %s", run_id, error)


@retry(
    stop=stop_after_delay(_REPORT_TIMEOUT_S),
    wait=wait_fixed(1),
    retry=retry_if_not_exception_type((ObjectNotFound, ValueError)),
)
def _set_flow_run_state(run_id: str, state: State[Any], run_count: int | None) -> None:
    with open_bounded_client() as client:
        flow_run: FlowRun = client.read_flow_run(UUID(run_id))
        current = flow_run.state
        is_settled = current is None or (current.is_final() and current.name != CRASHED) or current.name == state.name
        if not is_settled and run_count in (None, flow_run.run_count):
            client.set_flow_run_state(flow_run.id, state, force=True)


def delete_runs_with_same_end(end: State[Any]) -> None:
    """Delete the earlier runs of this flow run's deployment that ended like this one: they fill the list of runs."""
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
        get_log().debug("earlier runs were not deleted: %s", error)


def reschedule_run(run_id: str) -> bool:
    """Schedule a deployment's run in this pool again if its state is still named Crashed."""
    try:
        with open_bounded_client() as client:
            flow_run: FlowRun = client.read_flow_run(UUID(run_id))
            is_ours = flow_run.deployment_id is not None and flow_run.work_pool_name == get_flow_run_pool()
            if not is_ours or flow_run.state_name != CRASHED:
                return False
            client.set_flow_run_state(flow_run.id, Scheduled(message=LOST_MESSAGE), force=True)
    except Exception as error:
        get_log().debug("flow run %s was not scheduled: %s", run_id, error)
        return False
    return True


def report_end(run_id: str, end: str, sentence: str) -> None:
    """Report to Prefect how a run ended that no process owns."""
    report_state(run_id, build_final_state(end, sentence))
