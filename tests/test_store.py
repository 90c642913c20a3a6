"""Objects of a run that are there already, and a store's policy, on a fake API server."""

import copy
from typing import Any

import pytest

from tests.conftest import Planned
from tests.fake_api import FakeApi
from torchyard.cluster import create
from torchyard.cluster.checks.admission import check_admission
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import Admitted


@pytest.fixture
def plan(planned: Planned, fake_server: Client) -> ManifestPlan:
    return create.resolve_cluster(planned(rendezvous="etcd-v2"))


def foreign(thing: dict[str, Any]) -> dict[str, Any]:
    """The same object, of somebody else."""
    made = copy.deepcopy(thing)
    made["metadata"]["labels"] = {"team": "other"}
    return made


@pytest.mark.parametrize("which", [0, 1, 2])
def test_no_part_of_a_store_is_adopted_from_somebody_else(
    fake_api: FakeApi, fake_server: Client, plan: ManifestPlan, which: int
) -> None:
    """Agents would unpickle what a foreign Service's store says."""
    thing = plan.store[which]
    fake_api.put(foreign(thing))
    for dry_run in (True, False):
        with pytest.raises(
            ClusterError, match=f"create {thing['kind']} .*-etcd: it exists and belongs to somebody else"
        ):
            create._adopt_or_create(fake_server, plan, thing, dry_run)


def test_a_part_of_this_run_is_adopted(fake_server: Client, plan: ManifestPlan) -> None:
    """A process that comes back finds what it has made."""
    first = [create._adopt_or_create(fake_server, plan, thing) for thing in plan.store]
    again = [create._adopt_or_create(fake_server, plan, thing) for thing in plan.store]
    assert ([new for _, new in first], [new for _, new in again]) == ([True] * 3, [False] * 3)
    assert [thing["metadata"]["uid"] for thing, _ in first] == [thing["metadata"]["uid"] for thing, _ in again]


def test_a_companion_of_a_manifest_may_be_there_before(
    fake_api: FakeApi, fake_server: Client, plan: ManifestPlan
) -> None:
    """A claim with checkpoints is older than the run that goes on with them; it stays as it is."""
    about = {"name": "checkpoints", "labels": {**plan.labels, "torchyard/role": "companion"}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": about}
    before = fake_api.put(foreign(claim))
    assert create._adopt_or_create(fake_server, plan, claim) == (before, False)
    beside = plan.model_copy(update={"store": (claim,), "objects": ()})
    found = check_admission(fake_server, Admitted(what="objects"), "admission", beside)
    assert (found.verdict, fake_api.find("v1", "PersistentVolumeClaim", "checkpoints")) == ("ok", before)


def test_a_name_that_became_free_is_taken(fake_api: FakeApi, fake_server: Client, plan: ManifestPlan) -> None:
    """An object that goes between the refusal and the look belongs to nobody."""
    fake_api.fail("POST", "/services", 409, times=1)
    _, created = create._adopt_or_create(fake_server, plan, plan.store[0])
    assert created


@pytest.mark.parametrize("refused", [(), ("create",), ("delete",)])
def test_a_user_who_may_make_no_policy_runs_without(
    plan: ManifestPlan, monkeypatch: pytest.MonkeyPatch, refused: tuple[str, ...]
) -> None:
    """The plan that is kept is the one that is made, so that nobody looks for more later."""
    monkeypatch.setattr(create, "is_allowed", lambda server, verb, resource: verb not in refused)
    left = [thing["kind"] for thing in create.drop_forbidden_objects(plan).store]
    assert left == (["Service", "Pod"] if refused else ["Service", "NetworkPolicy", "Pod"])


def test_a_job_without_a_store_asks_for_no_right(planned: Planned, fake_api: FakeApi) -> None:
    """Nothing of it is optional."""
    plan = create.resolve_cluster(planned())
    assert create.drop_forbidden_objects(plan) is plan
    assert fake_api.asked == []


def test_a_policy_that_may_not_be_made_is_a_warning(fake_api: FakeApi, fake_server: Client, plan: ManifestPlan) -> None:
    """Preflight says what is missing, and lets the run begin."""
    fake_api.fail("POST", "/networkpolicies", 403)
    found = check_admission(fake_server, Admitted(what="objects"), "admission", plan)
    assert (found.verdict, "NetworkPolicy" in found.detail, "torchyard-policy" in found.remedy) == (
        "warning",
        True,
        True,
    )
