"""Fixtures for tests on the cluster that TORCHYARD_TEST_KUBECONFIG names; their namespaces are removed."""

import os
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fault_proxy import FaultProxy
from tests.cluster.jobs import Jobs, as_user
from tests.support.caller import CLUSTER
from torchyard.cluster.lease_renewal import get_renewer
from torchyard.kube.client import Client, get_cluster_client
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster

OUTCOME_LABELS = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def admin_client() -> Client:
    """The cluster for tests, set as KUBECONFIG, with an administrator's rights.

    Without a cluster every test fails: these tests never skip for it.
    """
    if not os.environ.get(CLUSTER):
        pytest.fail(
            f"{CLUSTER} is not set: `make e2e` starts a cluster, `make cluster-up` prints the kubeconfig of one",
            pytrace=False,
        )
    os.environ["KUBECONFIG"] = os.environ[CLUSTER]
    try:
        client = get_cluster_client(Cluster())
        client.request("GET", "/api")
    except ClusterError as error:
        pytest.fail(f"the cluster of {os.environ[CLUSTER]} does not respond: {error}", pytrace=False)
    return client


@pytest.fixture(scope="module")
def namespace(admin_client: Client) -> Iterator[str]:
    """A namespace for one module, named like a Run:ai project's."""
    name = f"runai-torchyard-{uuid.uuid4().hex[:8]}"
    admin_client.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
    client = Client(Cluster(namespace=name))
    while not client.get("v1", "ServiceAccount", "default"):
        time.sleep(0.05)
    yield name
    admin_client.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="session")
def user_overrides(admin_client: Client) -> dict[str, Any]:
    """Overrides that run a job with the rights of deploy/kubernetes/rbac.yaml."""
    return as_user()


@pytest.fixture(scope="session")
def fake_overrides(admin_client: Client, user_overrides: dict[str, Any]) -> dict[str, Any]:
    """Overrides that put a job on fake nodes."""
    if not admin_client.list("v1", "Node", {"labelSelector": "type=kwok"}, everywhere=True):
        pytest.fail("this cluster has no fake nodes (label type=kwok)", pytrace=False)
    return user_overrides | {"pod.node_selector": {"type": "kwok"}}


@pytest.fixture(autouse=True)
def stop_renewals() -> Iterator[None]:
    """Stop renewing a test's Leases when it ends: a renewal would use the next test's credentials."""
    yield
    renewer = get_renewer()
    for plan in renewer.list_plans():
        renewer.drop(plan)


@pytest.fixture
def jobs(namespace: str, fake_overrides: dict[str, Any], tmp_path: Path) -> Iterator[Jobs]:
    """Jobs that a test starts directly; they are deleted when it ends."""
    jobs = Jobs(namespace, fake_overrides, tmp_path)
    yield jobs
    jobs.clear()


@pytest.fixture
def proxy(admin_client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy to the API server that can inject faults: context `wire`."""
    proxy = FaultProxy(tmp_path)
    monkeypatch.setenv("KUBECONFIG", f"{os.environ['KUBECONFIG']}{os.pathsep}{proxy.kubeconfig}")
    get_cluster_client.cache_clear()
    yield proxy
    proxy.close()
    get_cluster_client.cache_clear()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print a table with one row per profile and one column per outcome."""
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    outcomes: list[str] = []
    for verdict, label in OUTCOME_LABELS.items():
        for report in terminalreporter.stats.get(verdict, ()):
            for name, value in report.user_properties:
                if name == "cell":
                    profile, outcome = value
                    cells[profile][outcome] = label
    for row in cells.values():
        outcomes += [outcome for outcome in row if outcome not in outcomes]
    if not cells:
        return
    terminalreporter.section("profiles and outcomes")
    name_width = max(len(profile) for profile in cells)
    terminalreporter.line("  ".join([" " * name_width, *outcomes]))
    for profile, row in sorted(cells.items()):
        columns = [f"{row.get(outcome, '-'):<{len(outcome)}}" for outcome in outcomes]
        terminalreporter.line("  ".join([f"{profile:<{name_width}}", *columns]))
