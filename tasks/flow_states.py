"""The state of a run in Prefect: how an end is shown, and what is set where no process of the run is alive."""

from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Scheduled

from torchyard.common.log import log
from torchyard.run.resume import CRASHED, LOST


def ended(end: str, sentence: str) -> State[Any]:
    """The Prefect state of an end.

    A meant end is never *named* Crashed: that is the name of a run that is lost and comes back.
    """
    kinds = {"succeeded": StateType.COMPLETED, "failed": StateType.FAILED, "cancelled": StateType.CANCELLED}
    name = {"succeeded": "Completed", "gave-up": "GaveUp"}.get(end, end.title())
    return State(type=kinds.get(end, StateType.CRASHED), name=name, message=sentence)


def alive(run_id: str) -> str:
    """Its state, where a run may be alive by Prefect's word; empty where it has ended, waits or is unknown.

    A Prefect server that does not answer may know that it is alive.
    """
    try:
        with get_client(sync_client=True, httpx_settings={"timeout": 5}) as client:
            state = client.read_flow_run(UUID(run_id)).state
    except (ObjectNotFound, ValueError):
        return ""
    except Exception as error:
        return f"Prefect cannot be asked: {error}"
    return "" if state is None or state.is_final() or state.is_scheduled() else state.name or "alive"


def tell(run_id: str, state: State[Any], count: int | None = None) -> None:
    """Set the state of the flow run, which would stay Running or Crashed for ever: nobody lives who would end it.

    With `count`, only if nobody has begun the run again since.
    """
    try:
        with get_client(sync_client=True, httpx_settings={"timeout": 5}) as client:
            flow_run: FlowRun = client.read_flow_run(UUID(run_id))
            now = flow_run.state
            over = now is None or (now.is_final() and now.name != CRASHED) or now.name == state.name
            if not over and count in (None, flow_run.run_count):
                client.set_flow_run_state(flow_run.id, state, force=True)
    except Exception as error:
        log().debug("flow run %s was not told: %s", run_id, error)


def revive(run_id: str) -> bool:
    """Schedule a run of a deployment that is still Crashed by that very name."""
    try:
        with get_client(sync_client=True, httpx_settings={"timeout": 5}) as client:
            flow_run: FlowRun = client.read_flow_run(UUID(run_id))
            if flow_run.deployment_id is None or flow_run.state_name != CRASHED:
                return False
            client.set_flow_run_state(flow_run.id, Scheduled(message=LOST), force=True)
    except Exception as error:
        log().debug("flow run %s was not scheduled: %s", run_id, error)
        return False
    return True


def tell_end(run_id: str, end: str, sentence: str) -> None:
    """Tell Prefect how a run has ended that no process carries."""
    tell(run_id, ended(end, sentence))
