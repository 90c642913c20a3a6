"""Tests do not use their caller's cluster or Prefect server, and are not skipped silently."""

import os
import signal
import subprocess
import sys

import pytest

from tests.doubles.fake_api import FakeApi
from tests.processes.pytest_runs import run_pytest
from tests.support.caller import SERVER
from tests.tools.skips import MAY_SKIP, refuse_skip
from torchyard.cluster.orphans import has_cluster
from torchyard.common.project_root import ROOT


def test_environment_names_no_cluster_or_server() -> None:
    """A test has no cluster and no Prefect server unless it starts them."""
    assert not has_cluster(None)
    assert [name for name in SERVER if name in os.environ] == []


def test_interrupt_is_not_ignored() -> None:
    """A process that a test starts can be interrupted."""
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def test_surroundings_of_the_caller_are_hidden(fake_api: FakeApi) -> None:
    """The cluster in the caller's KUBECONFIG, its PREFECT_API_URL and its ignored SIGINT are hidden from tests."""
    variables = {"KUBECONFIG": str(fake_api.kubeconfig), "PREFECT_API_URL": "http://127.0.0.1:4200/api"}
    checks = ("test_environment_names_no_cluster_or_server", "test_interrupt_is_not_ignored")
    old_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        completed = run_pytest(*(f"{__file__}::{name}" for name in checks), **variables)
    finally:
        signal.signal(signal.SIGINT, old_handler)
    assert completed.returncode == 0, completed.stdout


@pytest.mark.parametrize(
    ("allowed", "outcome"), [(None, "skipped"), ("", "failed"), ("sshd", "failed"), ("sshd,no dash", "skipped")]
)
def test_skip_that_is_not_allowed_is_a_failure(
    allowed: str | None, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With TORCHYARD_MAY_SKIP set, a skip for a reason that it does not contain is a failure."""
    monkeypatch.delenv(MAY_SKIP, raising=False)
    if allowed is not None:
        monkeypatch.setenv(MAY_SKIP, allowed)
    reason = ("test_shells.py", 50, "Skipped: there is no dash: apt-get install dash")
    report = pytest.TestReport("a test", ("test_shells.py", 1, "a test"), {}, "skipped", reason, "setup")
    refuse_skip(report)
    assert report.outcome == outcome


def test_list_for_this_machine_needs_no_library() -> None:
    """CI reads the list before it installs anything; it is never empty, because an empty list forbids all skips."""
    completed = subprocess.run(
        [sys.executable, "-I", "-S", "tests/tools/skips.py"], cwd=ROOT, capture_output=True, check=True
    )
    assert completed.stdout.startswith(b"none")
