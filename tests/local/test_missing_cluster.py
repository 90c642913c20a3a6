"""Tests that need a cluster fail without one; they are not skipped."""

from pathlib import Path

import pytest

from tests.processes.pytest_runs import run_pytest
from tests.support.caller import CLUSTER
from torchyard.common.project_root import ROOT

DEAD = """
apiVersion: v1
kind: Config
current-context: dead
clusters: [{name: dead, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: dead, user: {}}]
contexts: [{name: dead, context: {cluster: dead, user: dead}}]
"""


@pytest.mark.parametrize("is_named", [True, False], ids=["dead", "none"])
def test_tests_on_a_cluster_fail_without_one(tmp_path: Path, is_named: bool) -> None:
    """Tests that need a cluster fail if it does not respond or is not named."""
    (tmp_path / "kubeconfig").write_text(DEAD)
    environment = {CLUSTER: str(tmp_path / "kubeconfig")} if is_named else {}
    completed = run_pytest(str(ROOT / "tests" / "cluster" / "test_watch.py"), "-x", **environment)
    assert completed.returncode == 1
    assert ("does not respond" if is_named else f"{CLUSTER} is not set") in completed.stdout
