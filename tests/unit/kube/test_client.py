"""The verbs of the API: the request that each one sends, the meaning of a refusal, and incomplete responses."""

import gc
import weakref
from typing import Any

import pytest
import yaml

from tests.contracts.api_server import ApiContract
from tests.doubles.fake_api import FakeApi
from tests.doubles.leases import exists
from torchyard.cluster.listing import list_kinds
from torchyard.kube.client import Client
from torchyard.kube.retry import TransientError
from torchyard.model.errors import ClusterError, RunInUseError
from torchyard.model.profile import Cluster

CONFIG: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}


class TestFakeApi(ApiContract):
    """The fake API server of these tests fulfils the contract of the real one."""

    @pytest.fixture
    def client(self, fake_server: Client) -> Client:
        return fake_server


def test_unused_client_is_dropped_with_its_connections(fake_api: FakeApi) -> None:
    """Nothing keeps a client that is no longer used: neither the cache of its kinds nor its own credentials."""
    client = Client(Cluster())
    list_kinds(client)
    reference = weakref.ref(client)
    gc.disable()  # a cycle would keep the client and its connections until the next collection
    try:
        del client
        assert reference() is None
    finally:
        gc.enable()


def test_get_once_is_not_repeated(fake_api: FakeApi, fake_server: Client) -> None:
    """`get_once` sends a single request: its callers repeat it."""
    fake_api.fail("GET", "/configmaps", 503)
    with pytest.raises(TransientError):
        fake_server.get_once(fake_server.path("v1", "ConfigMap"))
    assert len(fake_api.find_requests("GET", "/configmaps")) == 1


def test_missing_object_is_none_and_refused_one_is_an_error(fake_api: FakeApi, fake_server: Client) -> None:
    """An object that the server twice reports as absent is None; a 403 is an error."""
    assert fake_server.get("v1", "ConfigMap", "one") is None
    assert len(fake_api.find_requests("GET", "/configmaps/one")) == 2
    fake_api.fail("GET", "/configmaps/one", 403)
    with pytest.raises(ClusterError):
        fake_server.get("v1", "ConfigMap", "one")


def test_create_requests_strict_validation(fake_api: FakeApi, fake_server: Client) -> None:
    """A new object with unknown fields is refused by the server."""
    fake_server.create(CONFIG, dry_run=True)
    (request,) = fake_api.find_requests("POST", "/configmaps")
    assert request.query == {"fieldValidation": "Strict", "dryRun": "All"}


@pytest.mark.parametrize(
    ("api_version", "kind", "path"),
    [
        ("v1", "PersistentVolume", "/api/v1/persistentvolumes/one"),
        ("scheduling.volcano.sh/v1beta1", "Queue", "/apis/scheduling.volcano.sh/v1beta1/queues/one"),
        ("example.com/v1", "Queue", "/apis/example.com/v1/namespaces/default/queues/one"),
        ("v1", "Endpoints", "/api/v1/namespaces/default/endpoints/one"),
    ],
)
def test_kind_without_a_namespace_has_a_path_without_one(
    fake_server: Client, api_version: str, kind: str, path: str
) -> None:
    """The API server has no namespaced path for an object of the whole cluster."""
    assert fake_server.path(api_version, kind, "one") == path


