"""What only Prefect can confirm about a run: the key of its seals, and whether a flow run is the one a Lease names.

Nothing here raises: without an answer from Prefect there is no key, and no flow run is confirmed.
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
_FLOW_NAME = "train"
ENTRYPOINT = "flows/train.py:train"
_KEY_TIMEOUT_S = 10.0  # of all requests for a key
_LIVING_STATES = [StateType.RUNNING, StateType.CANCELLING, StateType.PENDING, StateType.PAUSED]
_RUNS_PER_PAGE = 200
_flow_run_ids: dict[str, str] = {}  # run id -> flow run id, of runs inside a user's own flow


def register_flow_run(run_id: str, flow_run_id: str) -> None:
    """Register the flow run that stores the key of a run that is not a flow run itself."""
    _flow_run_ids[run_id] = flow_run_id


def obtain_key(run_id: str, *, timeout_s: float = _KEY_TIMEOUT_S) -> str:
    """The key of a run, created if it has none yet; empty if Prefect does not respond within `timeout_s`.

    The request runs on a daemon thread, so that a server that hangs cannot delay the run for longer.
    """
    keys: list[str] = []
    flow_run_id = _flow_run_ids.get(run_id, run_id)
    run_in_context = contextvars.copy_context().run  # Prefect's settings are stored in the context

    def request_key() -> None:
        keys.append(run_in_context(_request_key, flow_run_id))

    thread = threading.Thread(target=request_key, daemon=True, name="run-key")
    thread.start()
    thread.join(timeout_s)
    return keys[0] if keys else ""


def _request_key(flow_run_id: str) -> str:
    """The key of a flow run, created if it has none yet; empty if Prefect cannot be reached or refuses."""
    try:
        with open_bounded_client() as client:
            return retry_while_busy(lambda: _read_or_create_key(client, UUID(flow_run_id)))
    except Exception as error:
        get_log().debug("cannot read the key of flow run %s: %s", flow_run_id, error)
        return ""


def _read_or_create_key(client: SyncPrefectClient, flow_run_id: UUID) -> str:
    flow_run = client.read_flow_run(flow_run_id)
    if not _get_key(flow_run):
        client.update_flow_run_labels(flow_run_id, {_KEY_LABEL: secrets.token_hex(32)})
        # Read again: if two processes create a key at once, both must use the one that Prefect stored last.
        flow_run = client.read_flow_run(flow_run_id)
    return _get_key(flow_run)


def confirm_flow_run(lease: lease_record.LeaseObject) -> str | None:
    """The id of the flow run that a Lease names; None unless Prefect confirms that it belongs to the Lease's run.

    Its key must match the Lease's seal. A flow run without a key must belong to a deployment of this flow.
    """
    run_id = lease_record.read_flow_run_id(lease)
    try:
        with open_bounded_client() as client:
            flow_run = client.read_flow_run(UUID(run_id))
            if client.read_flow(flow_run.flow_id).name != _FLOW_NAME:
                return None
            key = _get_key(flow_run)
            if key:
                return run_id if lease_record.is_sealed_lease(lease, key) else None
            deployment = flow_run.deployment_id and client.read_deployment(flow_run.deployment_id)
            return run_id if deployment and deployment.entrypoint == ENTRYPOINT else None
    except Exception as error:
        get_log().debug("cannot confirm flow run %s: %s", run_id, error)
        return None


def read_liveness_by_name(run: str) -> str | None:
    """Why a run of which only the name is known may be alive; None if Prefect has no unfinished run of that name.

    If Prefect does not respond, the run may be alive.
    """
    state_filter = FlowRunFilter(state=FlowRunFilterState(type=StateTypes(any_=_LIVING_STATES)))
    flow_filter = FlowFilter(name=FlowFilterName(any_=[_FLOW_NAME]))
    offset = 0
    try:
        with open_bounded_client() as client:
            while flow_runs := client.read_flow_runs(
                flow_filter=flow_filter, flow_run_filter=state_filter, limit=_RUNS_PER_PAGE, offset=offset
            ):
                for flow_run in flow_runs:
                    if run.endswith(f"-{Run(id=str(flow_run.id), attempt=1, folder='').short}"):
                        return f"Prefect reports it as {flow_run.state_name}"
                offset += len(flow_runs)
    except Exception as error:
        return f"cannot query Prefect: {error}"
    return None


def _get_key(flow_run: FlowRun) -> str:
    """The key among the flow run's labels; empty if there is none."""
    return str((flow_run.labels or {}).get(_KEY_LABEL) or "")
