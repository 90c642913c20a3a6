"""The kinds that an API server serves: by one request for each root, or one for each group of an old server."""

import pytest

from tests.doubles.fake_api import FakeApi
from torchyard.cluster.listing import list_kinds
from torchyard.kube.client import Client

PYTORCHJOB = ("kubeflow.org/v1", "PyTorchJob")


@pytest.fixture
def old_server(fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not know aggregated discovery."""
    monkeypatch.setattr(fake_api, "aggregate", lambda request: None)


def test_kinds_are_discovered_by_two_requests(fake_api: FakeApi, fake_server: Client) -> None:
    """Two requests find all namespaced kinds that can be listed, except Secrets."""
    kinds = list_kinds(fake_server)
    assert {("v1", "Pod"), PYTORCHJOB} <= set(kinds)
    assert not {"Secret", "Node"} & {kind for _, kind in kinds}
    assert [request.path for request in fake_api.received] == ["/api", "/apis"]


def test_old_server_has_the_same_kinds(fake_api: FakeApi, fake_server: Client, request: pytest.FixtureRequest) -> None:
    """A server without aggregated discovery is asked for each group, with the same result."""
    kinds = set(list_kinds(fake_server))
    request.getfixturevalue("old_server")
    other_client = Client(fake_server.cluster)
    assert set(list_kinds(other_client)) == kinds


def test_incomplete_discovery_is_not_cached(fake_api: FakeApi, fake_server: Client) -> None:
    """An incomplete discovery is repeated; a complete one is cached."""
    fake_api.stale_versions = {"kubeflow.org/v1"}
    assert PYTORCHJOB not in list_kinds(fake_server)
    fake_api.stale_versions = set()
    assert PYTORCHJOB in list_kinds(fake_server)
    request_count = len(fake_api.received)
    list_kinds(fake_server)
    assert len(fake_api.received) == request_count


@pytest.mark.usefixtures("old_server")
def test_incomplete_discovery_of_an_old_server_is_not_cached(fake_api: FakeApi, fake_server: Client) -> None:
    """A group of an old server that does not respond makes its discovery incomplete."""
    fake_api.fail("GET", "^/apis/kubeflow.org/v1$", 403)
    assert PYTORCHJOB not in list_kinds(fake_server)
    fake_api.heal()
    assert PYTORCHJOB in list_kinds(fake_server)
