"""The real API server keeps the contract to which the fake one of the other tests is held."""

import pytest

from tests.api_contract import ApiContract
from torchyard.kube.client import Client
from torchyard.model.profile import Cluster


class TestRealApi(ApiContract):
    """The contract, on the cluster's own server."""

    @pytest.fixture
    def server(self, namespace: str) -> Client:
        return Client(Cluster(namespace=namespace))
