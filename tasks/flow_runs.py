"""What Prefect alone knows of a run: the key of its seals, and whether a flow run is the one that a Lease names.

Nothing here raises: a Prefect that is away has no key to give, and confirms nothing.
"""

import contextvars
import secrets
import threading
from typing import Any
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName, FlowRunFilter, FlowRunFilterState
from prefect.client.schemas.filters import FlowRunFilterStateType as StateTypes
from prefect.client.schemas.objects import FlowRun, StateType

from torchyard.common.log import log
from torchyard.model.run import Run
from torchyard.pods import lease_record

KEY = "torchyard.key"  # the label of a flow run
FLOW, ENTRYPOINT = "train", "flows/train.py:train"
TIMEOUT_S, PATIENCE_S = 5.0, 10.0  # of a request; of all that is asked at once
LIVING = [StateType.RUNNING, StateType.CANCELLING, StateType.PENDING, StateType.PAUSED]
PAGE = 200


def obtain_key(run_id: str) -> str:
    """The key of a run: made where it has none yet; empty where Prefect does not answer soon."""
    found: list[str] = []
    ask = contextvars.copy_context().run  # Prefect's settings live in the context
    thread = threading.Thread(target=lambda: found.append(ask(_obtain_key, run_id)), daemon=True, name="run-key")
    thread.start()
    thread.join(PATIENCE_S)
    return found[0] if found else ""


def _obtain_key(run_id: str) -> str:
    try:
        with _client() as client:
            flow_run = client.read_flow_run(UUID(run_id))
            if not _key(flow_run):
                client.update_flow_run_labels(flow_run.id, {KEY: secrets.token_hex(32)})
                flow_run = client.read_flow_run(flow_run.id)  # of two processes at once, one key counts
            return _key(flow_run)
    except Exception as error:
        log().debug("flow run %s has no key: %s", run_id, error)
        return ""


def named_by(lease: lease_record.Lease) -> str:
    """The id of the flow run that a Lease names; empty unless Prefect confirms that it is this run's.

    Its key must fit the Lease's seal. One without a key, of a version before, must be of a deployment of ours.
    """
    run_id = lease_record.flow_run(lease)
    try:
        with _client() as client:
            flow_run = client.read_flow_run(UUID(run_id))
            if client.read_flow(flow_run.flow_id).name != FLOW:
                return ""
            if secret := _key(flow_run):
                return run_id if lease_record.is_sealed(lease, secret) else ""
            deployment = flow_run.deployment_id and client.read_deployment(flow_run.deployment_id)
            return run_id if deployment and deployment.entrypoint == ENTRYPOINT else ""
    except Exception as error:
        log().debug("flow run %s is not confirmed: %s", run_id, error)
        return ""


def alive_by_name(run: str) -> str:
    """Why a run may be alive of which only the name is known; empty where Prefect knows no living one that fits."""
    states = FlowRunFilter(state=FlowRunFilterState(type=StateTypes(any_=LIVING)))
    flows, offset = FlowFilter(name=FlowFilterName(any_=[FLOW])), 0
    try:
        with _client() as client:
            while found := client.read_flow_runs(flow_filter=flows, flow_run_filter=states, limit=PAGE, offset=offset):
                for each in found:
                    if run.endswith(f"-{Run(id=str(each.id), attempt=1, folder='').short}"):
                        return f"Prefect calls it {each.state_name}"
                offset += len(found)
    except Exception as error:
        return f"Prefect cannot be asked: {error}"
    return ""


def _key(flow_run: FlowRun) -> str:
    return str((flow_run.labels or {}).get(KEY) or "")


def _client() -> Any:
    return get_client(sync_client=True, httpx_settings={"timeout": TIMEOUT_S})
