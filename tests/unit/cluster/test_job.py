"""The job of a cluster: what it does with a plan, and which faults it survives."""

import time
from pathlib import Path

import pytest

from tests.conftest import Planned
from tests.doubles.fake_api import FakeApi
from tests.doubles.fake_objects import ObjectKey
from tests.doubles.leases import format_time
from torchyard.cluster.job import ClusterJob
from torchyard.cluster.owner import ClusterOwner
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster, Deadlines
from torchyard.model.requirements import WritableFolder


@pytest.fixture
def plan(planned: Planned, fake_api: FakeApi) -> ManifestPlan:
    located = ClusterJob(planned()).locate()
    assert isinstance(located, ManifestPlan)
    return located


def test_plan_contains_context_and_namespace(plan: ManifestPlan) -> None:
    """A later process finds the job, whatever the kubeconfig's current context is by then."""
    assert plan.cluster == Cluster(context="fake", namespace="default")


def test_age_of_a_job_is_counted_from_its_submit(fake_api: FakeApi, plan: ManifestPlan) -> None:
    """A new job has no age; an existing one is as old as its submit or, if that is unknown, its creation."""
    job = ClusterJob(plan)
    new_handle = job.submit(Deadlines(), None)
    assert (new_handle.created, new_handle.age_s) == (True, 0.0)
    key = ObjectKey("batch.volcano.sh/v1alpha1/jobs", "default", plan.job)
    fake_api.objects.patch(key, {"metadata": {"creationTimestamp": format_time(500)[:19] + "Z"}})
    handle = job.submit(Deadlines(), time.time() - 400)
    undated_handle = job.submit(Deadlines(), None)
    assert (handle.created, undated_handle.created) == (False, False)
    assert [handle.age_s, undated_handle.age_s] == pytest.approx([400, 500], abs=5)
    ClusterOwner(plan).release()


def test_folder_of_the_run_is_checked_on_this_machine(plan: ManifestPlan, tmp_path: Path) -> None:
    """The logs of a job in a cluster are written on this machine, so its folder is checked too."""
    (tmp_path / "file").touch()
    requirement = WritableFolder(host="localhost", path=str(tmp_path / "file" / "run"))
    checks = ClusterJob(plan.model_copy(update={"requires": (requirement,)})).check()
    assert (checks[0].verdict, checks[0].what) == ("failed", f"Not a directory: {tmp_path}/file/run")
