"""The flow runs that a flow run has started: they end with it if a person cancels it."""

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
    """Whether a user has cancelled a flow run; Prefect's own error if it does not answer."""
    with open_bounded_client() as client:
        return is_cancelled(client.read_flow_run(UUID(run_id)).state)


def cancel_children(client: SyncPrefectClient, parent_ids: Iterable[UUID]) -> list[str]:
    """Cancel the flow runs that these have started and that have not ended; returns their names.

    A run that a user has asked for again since it ended is the user's, and goes on.
    """
    parent_filter = FlowRunFilterParentFlowRunId(any_=[*parent_ids])
    live_filter = FlowRunFilterState(type=FlowRunFilterStateType(any_=_LIVE_STATES))
    children = client.read_flow_runs(flow_run_filter=FlowRunFilter(parent_flow_run_id=parent_filter, state=live_filter))
    cancellable = [child for child in children if not has_user_request(str(child.id))]
    for child in cancellable:
        client.set_flow_run_state(child.id, Cancelling(message="the run that has started it was cancelled"))
    return [child.name for child in cancellable]
