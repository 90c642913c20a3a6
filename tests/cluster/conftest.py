"""Fixtures for tests on the cluster that TORCHYARD_TEST_KUBECONFIG names; their namespaces are removed."""

import os
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.caller import CLUSTER
from tests.cluster.jobs import Jobs, as_user
from tests.cluster.wire import Wire
from torchyard.cluster.lease_renewal import get_renewer
from torchyard.kube.client import Client, get_cluster_client
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster

SHOWN = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def plane() -> Client:
    """The cluster for tests, set as KUBECONFIG. Without a cluster every test fails: these tests never skip for it."""
    if not os.environ.get(CLUSTER):
        pytest.fail(f"{CLUSTER} names no cluster: `make e2e` starts one, `make cluster-up` prints one", pytrace=False)
    os.environ["KUBECONFIG"] = os.environ[CLUSTER]
    try:
        server = get_cluster_client(Cluster())
        server.request("GET", "/version")
    except ClusterError as error:
        pytest.fail(f"no cluster answers at {os.environ[CLUSTER]}: {error}", pytrace=False)
    return server


@pytest.fixture(scope="module")
def namespace(plane: Client) -> Iterator[str]:
    """A namespace for one module, named like a Run:ai project's."""
    name = f"runai-torchyard-{uuid.uuid4().hex[:8]}"
    plane.request("POST", "/api/v1/namespaces", body={"metadata": {"name": name}})
    here = Client(Cluster(namespace=name))
    while not here.get("v1", "ServiceAccount", "default"):
        time.sleep(0.05)
    yield name
    plane.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture(scope="session")
def user(plane: Client) -> dict[str, Any]:
    return as_user()


@pytest.fixture(scope="session")
def fake(plane: Client, user: dict[str, Any]) -> dict[str, Any]:
    """Overrides that put a job on fake nodes."""
    if not plane.list("v1", "Node", {"labelSelector": "type=kwok"}, everywhere=True):
        pytest.fail("this cluster has no fake nodes (label type=kwok)", pytrace=False)
    return {**user, "pod.node_selector": {"type": "kwok"}}


@pytest.fixture(autouse=True)
def no_renewals() -> Iterator[None]:
    """Stop renewing a test's Leases when it ends: a renewal would use the next test's credentials."""
    yield
    renewer = get_renewer()
    for _, plan in list(renewer._pending.values()):
        renewer.drop(plan)


@pytest.fixture
def jobs(namespace: str, fake: dict[str, Any], tmp_path: Path) -> Iterator[Jobs]:
    """Jobs that a test starts directly; they are deleted when it ends."""
    made = Jobs(namespace, fake, tmp_path)
    yield made
    made.clear()


@pytest.fixture
def wire(plane: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    """A proxy to the API server that can inject faults: context `wire`."""
    made = Wire(tmp_path)
    monkeypatch.setenv("KUBECONFIG", f"{os.environ['KUBECONFIG']}{os.pathsep}{made.kubeconfig}")
    get_cluster_client.cache_clear()
    yield made
    made.close()
    get_cluster_client.cache_clear()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print a table with one row per profile and one column per outcome."""
    cells: dict[str, dict[str, str]] = defaultdict(dict)
    for verdict, shown in SHOWN.items():
        for report in terminalreporter.stats.get(verdict, ()):
            for profile, outcome in (pair for name, pair in report.user_properties if name == "cell"):
                cells[profile][outcome] = shown
    outcomes = list(dict.fromkeys(outcome for row in cells.values() for outcome in row))
    if cells:
        terminalreporter.section("profiles and outcomes")
        wide = max(map(len, cells))
        terminalreporter.line("  ".join([" " * wide, *outcomes]))
        for profile, row in sorted(cells.items()):
            told = (f"{row.get(outcome, '-'):<{len(outcome)}}" for outcome in outcomes)
            terminalreporter.line("  ".join([f"{profile:<{wide}}", *told]))
