"""The behaviour of a Prefect server that this project relies on, as tests.

They run against a real server (tests/local/test_prefect_contract.py) and the fake one (tests/unit/test_contracts.py),
so that a test on the fake server is evidence for the real one. The client is the one that flow runs use.
"""

from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
from httpx import HTTPStatusError
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowRunFilter,
    FlowRunFilterId,
)
from prefect.client.schemas.objects import State, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import ObjectNotFound

from torchyard.tasks.flow_run.states import is_reported_missing, open_bounded_client


class PrefectContract:
    """The contract's tests; a subclass provides the fixture `run_id`, the id of a flow run in the state Running."""

    @pytest.fixture
    def client(self, run_id: UUID) -> Iterator[SyncPrefectClient]:
        assert run_id
        with open_bounded_client() as client:
            yield client

    def test_run_is_read_with_its_state(self, client: SyncPrefectClient, run_id: UUID) -> None:
        """A flow run has its id, the id of its flow, and the type and name of its state."""
        flow_run = client.read_flow_run(run_id)
        assert (flow_run.id, bool(flow_run.flow_id)) == (run_id, True)
        assert flow_run.state
        assert (flow_run.state.type, flow_run.state.name) == (StateType.RUNNING, "Running")

    def test_unknown_run_is_not_found(self, client: SyncPrefectClient) -> None:
        """A 404 with the server's own text proves that a run does not exist on this server."""
        with pytest.raises(ObjectNotFound) as caught:
            client.read_flow_run(uuid4())
        assert is_reported_missing(caught.value)

    def test_unknown_path_proves_nothing(self, client: SyncPrefectClient) -> None:
        """A 404 for a path that the server does not have is not about an object."""
        with pytest.raises(HTTPStatusError) as caught:
            client.request("GET", "/no-such-path")  # type: ignore[arg-type]
        assert not is_reported_missing(caught.value)

    def test_filter_without_a_match_returns_no_run(self, client: SyncPrefectClient) -> None:
        """A filter that no run matches returns an empty list, and not an error."""
        unknown = FlowRunFilter(id=FlowRunFilterId(any_=[uuid4()]))
        assert client.read_flow_runs(flow_run_filter=unknown) == []

    def test_state_is_accepted(self, client: SyncPrefectClient, run_id: UUID) -> None:
        """A state that is set by force is accepted."""
        state: State[None] = State(type=StateType.RUNNING, name="Running", message="still running")
        assert client.set_flow_run_state(run_id, state, force=True).status == SetStateStatus.ACCEPT

    def test_run_is_renamed(self, client: SyncPrefectClient, run_id: UUID) -> None:
        """A change of a flow run's name is accepted."""
        client.update_flow_run(run_id, name="renamed").raise_for_status()

    def test_artifact_is_created_and_updated(self, client: SyncPrefectClient, run_id: UUID) -> None:
        """A created artifact has an id, by which it is updated."""
        artifact = client.create_artifact(
            ArtifactCreate(key="contract", type="markdown", data="first", flow_run_id=run_id)
        )
        assert artifact.key == "contract"
        client.update_artifact(artifact.id, ArtifactUpdate(data="second"))

    def test_artifacts_of_a_run_are_listed(self, client: SyncPrefectClient, run_id: UUID) -> None:
        """The artifacts of a flow run are returned with the key, the type and the data that they were created with."""
        page = ArtifactCreate(type="result", data={"end": "succeeded", "steps": [1, 2]}, flow_run_id=run_id)
        client.create_artifact(page)
        artifacts = client.read_artifacts(
            artifact_filter=ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run_id]))
        )
        assert (None, "result", page.data) in [(item.key, item.type, item.data) for item in artifacts]
        other_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[uuid4()]))
        assert client.read_artifacts(artifact_filter=other_run) == []
