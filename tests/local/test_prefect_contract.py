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
