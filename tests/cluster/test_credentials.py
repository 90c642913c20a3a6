"""Credentials that the real API server stops accepting: real tokens, bound to a Secret that is deleted."""

import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.certificates import make_authority
from tests.cluster.jobs import Jobs, until
from tests.cluster.test_watch import ended, run
from tests.cluster.wire import CONTEXT, Wire
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.kube.client import Client
from torchyard.kube.kubeconfig import load_settings
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster

RBAC = "rbac.authorization.k8s.io"
PLUGIN = """#!/bin/sh
echo asked >> {count}
printf '{{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {{"token": "%s"}}}}' \\
    "$(cat {token})"
"""


class Account:
    """A ServiceAccount with all rights in one namespace; its token is in a file, and `expire` ends it."""

    def __init__(self, server: Client, place: Path) -> None:
        self.server, self.name, self.file = server, f"account-{place.name.replace('_', '-').lower()}", place / "token"
        self.count = place / "count"
        self.count.touch()
        self._bound = 0
        self._make("v1", "ServiceAccount", self.name)
        subject = {"kind": "ServiceAccount", "name": self.name, "namespace": server.namespace}
        role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"}
        self._make(f"{RBAC}/v1", "RoleBinding", self.name, roleRef=role, subjects=[subject])
        self.renew()

    def _make(self, version: str, kind: str, name: str, **more: Any) -> dict[str, Any]:
        return self.server.create({"apiVersion": version, "kind": kind, "metadata": {"name": name}, **more})

    def renew(self) -> None:
        """Write a new token, valid for ten minutes, to the file."""
        self._bound += 1
        bound = f"{self.name}-{self._bound}"
        uid = self._make("v1", "Secret", bound)["metadata"]["uid"]
        wanted = {"expirationSeconds": 600, "boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": bound}}
        wanted["boundObjectRef"]["uid"] = uid  # type: ignore[index]
        path = self.server.path("v1", "ServiceAccount", self.name) + "/token"
        self.file.write_text(self.server.request("POST", path, body={"spec": wanted})["status"]["token"])

    def expire(self, renew: bool = True) -> None:
        """Make the current token invalid; the API server caches tokens for ten seconds, and refuses it then."""
        old = f"{self.name}-{self._bound}"
        if renew:
            self.renew()
        self.server.delete("v1", "Secret", old)

    def plugin(self) -> dict[str, Any]:
        """A kubeconfig user that gets its token from a program."""
        path = self.file.with_name("plugin")
        path.write_text(PLUGIN.format(count=self.count, token=self.file))
        path.chmod(0o755)
        version = "client.authentication.k8s.io/v1"
        return {"exec": {"apiVersion": version, "command": str(path), "interactiveMode": "Never"}}

    def asked(self) -> int:
        """How often the program was run."""
        return len(self.count.read_text().splitlines())


@pytest.fixture
def account(jobs: Jobs, tmp_path: Path) -> Account:
    return Account(jobs.server, tmp_path)


def server(jobs: Jobs) -> Client:
    return Client(Cluster(context=CONTEXT, namespace=jobs.namespace))


@pytest.mark.parametrize("how", ["plugin", "file"])
def test_token_that_expires_is_loaded_anew(account: Account, jobs: Jobs, wire: Wire, how: str) -> None:
    """No request fails when a token from a program or a file expires; it is loaded again once."""
    wire.become(account.plugin() if how == "plugin" else {"tokenFile": str(account.file)})
    asking = server(jobs)
    old = account.file.read_text()
    account.expire()
    until(lambda: is_refused(account, old))
    asking.list("v1", "Pod")
    asking.list("v1", "Pod")
    assert account.asked() == (2 if how == "plugin" else 0)


def test_many_threads_load_once(account: Account, jobs: Jobs, wire: Wire) -> None:
    """When many requests are refused at once, the program that issues tokens is started only once."""
    wire.become(account.plugin())
    asking, old, found = server(jobs), account.file.read_text(), list[Any]()
    account.expire()
    until(lambda: is_refused(account, old))
    threads = [threading.Thread(target=lambda: found.append(asking.list("v1", "Pod"))) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert (len(found), account.asked()) == (8, 2)


def test_watch_outlives_its_token(account: Account, jobs: Jobs, wire: Wire) -> None:
    """A job is watched to its end although the token expires meanwhile."""
    wire.become(account.plugin())
    plan, old = jobs.start(wire), account.file.read_text()
    with ClusterWatch(plan) as watch:
        until(lambda: run(watch))
        account.expire()
        until(lambda: is_refused(account, old))
        wire.cut()
        jobs.end(plan)
        until(lambda: ended(watch))


def test_refused_for_good_is_told(account: Account, jobs: Jobs, wire: Wire) -> None:
    """Credentials that stay refused, though reloaded every ten seconds, cause an error that says what to do."""
    wire.become(account.plugin())
    asking, old = server(jobs), account.file.read_text()
    account.expire(renew=False)
    until(lambda: is_refused(account, old))
    began = time.monotonic()
    with pytest.raises(ClusterError, match=r"credentials of context wire are refused.*log in again") as caught:
        asking.list("v1", "Pod")
    most = 3 + (time.monotonic() - began) / 10
    assert (caught.value.status, 2 <= account.asked() <= most) == (401, True)


def test_program_that_fails_for_a_moment_is_asked_again(account: Account, jobs: Jobs, wire: Wire) -> None:
    """While the token program fails, a request waits as for a busy server, and is not sent without credentials."""
    wire.become(account.plugin())
    asking, old, program = server(jobs), account.file.read_text(), account.file.with_name("plugin")
    account.expire()
    until(lambda: is_refused(account, old))
    program.rename(program.with_name("away"))
    threading.Timer(3, lambda: program.with_name("away").rename(program)).start()
    asking.list("v1", "Pod")


def test_kubeconfig_that_is_written_anew_is_read(account: Account, jobs: Jobs, wire: Wire) -> None:
    """A user who logs in again during a run repairs it, because the kubeconfig's new token is read."""
    wire.become({"token": "no-such-token"})
    asking = server(jobs)
    wire.become({"token": account.file.read_text()})
    asking.list("v1", "Pod")


def test_certificate_that_is_renewed_is_read(jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client certificate that the API server rejects is read again, because its file may have changed."""
    settings, _ = load_settings(None)
    if not settings.cert_file:
        pytest.skip("this cluster knows its user by something else")
    make_authority("strange").write(tmp_path / "user")
    cluster = {"server": settings.host, "certificate-authority": settings.ssl_ca_cert}
    user = {"client-certificate": str(tmp_path / "user.crt"), "client-key": str(tmp_path / "user.key")}
    context = {"context": {"cluster": "it", "user": "it"}, "name": "certified"}
    named = {"clusters": [{"name": "it", "cluster": cluster}], "users": [{"name": "it", "user": user}]}
    (tmp_path / "kubeconfig").write_text(
        yaml.safe_dump({**named, "contexts": [context], "current-context": "certified"})
    )
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    asking = Client(Cluster(context="certified", namespace=jobs.namespace))
    shutil.copy(settings.cert_file, tmp_path / "user.crt")
    shutil.copy(settings.key_file, tmp_path / "user.key")
    assert asking.list("v1", "Pod") == []


def is_refused(account: Account, token: str) -> bool:
    """Whether the API server has noticed that a token is invalid."""
    spec = {"spec": {"token": token}}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", **spec}
    review = account.server.request("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body=body)
    return not review["status"].get("authenticated")
