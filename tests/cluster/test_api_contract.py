"""The real API server passes the same contract tests as the fake one of the other tests."""

import pytest

from tests.contracts.api_server import ApiContract
from torchyard.kube.client import Client
from torchyard.model.profile import Cluster


class TestRealApi(ApiContract):
    """The contract tests on the cluster's own API server."""

    @pytest.fixture
    def client(self, namespace: str) -> Client:
        return Client(Cluster(namespace=namespace))
