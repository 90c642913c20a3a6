"""From the kubeconfig to a connection: the context that is used, and the error if there is none."""

import os
import re
from pathlib import Path

import pytest
import yaml
from kubernetes import config

from tests.doubles.fake_api import FakeApi
from torchyard.kube.client import Client
from torchyard.kube.kubeconfig import (
    describe_credentials,
    has_kubeconfig,
    load_settings,
    open_connection,
    read_current_context,
    renew_connection,
)
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster


def test_unknown_context_error_lists_the_contexts(fake_api: FakeApi) -> None:
    """The error for a context that the kubeconfig lacks is one sentence that lists its contexts."""
    with pytest.raises(ClusterError, match="there is no such context; there are: fake"):
        Client(Cluster(context="production"))


def test_missing_kubeconfig_error_has_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a kubeconfig the error names the file that does not exist or is empty, and the variable KUBECONFIG."""
    path = tmp_path / "none"
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(ClusterError, match=f"there is no file {path}; set KUBECONFIG"):
        Client(Cluster())
    path.touch()
    with pytest.raises(ClusterError, match=f"{path}: .*; set KUBECONFIG"):
        Client(Cluster())


@pytest.mark.parametrize("text", ["- a\n", "contexts: 3\n", "current-context: a\ncontexts: [{}]\n"])
def test_file_that_is_not_a_kubeconfig_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A file of another structure is refused with its path, and a folder in its place too."""
    path = tmp_path / "config"
    path.write_text(text)
    for kubeconfig in (path, tmp_path):
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        with pytest.raises(ClusterError, match=rf"^kubeconfig: read it: .*{re.escape(str(kubeconfig))}"):
            load_settings(None)


def test_named_context_needs_a_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A context that the profile names is not replaced by the cluster of the pod that this runs in."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(ClusterError, match=r"context lab.*without `cluster.context` a pod uses its own cluster"):
        Client(Cluster(context="lab"))


@pytest.mark.parametrize(
    ("texts", "context"),
    [
        (["contexts: []", "current-context: lab", "current-context: farm"], "lab"),
        (["{", "current-context: lab"], "lab"),
        (["[]", "contexts: []"], None),
    ],
)
def test_first_file_with_a_current_context_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str], context: str | None
) -> None:
    """With several files in KUBECONFIG the first current context counts, as in kubectl; a broken file is left out."""
    files = [tmp_path / "missing", *(tmp_path / f"config-{index}" for index in range(len(texts)))]
    for file, text in zip(files[1:], texts, strict=True):
        file.write_text(text)
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, files)))
    assert read_current_context() == context


def test_namespace_is_that_of_the_context(fake_api: FakeApi) -> None:
    """The context's namespace is used unless the profile names another one."""
    document = yaml.safe_load(fake_api.kubeconfig.read_text())
    document["contexts"][0]["context"]["namespace"] = "team-a"
    fake_api.kubeconfig.write_text(yaml.safe_dump(document))
    assert Client(Cluster()).cluster == Cluster(context="fake", namespace="team-a")
    assert Client(Cluster(namespace="team-b")).namespace == "team-b"


def test_removed_credentials_are_an_error(fake_api: FakeApi) -> None:
    """A kubeconfig that has lost its credentials is an error: requests would be sent without any."""
    first = open_connection(load_settings(None)[0], "fake")
    document = yaml.safe_load(fake_api.kubeconfig.read_text())
    document["users"][0]["user"] = {}
    fake_api.kubeconfig.write_text(yaml.safe_dump(document))
    with pytest.raises(ClusterError, match="log in again"):
        renew_connection(first, "fake")


def test_plugin_of_a_user_is_named(fake_api: FakeApi) -> None:
    """The credentials of a context whose user has a plugin come from that plugin, and else from the kubeconfig."""
    context = load_settings(None)[1]
    assert describe_credentials(context) == "the kubeconfig"
    document = yaml.safe_load(fake_api.kubeconfig.read_text())
    document["users"][0]["user"] = {"exec": {"command": "aws"}}
    fake_api.kubeconfig.write_text(yaml.safe_dump(document))
    assert describe_credentials(context) == "the kubeconfig's plugin aws"


def test_pod_with_a_broken_kubeconfig_does_not_use_its_own_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubeconfig that is empty, or a link to nothing, as while it is replaced, does not select the pod's cluster."""
    monkeypatch.setattr(config, "load_incluster_config", lambda **_: pytest.fail("the pod's cluster is selected"))
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to(tmp_path / "none")
    for name in ("empty", "link"):
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / name))
        with pytest.raises(ClusterError, match=f"{name}: .*; set KUBECONFIG"):
            load_settings(None)


@pytest.mark.parametrize(("path", "may_exist"), [("none", False), ("file/config", False), ("x" * 300, True)])
def test_kubeconfig_is_absent_only_where_the_system_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, may_exist: bool
) -> None:
    """A file that cannot be looked for may exist."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / path))
    assert has_kubeconfig() is may_exist


def test_plugin_that_fails_is_an_error(fake_api: FakeApi) -> None:
    """A plugin that provides no credentials is an error that another try may mend: a client would never have any."""
    document = yaml.safe_load(fake_api.kubeconfig.read_text())
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "false", "interactiveMode": "Never"}
    document["users"][0]["user"] = {"exec": plugin}
    fake_api.kubeconfig.write_text(yaml.safe_dump(document))
    with pytest.raises(ClusterError, match="its plugin false provides no credentials") as caught:
        Client(Cluster())
    assert caught.value.is_transient
