"""The job of a cluster: what it does with a plan, and which faults it survives."""

import os
import time
from email.utils import formatdate
from pathlib import Path

import pytest

from tests.conftest import Planned
from tests.doubles.fake_api import FakeApi, Handler
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


@pytest.mark.parametrize("hours", [24, -24, 0])
def test_age_of_a_job_is_by_the_servers_clock(
    fake_api: FakeApi, plan: ManifestPlan, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    """A new job has no age; an existing one was created some time ago by the API server, whatever our clocks were.

    A machine whose clock is a day ahead or behind attaches, and the clock was right or wrong at the submit.
    """
    server_time = time.time()
    monkeypatch.setattr(Handler, "date_time_string", lambda *_: formatdate(server_time, usegmt=True))
    job = ClusterJob(plan)
    new_handle = job.submit(Deadlines(), None)
    assert (new_handle.created, new_handle.age_s) == (True, 0.0)
    key = ObjectKey("batch.volcano.sh/v1alpha1/jobs", "default", plan.job)
    fake_api.objects.patch(key, {"metadata": {"creationTimestamp": format_time(300)[:19] + "Z"}})
    monkeypatch.setattr(time, "time", lambda: server_time + 3600 * hours)
    for submitted_at in (server_time - 300, server_time + 3600 * hours - 300, None):
        handle = job.submit(Deadlines(), submitted_at)
        assert not handle.created
        assert handle.age_s == pytest.approx(300, abs=5)
    ClusterOwner(plan).release()


def test_folder_of_the_run_is_checked_on_this_machine(plan: ManifestPlan, tmp_path: Path) -> None:
    """The logs of a job in a cluster are written on this machine, so its folder is checked too."""
    (tmp_path / "file").touch()
    requirement = WritableFolder(host="localhost", path=str(tmp_path / "file" / "run"))
    checks = ClusterJob(plan.model_copy(update={"requires": (requirement,)})).check()
    assert (checks[0].verdict, checks[0].what) == ("failed", f"Not a directory: {tmp_path}/file/run")


def test_store_of_large_code_is_checked(planned: Planned, fake_api: FakeApi, tmp_path: Path) -> None:
    """Preflight checks the store from which the pods will get the code, before anything is created."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.py").write_bytes(os.urandom(901 << 10))
    code = {"path": "mine", "store": "memory://bucket"}
    plan = ClusterJob(planned(code_folder=code, program="a.py")).locate()
    assert isinstance(plan, ManifestPlan)
    verdicts = {check.where: check.verdict for check in ClusterJob(plan).check()}
    assert verdicts["code.store"] == "failed"  # memory:// signs no URLs


def test_submitted_job_is_not_started_without_its_lease(fake_api: FakeApi, plan: ManifestPlan) -> None:
    """A job that the journal has as submitted is not created again, although its Lease was deleted with it."""
    job = ClusterJob(plan)
    job.submit(Deadlines(), None)
    fake_api.objects.delete(ObjectKey("coordination.k8s.io/v1/leases", "default", plan.run), {})
    assert not job.submit(Deadlines(), time.time()).created
    assert fake_api.find("batch.volcano.sh/v1alpha1", "Job", plan.job) is None
    ClusterOwner(plan).release()
