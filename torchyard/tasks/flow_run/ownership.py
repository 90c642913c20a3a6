"""What only Prefect knows about a run: the key of its seals, and whether a flow run is the one that a Lease names.

Nothing here raises: an unreachable Prefect gives no key and confirms nothing.
"""

import contextvars
import secrets
import threading
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowFilterName, FlowRunFilter, FlowRunFilterState
from prefect.client.schemas.filters import FlowRunFilterStateType as StateTypes
from prefect.client.schemas.objects import FlowRun, StateType

from torchyard.common.log import get_log
from torchyard.model.run import Run
from torchyard.pods import lease_record

from .states import open_bounded_client, retry_while_busy

_KEY_LABEL = "torchyard.key"  # the label of a flow run
_FLOW_NAME, _ENTRYPOINT = "train", "flows/train.py:train"
_KEY_TIMEOUT_S = 10.0  # of all requests for a key
_LIVING_STATES = [StateType.RUNNING, StateType.CANCELLING, StateType.PENDING, StateType.PAUSED]
_RUNS_PER_PAGE = 200
_flow_run_ids: dict[str, str] = {}  # of runs inside a flow of a user's own


def register_flow_run(run_id: str, flow_run_id: str) -> None:
    """Say which flow run holds the key of a run that is not a flow run itself."""
    _flow_run_ids[run_id] = flow_run_id


def obtain_key(run_id: str) -> str:
    """The key of a run, made if it has none yet; empty if Prefect does not answer soon."""
    keys: list[str] = []
    run_id = _flow_run_ids.get(run_id, run_id)
    run_in_context = contextvars.copy_context().run  # Prefect's settings live in the context
    thread = threading.Thread(
        target=lambda: keys.append(run_in_context(_request_key, run_id)), daemon=True, name="run-key"
    )
    thread.start()
    thread.join(_KEY_TIMEOUT_S)
    return keys[0] if keys else ""


def _request_key(run_id: str) -> str:
    try:
        with open_bounded_client() as client:
            return retry_while_busy(lambda: _read_or_create_key(client, UUID(run_id)))
    except Exception as error:
        get_log().debug("flow run %s has no key: %s", run_id, error)
        return ""


def _read_or_create_key(client: SyncPrefectClient, run_id: UUID) -> str:
    flow_run = client.read_flow_run(run_id)
    if not _read_key(flow_run):
        client.update_flow_run_labels(run_id, {_KEY_LABEL: secrets.token_hex(32)})
        flow_run = client.read_flow_run(run_id)  # if two processes do this at once, one key counts
    return _read_key(flow_run)


def confirm_flow_run(lease: lease_record.LeaseObject) -> str:
    """The id of the flow run that a Lease names; empty unless Prefect confirms that it is this run's.

    Its key must match the Lease's seal. A run of an earlier version has no key and must belong to our deployments.
    """
    run_id = lease_record.read_flow_run_id(lease)
    try:
        with open_bounded_client() as client:
            flow_run = client.read_flow_run(UUID(run_id))
            if client.read_flow(flow_run.flow_id).name != _FLOW_NAME:
                return ""
            if key := _read_key(flow_run):
                return run_id if lease_record.is_sealed_lease(lease, key) else ""
            deployment = flow_run.deployment_id and client.read_deployment(flow_run.deployment_id)
            return run_id if deployment and deployment.entrypoint == _ENTRYPOINT else ""
    except Exception as error:
        get_log().debug("flow run %s is not confirmed: %s", run_id, error)
        return ""


def read_liveness_by_name(run: str) -> str:
    """Why a run that is known only by name may be alive; empty if Prefect knows no living run of that name."""
    state_filter = FlowRunFilter(state=FlowRunFilterState(type=StateTypes(any_=_LIVING_STATES)))
    flow_filter, offset = FlowFilter(name=FlowFilterName(any_=[_FLOW_NAME])), 0
    try:
        with open_bounded_client() as client:
            while flow_runs := client.read_flow_runs(
                flow_filter=flow_filter, flow_run_filter=state_filter, limit=_RUNS_PER_PAGE, offset=offset
            ):
                for flow_run in flow_runs:
                    if run.endswith(f"-{Run(id=str(flow_run.id), attempt=1, folder='').short}"):
                        return f"Prefect calls it {flow_run.state_name}"
                offset += len(flow_runs)
    except Exception as error:
        return f"Prefect cannot be asked: {error}"
    return ""


def _read_key(flow_run: FlowRun) -> str:
    return str((flow_run.labels or {}).get(_KEY_LABEL) or "")
