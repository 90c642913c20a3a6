"""The flow runs that a flow run has started: they end with it if a user cancels it."""

from collections.abc import Iterable
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.states import Cancelling

from .states import has_user_request, is_cancelled, open_bounded_client

_LIVE_STATES = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED]


def is_run_cancelled(run_id: str) -> bool:
    """Whether a user has cancelled a flow run. Raises Prefect's own error if the server does not respond."""
    with open_bounded_client() as client:
        return is_cancelled(client.read_flow_run(UUID(run_id)).state)


def cancel_children(client: SyncPrefectClient, parent_ids: Iterable[UUID]) -> list[str]:
    """Cancel the unfinished flow runs that `parent_ids` have started; return their names.

    A child that a user has requested again since it ended belongs to that user and keeps running.
    """
    parent_filter = FlowRunFilterParentFlowRunId(any_=[*parent_ids])
    live_filter = FlowRunFilterState(type=FlowRunFilterStateType(any_=_LIVE_STATES))
    children = client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_flow_run_id=parent_filter, state=live_filter))
    cancellable = [child for child in children if not has_user_request(str(child.id))]
    for child in cancellable:
        client.set_flow_run_state(child.id, Cancelling(message="the run that has started it was cancelled"))
    return [child.name for child in cancellable]
