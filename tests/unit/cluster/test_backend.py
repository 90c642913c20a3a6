"""The backend of a cluster: what it does with a plan, and what it survives."""

import time
from pathlib import Path

import pytest

from tests.conftest import Planned
from tests.fake_api import FakeApi
from tests.leases import RUN, stamp
from torchyard.cluster.backend import ClusterBackend
from torchyard.cluster.lease import acquire_lease
from torchyard.model.errors import RunInUseError
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster, Deadlines
from torchyard.model.requirements import WritableFolder

WHERE = ("coordination.k8s.io/v1/leases", "default", RUN)


@pytest.fixture
def plan(planned: Planned, fake_api: FakeApi) -> ManifestPlan:
    made = ClusterBackend(planned()).locate()
    assert isinstance(made, ManifestPlan)
    return made


def test_plan_names_its_cluster_in_full(plan: ManifestPlan) -> None:
    """A later process finds the job, whatever the kubeconfig's current context is by then."""
    assert plan.cluster == Cluster(context="fake", namespace="default")


def test_age_of_a_job_counts_from_its_submit(fake_api: FakeApi, plan: ManifestPlan) -> None:
    """A new job has no age; one that is attached to is as old as its submit or, if that is unknown, its creation."""
    backend = ClusterBackend(plan)
    new = backend.submit(Deadlines(), None)
    assert (new.created, new.age_s) == (True, 0.0)
    place = ("batch.volcano.sh/v1alpha1/jobs", "default", plan.job)
    fake_api.objects.patch(place, {"metadata": {"creationTimestamp": stamp(500)[:19] + "Z"}})
    known, unknown = backend.submit(Deadlines(), time.time() - 400), backend.submit(Deadlines(), None)
    assert (known.created, unknown.created) == (False, False)
    assert [known.age_s, unknown.age_s] == pytest.approx([400, 500], abs=5)
    backend.release()


def test_folder_of_the_run_is_checked_here(plan: ManifestPlan, tmp_path: Path) -> None:
    """The logs of a job in a cluster are written on this machine: its folder is checked before the cluster is."""
    (tmp_path / "file").touch()
    need = WritableFolder(host="localhost", path=str(tmp_path / "file" / "run"))
    found = ClusterBackend(plan.model_copy(update={"requires": (need,)})).check()
    assert (found[0].verdict, found[0].detail) == ("failed", f"Not a directory: {tmp_path}/file/run")


def test_ending_that_cannot_be_recorded_ends_nothing(fake_api: FakeApi, plan: ManifestPlan) -> None:
    """The note about how the run ends may fail, unless another process owns the run by now."""
    acquire_lease(plan)
    fake_api.fail("PATCH", f"/leases/{RUN}", 403)
    ClusterBackend(plan).record_ending("failed", "it failed")
    fake_api.heal()
    fake_api.objects.patch(WHERE, {"spec": {"holderIdentity": "elsewhere:/runs"}})
    with pytest.raises(RunInUseError):
        ClusterBackend(plan).record_ending("failed", "it failed")
