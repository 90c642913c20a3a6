"""Jobs on the fake API server: a running one, and one whose launcher is dead."""

from typing import Any

import pytest

from tests.conftest import Planned
from tests.doubles.fake_api import FakeApi
from tests.doubles.leases import Make, OrphanedRun, build_lease
from tests.doubles.pod_jobs import Job
from torchyard.cluster import orphans


@pytest.fixture
def job(fake_api: FakeApi, planned: Planned) -> Job:
    return Job(fake_api, planned(nodes=2))


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep does not observe Leases before it removes runs."""
    monkeypatch.setattr(orphans, "LEASE_OBSERVATION_S", 0.0)
    monkeypatch.setattr(orphans, "REMOVAL_POLL_INTERVAL_S", 0.01)


@pytest.fixture
def cast(fake_api: FakeApi) -> Make:
    """Put a run into the cluster; by default its Lease was renewed last more than an hour ago."""

    def make_run(namespace: str = "default", **changes: Any) -> OrphanedRun:
        return OrphanedRun(fake_api, build_lease(**changes), namespace)

    return make_run
