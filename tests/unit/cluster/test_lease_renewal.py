"""Renewing the Leases of the runs that this process owns: until their end, and in spite of faults."""

import threading
import time

import pytest

from tests.conftest import Planned
from tests.doubles.fake_api import FakeApi
from tests.doubles.fake_objects import ObjectKey
from tests.doubles.leases import RUN
from tests.support.waiting import wait_until
from torchyard.backends import owner_of
from torchyard.cluster import lease as lease_module
from torchyard.cluster import lease_renewal
from torchyard.cluster.lease_renewal import LeaseRenewer
from torchyard.model.errors import RunInUseError
from torchyard.model.plan import ManifestPlan
from torchyard.pods import lease_record

LEASE_KEY = ObjectKey("coordination.k8s.io/v1/leases", "default", RUN)


@pytest.fixture
def plan(planned: Planned, fake_api: FakeApi) -> ManifestPlan:
    return planned(deadlines={"lease": "30m"})


def test_renewer_survives_errors_of_its_process(
    plan: ManifestPlan, planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one renewal fails for lack of a descriptor, the renewer continues with the next."""
    renewals: list[str] = []

    class EndError(BaseException):
        """Ends the test."""

    def fail(renewed_plan: ManifestPlan) -> None:
        renewals.append(renewed_plan.run)
        if len(renewals) == 3:
            raise EndError
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("torchyard.cluster.lease_renewal.RENEW_INTERVAL_S", 0.0)
    monkeypatch.setattr(lease_module, "renew_lease", fail)
    renewer = LeaseRenewer()
    renewer.add(plan)
    with pytest.raises(EndError):
        renewer.run()
    assert renewals == [RUN] * 3


def read_renew_time(fake_api: FakeApi, run: str) -> str:
    return lease_record.read_renew_time(fake_api.find(lease_record.LEASE_API, lease_record.LEASE_KIND, run) or {})


def test_lease_is_renewed_from_its_acquisition_on(
    planned: Planned, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Lease is renewed even before a watch is open, until the run releases it, and then it is deleted."""
    monkeypatch.setattr(lease_renewal, "RENEW_INTERVAL_S", 0.05)
    plan = planned(cluster={"namespace": "default"})
    first_renew_time = lease_record.read_renew_time(lease_renewal.hold_lease(plan))
    wait_until(lambda: read_renew_time(fake_api, plan.run) > first_renew_time)
    owner_of(plan).release()
    assert fake_api.find(lease_record.LEASE_API, lease_record.LEASE_KIND, plan.run) is None


def test_run_that_was_taken_over_is_not_renewed_again(
    plan: ManifestPlan, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that another process has taken over is not renewed, and every later check of its owner reports that."""
    monkeypatch.setattr(lease_renewal, "RENEW_INTERVAL_S", 0.02)
    lease_module.acquire_lease(plan)
    renewer = LeaseRenewer()
    threading.Thread(target=renewer.run, daemon=True, name="leases of a test").start()
    renewer.add(plan)
    wait_until(lambda: fake_api.find_requests("PATCH", f"/leases/{RUN}"))
    renewer.check(plan)
    fake_api.objects.patch(LEASE_KEY, {"spec": {"holderIdentity": "elsewhere:/runs"}})
    wait_until(lambda: not renewer.list_plans())
    for _ in range(2):
        with pytest.raises(RunInUseError, match="taken it over"):
            renewer.check(plan)
    request_count = len(fake_api.find_requests("PATCH", f"/leases/{RUN}"))
    time.sleep(0.2)
    assert len(fake_api.find_requests("PATCH", f"/leases/{RUN}")) == request_count
