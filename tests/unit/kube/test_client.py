"""The verbs of the API: what each one sends, what a refusal means, and which answers are not believed."""

from typing import Any

import pytest
import yaml

from tests.api_contract import ApiContract
from tests.fake_api import FakeApi
from tests.leases import is_there
from torchyard.kube.client import Client
from torchyard.kube.retry import TransientError
from torchyard.model.errors import ClusterError

CONFIG: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}}


class TestFakeApi(ApiContract):
    """The fake API server of these tests keeps the contract of the real one."""

    @pytest.fixture
    def server(self, fake_server: Client) -> Client:
        return fake_server


def test_forbidden_is_asked_twice(fake_api: FakeApi, fake_server: Client) -> None:
    """A 403 counts only when it comes twice: a server that has only just started refuses everything."""
    fake_api.fail("GET", "/configmaps", 403, times=1)
    assert fake_server.list("v1", "ConfigMap") == []
    fake_api.fail("GET", "/configmaps", 403)
    with pytest.raises(ClusterError) as caught:
        fake_server.list("v1", "ConfigMap")
    assert caught.value.status == 403


def test_server_that_refuses_everything_has_not_read_its_access_rules(fake_api: FakeApi, fake_server: Client) -> None:
    """Where /readyz and discovery are refused too, a 403 says that the API server has only just started."""
    for path, times in (("/configmaps", 3), ("/readyz", 3), ("/apis$", 2)):
        fake_api.fail("GET", path, 403, times)
    assert fake_server.list("v1", "ConfigMap") == []


def test_refusal_counts_where_readyz_is_for_nobody(fake_api: FakeApi, fake_server: Client) -> None:
    """A server that refuses /readyz for good, and answers discovery, is believed: the 403 is raised at once."""
    fake_api.fail("GET", "/configmaps|/readyz", 403)
    with pytest.raises(ClusterError):
        fake_server.list("v1", "ConfigMap")
    assert len(fake_api.requests("GET", "/configmaps")) == 2


def test_one_look_is_tried_once(fake_api: FakeApi, fake_server: Client) -> None:
    """A read that the watch itself repeats is a single request."""
    fake_api.fail("GET", "/configmaps", 503)
    with pytest.raises(TransientError):
        fake_server.get_once(fake_server.path("v1", "ConfigMap"))
    assert len(fake_api.requests("GET", "/configmaps")) == 1


def test_refused_credentials_are_loaded_anew(fake_api: FakeApi, fake_server: Client) -> None:
    """After a 401 the kubeconfig is read again, so that a token which a user has renewed is used."""
    document = yaml.safe_load(fake_api.kubeconfig.read_text())
    document["users"][0]["user"]["token"] = "renewed"
    fake_api.kubeconfig.write_text(yaml.safe_dump(document))
    fake_api.fail("GET", "/configmaps", 401, times=1)
    assert fake_server.list("v1", "ConfigMap") == []
    assert len(fake_api.requests("GET", "/configmaps")) == 2


def test_absent_object_is_none_and_refused_one_is_not(fake_api: FakeApi, fake_server: Client) -> None:
    """A 404 means that the object does not exist; a 403 does not."""
    assert fake_server.get("v1", "ConfigMap", "one") is None
    fake_api.fail("GET", "/configmaps/one", 403)
    with pytest.raises(ClusterError):
        fake_server.get("v1", "ConfigMap", "one")


def test_strict_validation_is_asked_for(fake_api: FakeApi, fake_server: Client) -> None:
    """Creating an object asks the server to refuse unknown fields."""
    fake_server.create(CONFIG, dry_run=True)
    (asked,) = fake_api.requests("POST", "/configmaps")
    assert asked.query == {"fieldValidation": "Strict", "dryRun": "All"}


def test_deletion_takes_what_is_owned_first(fake_api: FakeApi, fake_server: Client) -> None:
    """A deletion uses foreground propagation; a forced one has no grace period."""
    fake_server.create(CONFIG)
    fake_server.delete("v1", "ConfigMap", "one")
    fake_server.create(CONFIG)
    fake_server.delete("v1", "ConfigMap", "one", force=True)
    foreground, forced = fake_api.requests("DELETE", "/configmaps/one")
    assert foreground.body["propagationPolicy"] == "Foreground"
    assert forced.body["gracePeriodSeconds"] == 0


def test_broken_answer_is_no_empty_list(
    fake_api: FakeApi, fake_server: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer without items is an error, and so is a list whose next page cannot be read."""
    monkeypatch.setattr(fake_api, "answer", lambda _: {"kind": "Status"})
    with pytest.raises(ClusterError, match="the answer is no list"):
        fake_server.list("v1", "Pod")
    monkeypatch.undo()
    for name in ("a", "b"):
        fake_api.put({**CONFIG, "metadata": {"name": name}})
    fake_api.fail("GET", "continue=", 404)
    with pytest.raises(ClusterError):
        fake_server.list("v1", "ConfigMap", {"limit": "1"})


def test_object_of_the_same_name_is_another_one(fake_api: FakeApi, fake_server: Client) -> None:
    """Only the object that was seen is deleted, not a new one with the same name."""
    old, new = fake_api.put(CONFIG), fake_api.put({**CONFIG, "metadata": {"name": "one"}})
    assert not fake_server.delete_exact(old)
    assert is_there(fake_api, new)
    assert fake_server.delete_exact(new)
    assert not fake_server.delete_exact(new)


def test_refused_deletion_is_no_absence(fake_api: FakeApi, fake_server: Client) -> None:
    """A deletion that is refused is an error, and not the answer that the object is gone."""
    thing = fake_api.put(CONFIG)
    fake_api.fail("DELETE", "/configmaps/one", 403)
    with pytest.raises(ClusterError) as caught:
        fake_server.delete_exact(thing)
    assert (caught.value.status, is_there(fake_api, thing)) == (403, True)
