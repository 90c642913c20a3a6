"""The contract that the fake Prefect server keeps, against a real server with an empty database."""

from collections.abc import Iterator
from uuid import UUID

import pytest
from prefect import flow, get_client
from prefect.client.schemas.objects import State, StateType

from tests.contracts.prefect_server import PrefectContract
from tests.processes.prefect_servers import prefect_server, use_prefect_server


@flow
def contract() -> None:
    """A flow whose runs are only created."""


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A real server, which this process uses during the tests of this file."""
    with prefect_server(tmp_path_factory.mktemp("prefect")) as variables, use_prefect_server(variables):
        yield


class TestRealPrefectServer(PrefectContract):
    """The contract, against a real Prefect server."""

    @pytest.fixture
    def run_id(self) -> UUID:
        running: State[None] = State(type=StateType.RUNNING, name="Running")
        with get_client(sync_client=True) as client:
            return client.create_flow_run(contract, state=running).id


def test_each_process_has_a_state_running() -> None:
    """A flow run has as many states Running as its run count, as a run's journal and `is_requested_again` assume."""
    state_types = [StateType.PENDING, StateType.RUNNING, StateType.CRASHED, StateType.SCHEDULED]
    with get_client(sync_client=True) as client:
        run_id = client.create_flow_run(contract).id
        for state_type in [*state_types, *state_types[:2], StateType.PAUSED, StateType.RUNNING]:
            client.set_flow_run_state(run_id, State[None](type=state_type), force=True)
        run_count = client.read_flow_run(run_id).run_count
        states = client.read_flow_run_states(run_id)
    assert (run_count, sum(state.is_running() for state in states)) == (3, 3)
