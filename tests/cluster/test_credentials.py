"""Credentials that the real API server stops accepting: real tokens, bound to a Secret that is deleted."""

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.certificates import create_authority
from tests.cluster.fault_proxy import CONTEXT, FaultProxy
from tests.cluster.jobs import Jobs, until
from tests.cluster.objects import delete_by_name
from tests.cluster.test_watch import has_ended, is_running
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.kube.client import Client
from torchyard.kube.kubeconfig import load_settings
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster

RBAC = "rbac.authorization.k8s.io"
PLUGIN = """#!/bin/sh
echo run >> {count}
printf '{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {{"token": "%s"}}}}' \\
    "$(cat {token})"
"""


class Account:
    """A ServiceAccount with all rights in one namespace; its token is in a file, and `expire` invalidates it.

    `renew` binds each new token to a new Secret: deleting the Secret invalidates the token.
    """

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self.name = f"account-{folder.name.replace('_', '-').lower()}"
        self.token_file = folder / "token"
        self.count_file = folder / "count"
        self.count_file.touch()
        self._secret_number = 0
        self._create("v1", "ServiceAccount", self.name)
        subject = {"kind": "ServiceAccount", "name": self.name, "namespace": client.namespace}
        role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"}
        self._create(f"{RBAC}/v1", "RoleBinding", self.name, roleRef=role, subjects=[subject])
        self.renew()

    def _create(self, api_version: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
        return self.client.create({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}} | fields)

    def renew(self) -> None:
        """Write a new token, valid for ten minutes, to the file."""
        self._secret_number += 1
        secret_name = f"{self.name}-{self._secret_number}"
        secret = self._create("v1", "Secret", secret_name)
        reference = {"kind": "Secret", "apiVersion": "v1", "name": secret_name, "uid": secret["metadata"]["uid"]}
        token_request = {"expirationSeconds": 600, "boundObjectRef": reference}
        path = self.client.path("v1", "ServiceAccount", self.name) + "/token"
        self.token_file.write_text(self.client.request("POST", path, body={"spec": token_request})["status"]["token"])

    def expire(self, *, renew: bool = True) -> None:
        """Make the current token invalid; the API server caches tokens for ten seconds, and refuses it then.

        With `renew` the file has a new token before.
        """
        secret_name = f"{self.name}-{self._secret_number}"
        if renew:
            self.renew()
        delete_by_name(self.client, "v1", "Secret", secret_name)

    def write_plugin(self) -> dict[str, Any]:
        """Write a program that prints the token; return a kubeconfig user that gets its token from it."""
        path = self.token_file.with_name("plugin")
        path.write_text(PLUGIN.format(count=self.count_file, token=self.token_file))
        path.chmod(0o755)
        version = "client.authentication.k8s.io/v1"
        return {"exec": {"apiVersion": version, "command": str(path), "interactiveMode": "Never"}}

    def count_plugin_runs(self) -> int:
        """How often the program has run."""
        return len(self.count_file.read_text().splitlines())


@pytest.fixture
def account(jobs: Jobs, tmp_path: Path) -> Account:
    """An account whose token the test can invalidate."""
    return Account(jobs.client, tmp_path)


def connect(jobs: Jobs) -> Client:
    """A client through the proxy, with the credentials of its kubeconfig."""
    return Client(Cluster(context=CONTEXT, namespace=jobs.namespace))


@pytest.mark.parametrize("source", ["plugin", "file"])
def test_token_that_expires_is_reloaded(account: Account, jobs: Jobs, proxy: FaultProxy, source: str) -> None:
    """No request fails when a token from a program or a file expires; it is loaded again once."""
    proxy.use_credentials(account.write_plugin() if source == "plugin" else {"tokenFile": str(account.token_file)})
    client = connect(jobs)
    old_token = account.token_file.read_text()
    account.expire()
    until(lambda: is_refused(account, old_token))
    client.list("v1", "Pod")
    client.list("v1", "Pod")
    assert account.count_plugin_runs() == (2 if source == "plugin" else 0)


