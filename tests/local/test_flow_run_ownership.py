"""Ownership of a Lease: the flow run that it names, its key in Prefect, and whether that flow run is alive."""

from typing import Any
from uuid import UUID

import pytest
from prefect import flow, get_client
from prefect.client.schemas.objects import State, StateType

from flows.train import train
from tests.doubles.leases import build_lease
from torchyard.model.run import Run
from torchyard.pods import lease_record
from torchyard.tasks.flow_run.ownership import ENTRYPOINT, confirm_flow_run, obtain_key, read_liveness_by_name

pytestmark = pytest.mark.usefixtures("api")


@flow(name="another")
def foreign_flow() -> None:
    """A flow of another project."""


def create_flow_run(flow_function: Any = train, entrypoint: str | None = None) -> str:
    """Create a flow run, of a deployment if an entrypoint is given; return its id."""
    with get_client(sync_client=True) as client:
        if entrypoint is None:
            return str(client.create_flow_run(flow_function).id)
        deployment = client.create_deployment(client.create_flow(flow_function), name="test", entrypoint=entrypoint)
        return str(client.create_flow_run_from_deployment(deployment).id)


def build_sealed_lease(run_id: str, secret: str = "") -> dict[str, Any]:
    """The Lease of a flow run, sealed with `secret`; without a seal if `secret` is empty."""
    run = Run(id=run_id, attempt=1, folder="")
    sealed = build_lease(f"sample-{run.short}", annotations={"torchyard/flow-run": run_id})
    sealed["metadata"]["namespace"] = "default"
    sealed["metadata"]["annotations"][lease_record.SEAL_ANNOTATION] = lease_record.seal_lease(sealed, "default", secret)
    return sealed


def test_run_has_one_key() -> None:
    """Every process that owns the run gets the same key, and another run gets another key."""
    first = create_flow_run()
    second = create_flow_run()
    assert len(obtain_key(first)) == 64
    assert obtain_key(first) == obtain_key(first)
    assert obtain_key(first) != obtain_key(second)


def test_run_of_another_server_has_no_key() -> None:
    """The key of a run of another Prefect server is empty, and the request for it raises nothing."""
    assert (obtain_key("0190c7f0-0000-7000-8000-0000a1b2c3d4"), obtain_key("x")) == ("", "")


def test_sealed_lease_names_its_run() -> None:
    """A Lease that names a flow run with a key is confirmed only if it has the seal of that key."""
    run_id = create_flow_run()
    key = obtain_key(run_id)
    assert confirm_flow_run(build_sealed_lease(run_id, key)) == run_id
    assert confirm_flow_run(build_sealed_lease(run_id)) is None
    assert confirm_flow_run(build_sealed_lease(run_id, "b" * 64)) is None
    moved = build_sealed_lease(run_id, key)
    moved["metadata"]["namespace"] = "mine"
    assert confirm_flow_run(moved) is None


@pytest.mark.parametrize(
    ("flow_function", "entrypoint", "is_confirmed"),
    [
        (train, ENTRYPOINT, True),
        (train, "flows/evil.py:train", False),
        (train, None, False),
        (foreign_flow, ENTRYPOINT, False),
    ],
)
def test_run_without_a_key_must_be_of_our_deployment(
    flow_function: Any, entrypoint: str | None, is_confirmed: bool
) -> None:
    """A flow run without a key must belong to the flow `train` and to one of our deployments."""
    run_id = create_flow_run(flow_function, entrypoint)
    assert confirm_flow_run(build_sealed_lease(run_id)) == (run_id if is_confirmed else None)


def test_flow_run_must_match_the_name_of_the_run() -> None:
    """A Lease is not confirmed if the name of its run does not end with the id of the flow run."""
    mismatched = build_sealed_lease(create_flow_run(train, ENTRYPOINT))
    mismatched["metadata"]["annotations"]["torchyard/flow-run"] = create_flow_run(train, ENTRYPOINT)
    assert confirm_flow_run(mismatched) is None


def test_living_run_is_found_by_its_name() -> None:
    """A run without a Lease counts as alive if the id of a living flow run matches the end of the run's name."""
    run_id = create_flow_run()
    name = f"sample-{Run(id=run_id, attempt=1, folder='').short}"
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(UUID(run_id), State(type=StateType.RUNNING), force=True)
        assert read_liveness_by_name(name) == "Prefect reports it as Running"
        assert read_liveness_by_name("sample-00000000") is None
        client.set_flow_run_state(UUID(run_id), State(type=StateType.CRASHED), force=True)
    assert read_liveness_by_name(name) is None
