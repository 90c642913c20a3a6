"""The fake API server keeps the contract of the real one."""

import pytest

from tests.api_contract import ApiContract
from torchyard.kube.client import Client


class TestFakeApi(ApiContract):
    """The contract, on the fake server."""

    @pytest.fixture
    def server(self, fake_server: Client) -> Client:
        return fake_server
