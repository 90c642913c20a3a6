"""The owner of a cluster's run: what its Lease records, and which faults are survived."""

import pytest

from tests.conftest import Planned
from tests.doubles.fake_api import FakeApi
from tests.doubles.fake_objects import ObjectKey
from tests.doubles.leases import RUN
from torchyard.cluster.job import ClusterJob
from torchyard.cluster.lease import acquire_lease
from torchyard.cluster.owner import ClusterOwner
from torchyard.model.errors import RunInUseError
from torchyard.model.plan import ManifestPlan

LEASE_KEY = ObjectKey("coordination.k8s.io/v1/leases", "default", RUN)


@pytest.fixture
def plan(planned: Planned, fake_api: FakeApi) -> ManifestPlan:
    located = ClusterJob(planned()).locate()
    assert isinstance(located, ManifestPlan)
    acquire_lease(located)
    return located


def test_ending_that_cannot_be_recorded_is_not_an_error(fake_api: FakeApi, plan: ManifestPlan) -> None:
    """Recording how the run ends may fail, unless another process owns the run by now."""
    fake_api.fail("PATCH", f"/leases/{RUN}", 403)
    ClusterOwner(plan).record_ending("failed", "it failed")
    fake_api.heal()
    fake_api.objects.patch(LEASE_KEY, {"spec": {"holderIdentity": "elsewhere:/runs"}})
    with pytest.raises(RunInUseError):
        ClusterOwner(plan).record_ending("failed", "it failed")


def test_hand_over_empties_the_lease(fake_api: FakeApi, plan: ManifestPlan) -> None:
    """The next process finds a Lease without a holder; a Lease that cannot be written is left to expire."""
    fake_api.fail("PATCH", f"/leases/{RUN}", 403)
    ClusterOwner(plan).hand_over()
    assert fake_api.objects.get(LEASE_KEY)["spec"]["holderIdentity"] != ""
    fake_api.heal()
    ClusterOwner(plan).hand_over()
    assert fake_api.objects.get(LEASE_KEY)["spec"]["holderIdentity"] == ""