def test_many_threads_load_once(account: Account, jobs: Jobs, proxy: FaultProxy) -> None:
    """When many requests are refused at once, the program that issues tokens is started only once."""
    proxy.use_credentials(account.write_plugin())
    client = connect(jobs)
    old_token = account.token_file.read_text()
    responses = list[Any]()
    account.expire()
    until(lambda: is_refused(account, old_token))
    threads = [threading.Thread(target=lambda: responses.append(client.list("v1", "Pod"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(responses), account.count_plugin_runs()) == (8, 2)


def test_watch_outlives_its_token(account: Account, jobs: Jobs, proxy: FaultProxy) -> None:
    """A job is watched to its end although the token expires meanwhile."""
    proxy.use_credentials(account.write_plugin())
    plan = jobs.start(proxy)
    old_token = account.token_file.read_text()
    with ClusterWatch(plan) as watch:
        until(lambda: is_running(watch))
        account.expire()
        until(lambda: is_refused(account, old_token))
        proxy.cut()
        jobs.end(plan)
        until(lambda: has_ended(watch))


def test_permanently_refused_credentials_are_reported(account: Account, jobs: Jobs, proxy: FaultProxy) -> None:
    """Credentials that stay refused, though reloaded every ten seconds, cause an error with what to do."""
    proxy.use_credentials(account.write_plugin())
    client = connect(jobs)
    old_token = account.token_file.read_text()
    account.expire(renew=False)
    until(lambda: is_refused(account, old_token))
    started_at = time.monotonic()
    with pytest.raises(ClusterError, match=r"credentials of context wire are refused.*log in again") as caught:
        client.list("v1", "Pod")
    max_runs = 3 + (time.monotonic() - started_at) / 10
    assert (caught.value.status, 2 <= account.count_plugin_runs() <= max_runs) == (401, True)


def test_program_that_fails_for_a_moment_is_retried(account: Account, jobs: Jobs, proxy: FaultProxy) -> None:
    """While the token program fails, a request waits as for a busy server, and is not sent without credentials."""
    proxy.use_credentials(account.write_plugin())
    client = connect(jobs)
    old_token = account.token_file.read_text()
    program = account.token_file.with_name("plugin")
    account.expire()
    until(lambda: is_refused(account, old_token))
    program.rename(program.with_name("away"))
    threading.Timer(3, lambda: program.with_name("away").rename(program)).start()
    client.list("v1", "Pod")


def test_rewritten_kubeconfig_is_read(account: Account, jobs: Jobs, proxy: FaultProxy) -> None:
    """A user who logs in again during a run repairs it, because the kubeconfig's new token is read."""
    proxy.use_credentials({"token": "no-such-token"})
    client = connect(jobs)
    proxy.use_credentials({"token": account.token_file.read_text()})
    client.list("v1", "Pod")


def test_renewed_certificate_is_read(jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client certificate that the API server rejects is read again, because its file may have changed."""
    settings, _ = load_settings(None)
    if not settings.cert_file:
        pytest.skip("this cluster authenticates its user without a certificate")
    create_authority("strange").write(tmp_path / "user")
    cluster = {"server": settings.host, "certificate-authority": settings.ssl_ca_cert}
    user = {"client-certificate": str(tmp_path / "user.crt"), "client-key": str(tmp_path / "user.key")}
    context = {"context": {"cluster": "it", "user": "it"}, "name": "certified"}
    kubeconfig = {
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": user}],
        "contexts": [context],
        "current-context": "certified",
    }
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    client = Client(Cluster(context="certified", namespace=jobs.namespace))
    shutil.copy(settings.cert_file, tmp_path / "user.crt")
    shutil.copy(settings.key_file, tmp_path / "user.key")
    assert client.list("v1", "Pod") == []


def is_refused(account: Account, token: str) -> bool:
    """Whether the API server rejects a token by now."""
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    review = account.client.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body=body)
    return not review["status"].get("authenticated")
