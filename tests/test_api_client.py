"""One request to an API server that is away, busy or refuses: what is asked again, for how long, and what is said."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fake_api import FakeApi
from torchyard.kube import retry
from torchyard.kube.client import Client
from torchyard.kube.retry import TransientError
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster

CONFIG: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is given up sooner than in life."""
    monkeypatch.setattr(retry, "_RETRY_TIMEOUT_S", 1.0)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 0])
def test_busy_server_is_asked_again(fake_api: FakeApi, fake_server: Client, status: int) -> None:
    """A request that is answered by `later`, by a broken back end or by a reset is repeated until it is answered."""
    fake_api.fail("GET", "/configmaps", status, times=2)
    assert fake_server.items("v1", "ConfigMap") == []
    assert len(fake_api.requests("GET", "/configmaps")) == 3


@pytest.mark.parametrize("status", [400, 404, 405, 409, 422])
def test_refusal_is_said_at_once(fake_api: FakeApi, fake_server: Client, status: int) -> None:
    """A refusal that no patience changes is raised with the server's words and status, after one request."""
    fake_api.fail("POST", "/configmaps", status)
    with pytest.raises(ClusterError, match=f"a fault of the test: {status}") as caught:
        fake_server.create(CONFIG)
    assert caught.value.status == status
    assert len(fake_api.requests("POST", "/configmaps")) == 1


def test_forbidden_is_asked_twice(fake_api: FakeApi, fake_server: Client) -> None:
    """A 403 counts once it is given twice: a server that has only just started refuses everything."""
    fake_api.fail("GET", "/configmaps", 403, times=1)
    assert fake_server.items("v1", "ConfigMap") == []
    fake_api.fail("GET", "/configmaps", 403)
    with pytest.raises(ClusterError) as caught:
        fake_server.items("v1", "ConfigMap")
    assert caught.value.status == 403


@pytest.mark.usefixtures("hurried")
def test_server_that_stays_away_is_given_up(fake_api: FakeApi, fake_server: Client) -> None:
    """After the patience of a request its error says where, what was asked, and that it may be asked again later."""
    fake_api.fail("GET", "/configmaps", 503)
    with pytest.raises(ClusterError, match="GET /api/v1/namespaces/default/configmaps") as caught:
        fake_server.items("v1", "ConfigMap")
    assert caught.value.status == 503
    assert len(fake_api.requests("GET", "/configmaps")) >= 2


def test_one_look_is_tried_once(fake_api: FakeApi, fake_server: Client) -> None:
    """A look that the watch repeats by itself is one request."""
    fake_api.fail("GET", "/configmaps", 503)
    with pytest.raises(TransientError):
        fake_server.look(fake_server.path("v1", "ConfigMap"))
    assert len(fake_api.requests("GET", "/configmaps")) == 1


def test_refused_credentials_are_loaded_anew(fake_api: FakeApi, fake_server: Client) -> None:
    """A 401 makes the kubeconfig be read again: a token that a person has renewed meanwhile is used."""
    document = yaml.safe_load(fake_api.kubeconfig.read_text())
    document["users"][0]["user"]["token"] = "renewed"
    fake_api.kubeconfig.write_text(yaml.safe_dump(document))
    fake_api.fail("GET", "/configmaps", 401, times=1)
    assert fake_server.items("v1", "ConfigMap") == []
    assert len(fake_api.requests("GET", "/configmaps")) == 2


def test_absent_object_is_none_and_refused_one_is_not(fake_api: FakeApi, fake_server: Client) -> None:
    """A 404 says that there is none; a 403 says nothing of it."""
    assert fake_server.read("v1", "ConfigMap", "one") is None
    fake_api.fail("GET", "/configmaps/one", 403)
    with pytest.raises(ClusterError):
        fake_server.read("v1", "ConfigMap", "one")


def test_strict_validation_is_asked_for(fake_api: FakeApi, fake_server: Client) -> None:
    """What is created names no unknown field: the server is asked to refuse it."""
    fake_server.create(CONFIG, dry_run=True)
    (asked,) = fake_api.requests("POST", "/configmaps")
    assert asked.query == {"fieldValidation": "Strict", "dryRun": "All"}


def test_deletion_takes_what_is_owned_first(fake_api: FakeApi, fake_server: Client) -> None:
    """A deletion is in the foreground; one by force waits for nobody."""
    fake_server.create(CONFIG)
    fake_server.delete("v1", "ConfigMap", "one")
    fake_server.create(CONFIG)
    fake_server.delete("v1", "ConfigMap", "one", force=True)
    foreground, forced = fake_api.requests("DELETE", "/configmaps/one")
    assert foreground.body["propagationPolicy"] == "Foreground"
    assert forced.body["gracePeriodSeconds"] == 0


def test_unknown_context_names_those_that_there_are(fake_api: FakeApi) -> None:
    """A context that the kubeconfig lacks is one sentence with those that it has."""
    with pytest.raises(ClusterError, match="there is no such context; there are: fake"):
        Client(Cluster(context="production"))


def test_missing_kubeconfig_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a kubeconfig the error names the variable."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ClusterError, match="set KUBECONFIG"):
        Client(Cluster())
