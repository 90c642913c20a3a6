"""Tests see nothing of who calls them, and are not skipped in silence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.caller import CLUSTER, SERVER
from tests.fake_api import FakeApi
from tests.skips import MAY_SKIP, refuse_skip
from torchyard.cluster.orphans import has_cluster
from torchyard.loading.profile import ROOT

DEAD = """
apiVersion: v1
kind: Config
current-context: dead
clusters: [{name: dead, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: dead, user: {}}]
contexts: [{name: dead, context: {cluster: dead, user: dead}}]
"""


def test_nothing_of_the_caller_is_seen() -> None:
    """There is no cluster and no Prefect server in a test, unless it has made them."""
    assert not has_cluster(None)
    assert [name for name in SERVER if name in os.environ] == []


def test_cluster_of_the_caller_is_not_seen(fake_api: FakeApi) -> None:
    """The same, where KUBECONFIG names a cluster and PREFECT_API_URL a server."""
    named = {"KUBECONFIG": str(fake_api.kubeconfig), "PREFECT_API_URL": "http://127.0.0.1:4200/api"}
    done = run_pytest(f"{__file__}::test_nothing_of_the_caller_is_seen", **named)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False], ids=["dead", "none"])
def test_tests_on_a_cluster_fail_without_one(tmp_path: Path, named: bool) -> None:
    """A cluster that does not answer, or that is not named, fails what was to be tested on it."""
    (tmp_path / "kubeconfig").write_text(DEAD)
    environment = {CLUSTER: str(tmp_path / "kubeconfig")} if named else {}
    done = run_pytest(str(ROOT / "tests" / "cluster" / "test_watch.py"), "-x", **environment)
    assert done.returncode == 1
    assert ("no cluster answers at" if named else f"{CLUSTER} names no cluster") in done.stdout


@pytest.mark.parametrize(
    ("allowed", "outcome"), [(None, "skipped"), ("", "failed"), ("sshd", "failed"), ("sshd,no dash", "skipped")]
)
def test_skip_that_nobody_allowed_is_a_failure(
    allowed: str | None, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TORCHYARD_MAY_SKIP only the skips that it names are skips."""
    monkeypatch.delenv(MAY_SKIP, raising=False)
    if allowed is not None:
        monkeypatch.setenv(MAY_SKIP, allowed)
    reason = ("test_prelude.py", 50, "Skipped: there is no dash: apt-get install dash")
    report = pytest.TestReport("a test", ("test_prelude.py", 1, "a test"), {}, "skipped", reason, "setup")
    refuse_skip(report)
    assert report.outcome == outcome


def run_pytest(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
    plain = {name: value for name, value in os.environ.items() if name not in (CLUSTER, MAY_SKIP)}
    return subprocess.run(command, env={**plain, **environment}, cwd=ROOT, capture_output=True, text=True, check=False)
