"""The backend of a cluster: what it does with a plan, and which faults it survives."""

import time
from pathlib import Path

import pytest

from tests.conftest import Planned
from tests.fake_api import FakeApi
from tests.fake_objects import ObjectKey
from tests.leases import RUN, format_time
from torchyard.cluster.backend import ClusterBackend
from torchyard.cluster.lease import acquire_lease
from torchyard.model.errors import RunInUseError
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster, Deadlines
from torchyard.model.requirements import WritableFolder

LEASE_KEY = ObjectKey("coordination.k8s.io/v1/leases", "default", RUN)


@pytest.fixture
def plan(planned: Planned, fake_api: FakeApi) -> ManifestPlan:
    located = ClusterBackend(planned()).locate()
    assert isinstance(located, ManifestPlan)
    return located


def test_plan_contains_context_and_namespace(plan: ManifestPlan) -> None:
    """A later process finds the job, whatever the kubeconfig's current context is by then."""
    assert plan.cluster == Cluster(context="fake", namespace="default")


def test_age_of_a_job_is_counted_from_its_submit(fake_api: FakeApi, plan: ManifestPlan) -> None:
    """A new job has no age; an existing one is as old as its submit or, if that is unknown, its creation."""
    backend = ClusterBackend(plan)
    new_handle = backend.submit(Deadlines(), None)
    assert (new_handle.created, new_handle.age_s) == (True, 0.0)
    key = ObjectKey("batch.volcano.sh/v1alpha1/jobs", "default", plan.job)
    fake_api.objects.patch(key, {"metadata": {"creationTimestamp": format_time(500)[:19] + "Z"}})
    handle = backend.submit(Deadlines(), time.time() - 400)
    undated_handle = backend.submit(Deadlines(), None)
    assert (handle.created, undated_handle.created) == (False, False)
    assert [handle.age_s, undated_handle.age_s] == pytest.approx([400, 500], abs=5)
    backend.release()


def test_folder_of_the_run_is_checked_on_this_machine(plan: ManifestPlan, tmp_path: Path) -> None:
    """The logs of a job in a cluster are written on this machine, so its folder is checked too."""
    (tmp_path / "file").touch()
    requirement = WritableFolder(host="localhost", path=str(tmp_path / "file" / "run"))
    checks = ClusterBackend(plan.model_copy(update={"requires": (requirement,)})).check()
    assert (checks[0].verdict, checks[0].what) == ("failed", f"Not a directory: {tmp_path}/file/run")


def test_ending_that_cannot_be_recorded_is_not_an_error(fake_api: FakeApi, plan: ManifestPlan) -> None:
    """Recording how the run ends may fail, unless another process owns the run by now."""
    acquire_lease(plan)
    fake_api.fail("PATCH", f"/leases/{RUN}", 403)
    ClusterBackend(plan).record_ending("failed", "it failed")
    fake_api.heal()
    fake_api.objects.patch(LEASE_KEY, {"spec": {"holderIdentity": "elsewhere:/runs"}})
    with pytest.raises(RunInUseError):
        ClusterBackend(plan).record_ending("failed", "it failed")
