"""The proof that an object does not exist, and the answers of proxies that prove nothing."""

from typing import Any

import pytest

from tests.doubles.fake_api import FakeApi
from tests.doubles.fake_objects import RefusedError
from torchyard.kube import retry
from torchyard.kube.absence import ResourcePath, parse_resource_path
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError, NotFoundError

CONFIG: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        ("/api/v1/namespaces/a/pods/b/log?follow=true", ResourcePath("/api", "v1", "pods", "b")),
        ("/apis/batch/v1/namespaces/a/jobs?watch=1", ResourcePath("/apis", "batch/v1", "jobs", "")),
        ("/api/v1/namespaces/a", ResourcePath("/api", "v1", "namespaces", "a")),
        ("/api/v1/nodes/b", ResourcePath("/api", "v1", "nodes", "b")),
        ("/apis/batch/v1", None),
        ("/readyz", None),
    ],
)
def test_path_names_a_resource(path: str, resource: ResourcePath | None) -> None:
    """The path of a request contains the kind and the name that a Status must repeat."""
    assert parse_resource_path(path) == resource


def build_not_found(name: str, kind: str) -> dict[str, Any]:
    return RefusedError(404, "NotFound", "injected", {"name": name, "kind": kind}).body


FOREIGN_RESPONSES = [
    pytest.param(b"default backend - 404", id="a load balancer's page"),
    pytest.param(b"404 page not found\n", id="a server without the path"),
    pytest.param({"message": "no Route matched"}, id="a gateway's JSON"),
    pytest.param({"kind": "Status", "code": 404, "message": "not found"}, id="a Status without a reason"),
    pytest.param(build_not_found("default", "namespaces"), id="the namespace is hidden"),
    pytest.param(build_not_found("one", "secrets"), id="an object of another kind"),
    pytest.param(build_not_found("", ""), id="nothing is named"),
]


@pytest.mark.parametrize("body", FOREIGN_RESPONSES)
def test_404_that_names_no_object_is_an_outage(fake_api: FakeApi, fake_server: Client, body: Any) -> None:
    """Reads, lists and deletions whose 404 is not the API server's report about the object are repeated."""
    one = fake_api.put(CONFIG)
    for method in ("GET", "DELETE"):
        fake_api.answer(method, "/configmaps", 404, body, times=2)
    assert fake_server.get("v1", "ConfigMap", "one") == one
    assert fake_server.delete(one)
    fake_api.answer("GET", "/configmaps", 404, body, times=2)
    assert fake_server.list("v1", "ConfigMap") == []
    assert len(fake_api.find_requests("GET", "/configmaps$")) == 3


def test_404_of_everything_is_no_answer(
    fake_api: FakeApi, fake_server: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If discovery is 404 as well, the kind is not known to be missing: the list fails, as in an outage."""
    monkeypatch.setattr(retry, "REQUEST_TIMEOUT_S", 0.1)
    fake_api.answer("GET", ".", 404, b"default backend - 404")
    with pytest.raises(ClusterError) as caught:
        fake_server.list("batch.volcano.sh/v1alpha1", "Job")
    assert caught.value.is_transient


def test_one_report_of_an_absence_is_not_believed(fake_api: FakeApi, fake_server: Client) -> None:
    """An object that the second reading finds exists."""
    one = fake_api.put(CONFIG)
    fake_api.answer("GET", "/configmaps/one", 404, build_not_found("one", "configmaps"), times=1)
    assert fake_server.get("v1", "ConfigMap", "one") == one
    fake_api.answer("GET", "/configmaps/one", 404, build_not_found("one", "configmaps"), times=1)
    assert fake_server.get_all("v1", "ConfigMap", ["one", "two"]) == {"one": one}


@pytest.mark.parametrize("body", [b"[-]poststarthook/crd-informer-synced failed", b"<html>"])
def test_absence_needs_a_ready_server(
    fake_api: FakeApi, fake_server: Client, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """While the server is not ready, an absent object is neither None nor in a list: it is not known."""
    monkeypatch.setattr(retry, "REQUEST_TIMEOUT_S", 0.1)
    fake_api.answer("GET", "/readyz", 200, body)
    with pytest.raises(ClusterError, match="not ready"):
        fake_server.get("v1", "ConfigMap", "one")
    with pytest.raises(ClusterError, match="not ready"):
        fake_server.get_all("v1", "ConfigMap", ["one"])


def test_discovery_replaces_a_readyz_that_is_always_refused(fake_api: FakeApi, fake_server: Client) -> None:
    """A server that refuses /readyz counts as ready once it serves discovery."""
    fake_api.fail("GET", "/readyz", 403)
    assert fake_server.get("v1", "ConfigMap", "one") is None


def test_kind_that_is_not_served_has_no_objects(fake_api: FakeApi, fake_server: Client) -> None:
    """A kind that a ready server's discovery twice lacks is an empty list, and creating an object of it is refused."""
    assert fake_server.list("nobody.example/v1", "Nothing") == []
    assert len(fake_api.find_requests("GET", "/nothings")) == 2
    with pytest.raises(NotFoundError, match="does not serve nothings"):
        fake_server.create({"apiVersion": "nobody.example/v1", "kind": "Nothing", "metadata": {"name": "one"}})


def test_namespace_that_is_missing_once_delays_a_creation(fake_api: FakeApi, fake_server: Client) -> None:
    """A creation that is refused because of its namespace is sent once more; the second refusal counts."""
    fake_api.answer("POST", "/configmaps", 404, build_not_found("default", "namespaces"), times=1)
    assert fake_server.create(CONFIG)["metadata"]["uid"]
    fake_api.answer("POST", "/configmaps", 404, build_not_found("default", "namespaces"))
    with pytest.raises(NotFoundError):
        fake_server.create(CONFIG)