def test_propagation_of_a_deletion(fake_api: FakeApi, fake_server: Client) -> None:
    """What an object owns is deleted first; a ConfigMap owns nothing, and a forced deletion has no grace period."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}}
    fake_server.delete(fake_server.create(CONFIG))
    fake_server.delete(fake_server.create(pod))
    fake_server.delete(fake_server.create(pod), force=True)
    bodies = [request.body for request in fake_api.find_requests("DELETE", "/one")]
    assert [body["propagationPolicy"] for body in bodies] == ["Background", "Foreground", "Background"]
    assert [body.get("gracePeriodSeconds") for body in bodies] == [None, None, 0]


def test_lists_lack_managed_fields(fake_api: FakeApi, fake_server: Client) -> None:
    """Objects of a list have no `managedFields`, which are large; an object that is read by name does."""
    managers = [{"manager": "kubectl-create"}]
    fake_api.put(CONFIG | {"metadata": {"name": "one", "managedFields": managers}})
    (listed,) = fake_server.list("v1", "ConfigMap")
    (listed_once,) = fake_server.get_once(fake_server.path("v1", "ConfigMap"))["items"]
    named = fake_server.get("v1", "ConfigMap", "one")
    assert named
    assert [obj["metadata"].get("managedFields") for obj in (listed, listed_once, named)] == [None, None, managers]


def test_incomplete_response_is_not_an_empty_list(
    fake_api: FakeApi, fake_server: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response without items is an error; a list whose next page cannot be read is an error too."""
    monkeypatch.setattr(fake_api, "respond", lambda _: {"kind": "Status"})
    with pytest.raises(ClusterError, match="the response is not a list"):
        fake_server.list("v1", "Pod")
    monkeypatch.undo()
    for name in ("a", "b"):
        fake_api.put(CONFIG | {"metadata": {"name": name}})
    fake_api.fail("GET", "continue=", 410)
    with pytest.raises(ClusterError):
        fake_server.list("v1", "ConfigMap", {"limit": "1"})


def test_deletion_spares_a_new_object_of_the_same_name(fake_api: FakeApi, fake_server: Client) -> None:
    """Only the object with the given uid is deleted, not a new one with the same name."""
    deleted = fake_api.put(CONFIG)
    recreated = fake_api.put(CONFIG | {"metadata": {"name": "one"}})
    assert not fake_server.delete(deleted)
    assert exists(fake_api, recreated)
    assert fake_server.delete(recreated)
    assert not fake_server.delete(recreated)


def test_refused_deletion_is_an_error(fake_api: FakeApi, fake_server: Client) -> None:
    """A refused deletion is an error; it does not return that the object is gone."""
    config_map = fake_api.put(CONFIG)
    fake_api.fail("DELETE", "/configmaps/one", 403)
    with pytest.raises(ClusterError) as caught:
        fake_server.delete(config_map)
    assert (caught.value.status, exists(fake_api, config_map)) == (403, True)


def test_page_of_a_proxy_is_not_the_response_to_a_deletion(fake_api: FakeApi, fake_server: Client) -> None:
    """A deletion that a proxy answers with its own page, status 200, is sent again."""
    config_map = fake_api.put(CONFIG)
    fake_api.answer("DELETE", "/configmaps/one", 200, b"<html>back soon</html>", times=1)
    assert fake_server.delete(config_map)
    assert len(fake_api.find_requests("DELETE", "/configmaps/one")) == 2
    assert not exists(fake_api, config_map)


def test_ownership_is_confirmed_before_each_try(fake_api: FakeApi, fake_server: Client) -> None:
    """A deletion that an outage delays is sent again only if the run still has its owner."""
    config_map = fake_api.put(CONFIG)
    fake_api.fail("DELETE", "/configmaps/one", 0)
    confirmations: list[str] = []

    def confirm_ownership() -> None:
        confirmations.append("confirmed")
        if len(confirmations) == 2:
            raise RunInUseError("train-1", "elsewhere")

    with pytest.raises(RunInUseError):
        fake_server.delete(config_map, confirm_ownership=confirm_ownership)
    assert len(fake_api.find_requests("DELETE", "/configmaps/one")) == 1


def test_absence_is_confirmed_with_renewed_credentials(fake_api: FakeApi, fake_server: Client) -> None:
    """A token that expires between the two readings of an absence is reloaded before the server counts as not ready."""
    document = yaml.safe_load(fake_api.kubeconfig.read_text())
    document["users"][0]["user"]["token"] = "renewed"
    fake_api.kubeconfig.write_text(yaml.safe_dump(document))
    fake_api.fail("GET", "/readyz", 401, times=1)
    assert fake_server.get("v1", "Pod", "none") is None
