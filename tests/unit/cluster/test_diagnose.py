"""Queries about the cluster around a job that makes no progress: rare, shared by runs, and on a separate thread."""

import threading
import time
from typing import Any

import pytest

from tests.conftest import Planned
from tests.doubles.fake_api import FakeApi
from tests.inputs.stuck_pods import build_unschedulable_pod
from torchyard.cluster import diagnose
from torchyard.cluster.diagnose import ProgressMonitor
from torchyard.kube.client import Client

STUCK = {"Pod/worker-0": build_unschedulable_pod()}


@pytest.fixture
def monitors(
    planned: Planned, fake_api: FakeApi, fake_server: Client, monkeypatch: pytest.MonkeyPatch
) -> list[ProgressMonitor]:
    """Twenty runs in one namespace whose pods find no node, and whose first query is due.

    Half of them request more than the others.
    """
    queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "default"}}
    fake_api.put(queue | {"status": {"state": "Open"}})
    plans = [planned(nodes=2, name=f"run-{index}", resources={"gpus": 1 + index % 2}) for index in range(20)]
    monitors = [ProgressMonitor(fake_server, plan) for plan in plans]
    for monitor in monitors:
        monitor.diagnose(STUCK)
    monkeypatch.setattr(diagnose, "FIRST_QUERY_AFTER_S", -1.0)
    return monitors


def diagnose_all(monitors: list[ProgressMonitor]) -> list[Any]:
    """The diagnosis of every run after its query, each requested on a separate thread."""
    threads = [threading.Thread(target=monitor.diagnose, args=(STUCK,)) for monitor in monitors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for thread in threading.enumerate():
        if thread.name == "diagnose":  # a query, which `diagnose` does not wait for
            thread.join(20)
    return [monitor.diagnose(STUCK) for monitor in monitors]


def count_lists(fake_api: FakeApi, kind: str) -> int:
    return len(fake_api.find_requests("GET", f"/{kind}$"))


def test_pending_runs_share_one_query(fake_api: FakeApi, monitors: list[ProgressMonitor]) -> None:
    """Twenty pending runs of a process list nodes and events only once, whatever each of them requests."""
    diagnoses = diagnose_all(monitors)
    assert [diagnosis.failure.cause for diagnosis in diagnoses] == ["unschedulable"] * len(monitors)
    assert (count_lists(fake_api, "nodes"), count_lists(fake_api, "events")) == (1, 1)


def test_old_response_is_replaced(
    fake_api: FakeApi, monitors: list[ProgressMonitor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shared response that has become too old is replaced by one new query for all runs."""
    diagnose_all(monitors)
    later = time.monotonic() + diagnose.QUERY_INTERVAL_S + 1
    monkeypatch.setattr("torchyard.cluster.diagnose.time.monotonic", lambda: later)
    diagnose_all(monitors)
    assert (count_lists(fake_api, "nodes"), count_lists(fake_api, "events")) == (2, 2)


def test_response_from_before_the_stall_does_not_count(
    fake_api: FakeApi, monitors: list[ProgressMonitor], fake_server: Client, planned: Planned
) -> None:
    """A run that stalls after another run's query queries again: the nodes may have changed in between."""
    diagnose_all(monitors)
    fake_api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "new"}, "status": {}})
    late = ProgressMonitor(fake_server, planned(nodes=2, name="late"))
    (diagnosis,) = diagnose_all([late])
    assert "1 node: not Ready" in diagnosis.failure.sentence
    assert count_lists(fake_api, "nodes") == 2


def test_refused_query_is_shared_too(fake_api: FakeApi, monitors: list[ProgressMonitor]) -> None:
    """A refused query is shared too, and the scheduler's own message is the explanation."""
    fake_api.fail("GET", "/nodes", 403)
    diagnoses = diagnose_all(monitors)
    assert count_lists(fake_api, "nodes") == 2  # a refusal counts only when it comes twice
    assert all("0/9 nodes are available" in diagnosis.failure.sentence for diagnosis in diagnoses)
