"""Refused requests that are sent once more: with new credentials, or because the server has just started."""

import pytest
import yaml

from tests.doubles.fake_api import FakeApi
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError


def test_forbidden_request_is_sent_twice(fake_api: FakeApi, fake_server: Client) -> None:
    """A 403 counts only when it comes twice: a server that has only just started refuses everything."""
    fake_api.fail("GET", "/configmaps", 403, times=1)
    assert fake_server.list("v1", "ConfigMap") == []
    fake_api.fail("GET", "/configmaps", 403)
    with pytest.raises(ClusterError) as caught:
        fake_server.list("v1", "ConfigMap")
    assert caught.value.status == 403


def test_server_that_refuses_everything_has_not_read_its_access_rules(fake_api: FakeApi, fake_server: Client) -> None:
    """Where /readyz and discovery are refused too, a 403 means that the API server has only just started."""
    for path, times in (("/configmaps", 3), ("/readyz", 3), ("/apis$", 2)):
        fake_api.fail("GET", path, 403, times)
    assert fake_server.list("v1", "ConfigMap") == []


@pytest.mark.parametrize("body", [b"", b"<html>log in</html>"])
def test_readiness_that_a_proxy_reports_proves_no_refusal(fake_api: FakeApi, fake_server: Client, body: bytes) -> None:
    """A 403 does not count while /readyz, or discovery in its place, is answered by something else."""
    fake_api.fail("GET", "/configmaps", 403, times=3)
    fake_api.answer("GET", "/readyz", 200, body, times=1)
    fake_api.fail("GET", "/readyz", 403, times=1)
    fake_api.answer("GET", "/apis$", 200, body, times=1)
    assert fake_server.list("v1", "ConfigMap") == []


def test_refusal_counts_where_readyz_is_always_refused(fake_api: FakeApi, fake_server: Client) -> None:
    """If a server refuses /readyz permanently but serves discovery, its 403 is raised at once."""
    fake_api.fail("GET", "/configmaps|/readyz", 403)
    with pytest.raises(ClusterError):
        fake_server.list("v1", "ConfigMap")
    assert len(fake_api.find_requests("GET", "/configmaps")) == 2


def test_refused_credentials_are_reloaded(fake_api: FakeApi, fake_server: Client) -> None:
    """After a 401 the kubeconfig is read again, so that a token which a user has renewed is used."""
    document = yaml.safe_load(fake_api.kubeconfig.read_text())
    document["users"][0]["user"]["token"] = "renewed"
    fake_api.kubeconfig.write_text(yaml.safe_dump(document))
    fake_api.fail("GET", "/configmaps", 401, times=1)
    assert fake_server.list("v1", "ConfigMap") == []
    assert len(fake_api.find_requests("GET", "/configmaps")) == 2
