"""Tests see nothing of their caller's environment, and are not skipped silently."""

import os
import subprocess
import sys

import pytest

from tests.caller import SERVER
from tests.fake_api import FakeApi
from tests.pytest_runs import run_pytest
from tests.skips import MAY_SKIP, refuse_skip
from torchyard.cluster.orphans import has_cluster
from torchyard.common.project_root import ROOT


def test_nothing_of_the_caller_is_seen() -> None:
    """A test sees no cluster and no Prefect server unless it has started them."""
    assert not has_cluster(None)
    assert [name for name in SERVER if name in os.environ] == []


def test_cluster_of_the_caller_is_not_seen(fake_api: FakeApi) -> None:
    """A test does not see the cluster and server that the caller's KUBECONFIG and PREFECT_API_URL name."""
    variables = {"KUBECONFIG": str(fake_api.kubeconfig), "PREFECT_API_URL": "http://127.0.0.1:4200/api"}
    done = run_pytest(f"{__file__}::test_nothing_of_the_caller_is_seen", **variables)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("allowed", "outcome"), [(None, "skipped"), ("", "failed"), ("sshd", "failed"), ("sshd,no dash", "skipped")]
)
def test_skip_that_nobody_allowed_is_a_failure(
    allowed: str | None, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TORCHYARD_MAY_SKIP set, a skip that it does not name is a failure."""
    monkeypatch.delenv(MAY_SKIP, raising=False)
    if allowed is not None:
        monkeypatch.setenv(MAY_SKIP, allowed)
    reason = ("test_shells.py", 50, "Skipped: there is no dash: apt-get install dash")
    report = pytest.TestReport("a test", ("test_shells.py", 1, "a test"), {}, "skipped", reason, "setup")
    refuse_skip(report)
    assert report.outcome == outcome


def test_list_for_this_machine_needs_no_library() -> None:
    """CI asks what may be skipped before it has installed anything; the list is never empty, which allows nothing."""
    done = subprocess.run([sys.executable, "-I", "-S", "tests/skips.py"], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout.startswith(b"none")
