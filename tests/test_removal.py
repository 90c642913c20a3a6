"""A job of objects is taken away: what goes, what stays, and when nothing is left is proven."""

from typing import Any

import pytest

from tests.conftest import Planned
from tests.fake_api import FakeApi
from tests.leases import is_there
from tests.test_manifest import JOB, Launched, launched  # noqa: F401  a fixture
from torchyard.cluster import create, delete, lease
from torchyard.kube import client
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan

CLAIM: dict[str, Any] = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "checkpoints"}}
CONFIG: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}


@pytest.fixture
def plan(planned: Planned, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> ManifestPlan:
    """A job that runs."""
    monkeypatch.setattr(delete, "REMOVAL_TIMEOUT_S", 0.0)
    made = planned()
    create.create_job(made)
    return made


def kinds_there(fake_api: FakeApi) -> set[str]:
    return {each["kind"] for each in fake_api.objects._all.values()}


# --- the proof


def test_nothing_is_left_once_it_is_seen(plan: ManifestPlan) -> None:
    """Every kind of the namespace is looked through, and holds nothing of the run."""
    assert delete.delete_all_objects(plan) == []


@pytest.mark.parametrize("kind", ["pods", "jobs", "podgroups"])
def test_kind_that_may_not_be_seen_may_be_left(plan: ManifestPlan, fake_api: FakeApi, kind: str) -> None:
    """Where a kind that the run has made or watched may not be listed, that is said: it is no proof."""
    fake_api.fail("GET", rf"volcano.*/{kind}\?" if kind != "pods" else r"/pods\?", 403)
    (left,) = delete.delete_all_objects(plan)
    assert "cannot be seen, so may be left: a fault of the test: 403" in left


def test_kind_that_no_run_makes_may_be_hidden(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """Secrets of others are no concern of ours."""
    fake_api.fail("GET", r"/secrets\?", 403)
    assert delete.delete_all_objects(plan) == []


def test_job_is_looked_for_where_discovery_fails(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """A part of the API that does not say what it has cannot hide a job that lives."""
    fake_api.fail("GET", "^/apis/batch.volcano.sh/v1alpha1$", 403)
    fake_api.put({**plan.main, "metadata": {**plan.main["metadata"], "finalizers": ["torchyard.test/held"]}})
    assert any("torchyard.test/held holds it" in each for each in delete.delete_all_objects(plan))


def test_half_a_discovery_is_not_kept(fake_api: FakeApi, fake_server: Client) -> None:
    """Kinds that were not told once are asked for again; a whole answer is asked for once."""
    fake_api.fail("GET", "^/apis/kubeflow.org/v1$", 403)
    assert ("kubeflow.org/v1", "PyTorchJob") not in delete.list_kinds(fake_server)
    fake_api.heal()
    assert ("kubeflow.org/v1", "PyTorchJob") in delete.list_kinds(fake_server)
    asked = len(fake_api.asked)
    delete.list_kinds(fake_server)
    assert len(fake_api.asked) == asked


def test_broken_answer_is_no_empty_list(
    fake_api: FakeApi, fake_server: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer without items is a fault, and so is a list of which the rest cannot be had."""
    monkeypatch.setattr(fake_api, "answer", lambda _: {"kind": "Status"})
    with pytest.raises(ClusterError, match="the answer is no list"):
        fake_server.items("v1", "Pod")
    monkeypatch.undo()
    for name in ("a", "b"):
        fake_api.put({**CONFIG, "metadata": {"name": name}})
    fake_api.fail("GET", "continue=", 404)
    with pytest.raises(ClusterError):
        fake_server.items("v1", "ConfigMap", {"limit": "1"})


def test_object_of_the_same_name_is_another_one(fake_api: FakeApi, fake_server: Client) -> None:
    """What was seen is deleted, and not what has its name by now."""
    old, new = fake_api.put(CONFIG), fake_api.put({**CONFIG, "metadata": {"name": "settings"}})
    assert not fake_server.delete_same(old)
    assert is_there(fake_api, new)
    assert fake_server.delete_same(new)
    assert not fake_server.delete_same(new)


# --- what stands beside a manifest's job


def ran(made: ManifestPlan) -> list[str]:
    """Make the companions and the job, and take all away; what is left."""
    held = lease.acquire_lease(made)
    for each in made.store:
        create._adopt_or_create(client.get_cluster_client(made.cluster), made, create._add_owner(each, held))
    create.create_job(made)
    return delete.delete_all_objects(made)


def test_companion_that_holds_data_stays(launched: Launched, fake_api: FakeApi, fake_server: Client) -> None:  # noqa: F811
    """A checkpoint claim outlives its run: nothing owns it, no label names it, and it does not count as left."""
    made = launched(CLAIM, CONFIG, JOB)
    assert ran(made) == []
    claim = fake_server.read("v1", "PersistentVolumeClaim", "checkpoints") or {"metadata": {}}
    assert not claim["metadata"].get("ownerReferences")
    assert not claim["metadata"].get("labels")
    lease.release_lease(made)
    assert {each["kind"] for each in (CLAIM, CONFIG) if is_there(fake_api, at_home(each))} == {"PersistentVolumeClaim"}


def at_home(thing: dict[str, Any]) -> dict[str, Any]:
    return {**thing, "metadata": {**thing["metadata"], "namespace": "default"}}


def test_profile_may_let_data_go(launched: Launched, fake_api: FakeApi) -> None:  # noqa: F811
    """With `on_companion_data: delete` a claim goes as any other companion does."""
    assert ran(launched(CLAIM, JOB, on_companion_data="delete")) == []
    assert not is_there(fake_api, at_home(CLAIM))


def test_companion_that_was_there_stays(launched: Launched, fake_api: FakeApi) -> None:  # noqa: F811
    """What the run has found is used and left, whatever the profile says of its own."""
    for each in (CLAIM, CONFIG):
        fake_api.put(each)
    assert ran(launched(CLAIM, CONFIG, JOB, on_companion_data="delete")) == []
    assert [is_there(fake_api, at_home(each)) for each in (CLAIM, CONFIG)] == [True, True]


def test_claim_of_somebody_else_keeps_its_owner(launched: Launched, fake_api: FakeApi) -> None:  # noqa: F811
    """Labels and owners are taken off a claim of this run alone: another one goes with whoever owns it, as before."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "theirs", "uid": "1"}
    about = {"name": "checkpoints", "labels": {"torchyard/run": "other-00000001"}, "ownerReferences": [owner]}
    fake_api.put({**CLAIM, "metadata": about})
    assert ran(launched(CLAIM, JOB)) == []
    found = fake_api.find("v1", "PersistentVolumeClaim", "checkpoints") or {"metadata": {}}
    assert {key: found["metadata"][key] for key in about} == about


@pytest.mark.parametrize("data", ["keep", "delete"])
def test_claim_that_was_kept_is_used_again(launched: Launched, fake_api: FakeApi, data: str) -> None:  # noqa: F811
    """The next run of the profile finds the claim of the one before, and takes it for no stranger's."""
    assert ran(launched(CLAIM, JOB)) == []
    assert ran(launched(CLAIM, JOB, attempt=2, on_companion_data=data)) == []
    assert is_there(fake_api, at_home(CLAIM))


def test_claim_of_the_version_before_stays(launched: Launched, fake_api: FakeApi, fake_server: Client) -> None:  # noqa: F811
    """A run that was begun when claims were still the run's is ended without losing them to a garbage collector."""
    made = launched(JOB)
    old = {**CLAIM, "metadata": {**CLAIM["metadata"], "labels": {**made.labels, "torchyard/role": "companion"}}}
    assert ran(made.model_copy(update={"store": (old,)})) == []
    lease.release_lease(made)
    assert is_there(fake_api, at_home(CLAIM))
    assert not (fake_server.read("v1", "PersistentVolumeClaim", "checkpoints") or {})["metadata"].get("labels")
