"""Queries about the cluster around a job that makes no progress: rare, shared by runs, and beside the wait."""

import threading
import time
from typing import Any

import pytest

from tests.conftest import Planned
from tests.fake_api import FakeApi
from tests.stuck_pods import unplaced
from torchyard.cluster import diagnose
from torchyard.cluster.diagnose import ProgressMonitor
from torchyard.kube.client import Client


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first query is due at once."""
    monkeypatch.setattr(diagnose, "_FIRST_QUERY_AFTER_S", -1.0)


@pytest.fixture
def runs(planned: Planned, fake_api: FakeApi, fake_server: Client, at_once: None) -> list[ProgressMonitor]:
    """Twenty runs in one namespace whose pods find no node; half of them request more than the others."""
    queue = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "default"}}
    fake_api.put({**queue, "status": {"state": "Open"}})
    plans = [planned(nodes=2, name=f"run-{at}", resources={"gpus": 1 + at % 2}) for at in range(20)]
    return [ProgressMonitor(fake_server, plan) for plan in plans]


def diagnose_all(runs: list[ProgressMonitor], last: bool = False) -> list[Any]:
    """Let every run ask why it makes no progress, in a thread of its own, until its query is done."""
    seen = {"Pod/worker-0": unplaced()}
    found: list[Any] = []

    def go(run: ProgressMonitor) -> None:
        run.diagnose(seen, is_last=last)
        run._query_thread.join(20)
        found.append(run.diagnose(seen))

    threads = [threading.Thread(target=go, args=(run,)) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def lists(server: FakeApi, kind: str) -> int:
    return len(server.requests("GET", f"/{kind}$"))


def test_pending_runs_share_one_query(fake_api: FakeApi, runs: list[ProgressMonitor]) -> None:
    """Twenty pending runs in a process list nodes and events only once, whatever each of them requests."""
    diagnoses = diagnose_all(runs)
    assert [diagnosis.failure.cause for diagnosis in diagnoses] == ["unschedulable"] * len(runs)
    assert (lists(fake_api, "nodes"), lists(fake_api, "events")) == (1, 1)


def test_old_query_is_repeated(fake_api: FakeApi, runs: list[ProgressMonitor], monkeypatch: pytest.MonkeyPatch) -> None:
    """When a shared query has become too old it is repeated, again once for all runs."""
    diagnose_all(runs)
    later = time.monotonic() + diagnose._QUERY_INTERVAL_S + 1
    monkeypatch.setattr("torchyard.cluster.diagnose.time.monotonic", lambda: later)
    diagnose_all(runs)
    assert (lists(fake_api, "nodes"), lists(fake_api, "events")) == (2, 2)


def test_refused_query_is_shared_too(fake_api: FakeApi, runs: list[ProgressMonitor]) -> None:
    """A refused query is shared too, and the scheduler's own message is used as the explanation."""
    fake_api.fail("GET", "/nodes", 403)
    diagnoses = diagnose_all(runs)
    assert lists(fake_api, "nodes") == 2  # a refusal counts only when it comes twice
    assert all("0/9 nodes are available" in diagnosis.failure.sentence for diagnosis in diagnoses)
