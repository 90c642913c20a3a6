"""Jobs on the fake API server: one that runs, and those whose launchers are gone."""

from typing import Any

import pytest

from tests.conftest import Planned
from tests.fake_api import FakeApi
from tests.leases import Make, OrphanedRun, build_lease
from tests.pod_jobs import Job
from torchyard.cluster import orphans


@pytest.fixture
def job(fake_api: FakeApi, planned: Planned) -> Job:
    return Job(fake_api, planned(nodes=2))


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep does not wait."""
    monkeypatch.setattr(orphans, "_LEASE_OBSERVATION_S", 0.0)
    monkeypatch.setattr(orphans, "_REMOVAL_POLL_INTERVAL_S", 0.01)


@pytest.fixture
def cast(fake_api: FakeApi) -> Make:
    """Put a run into the cluster that has been dead for an hour by default."""

    def make_run(namespace: str = "default", **changes: Any) -> OrphanedRun:
        return OrphanedRun(fake_api, build_lease(**changes), namespace)

    return make_run
