"""Objects of which each client has one."""

import gc

from tests.doubles.fake_api import FakeApi
from torchyard.kube.client import Client
from torchyard.kube.per_client import PerClient
from torchyard.model.profile import Cluster


def test_client_has_one_object_as_long_as_it_exists(fake_api: FakeApi) -> None:
    """A client gets the same object each time, another one its own, and an object is dropped with its client."""
    hosts = PerClient(lambda client: [client.host])
    client = Client(Cluster())
    other_client = Client(Cluster())
    assert hosts.get(client) is hosts.get(client)
    assert hosts.get(other_client) is not hosts.get(client)
    assert hosts.list_all() == [[fake_api.url], [fake_api.url]]
    del other_client
    gc.collect()
    assert hosts.list_all() == [[fake_api.url]]
