"""Objects of a run that already exist, and a store's network policy, on a fake API server."""

import copy
from functools import partial
from typing import Any

import pytest

from tests.conftest import Planned
from tests.fake_api import FakeApi
from tests.pod_jobs import after, lines
from torchyard.cluster import create, lease
from torchyard.cluster.checks.admission import check_admission
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError, RendezvousError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import AdmissionAccepted
from torchyard.pods import lease_record


@pytest.fixture
def plan(planned: Planned, fake_server: Client) -> ManifestPlan:
    return create.resolve_cluster(planned(rendezvous="etcd-v2"))


def foreign(thing: dict[str, Any]) -> dict[str, Any]:
    """The same object as if another user had created it."""
    made = copy.deepcopy(thing)
    made["metadata"]["labels"] = {"team": "other"}
    return made


@pytest.mark.parametrize("which", [0, 1, 2])
def test_no_part_of_a_store_is_adopted_from_somebody_else(
    fake_api: FakeApi, fake_server: Client, plan: ManifestPlan, which: int
) -> None:
    """Another user's objects are not used for a store: agents unpickle what the store sends."""
    thing = plan.store[which]
    fake_api.put(foreign(thing))
    for dry_run in (True, False):
        with pytest.raises(
            ClusterError, match=f"create {thing['kind']} .*-etcd: it exists and does not belong to this run"
        ):
            create._adopt_or_create(fake_server, plan, thing, dry_run=dry_run)


def test_a_part_of_this_run_is_adopted(fake_server: Client, plan: ManifestPlan) -> None:
    """A resumed run finds the objects that it has already created."""
    first = [create._adopt_or_create(fake_server, plan, thing) for thing in plan.store]
    again = [create._adopt_or_create(fake_server, plan, thing) for thing in plan.store]
    assert ([new for _, new in first], [new for _, new in again]) == ([True] * 3, [False] * 3)
    assert [thing["metadata"]["uid"] for thing, _ in first] == [thing["metadata"]["uid"] for thing, _ in again]


def test_a_companion_of_a_manifest_may_be_there_before(
    fake_api: FakeApi, fake_server: Client, plan: ManifestPlan
) -> None:
    """A claim with checkpoints may be older than the run, and is used unchanged."""
    about = {"name": "checkpoints", "labels": {**plan.labels, "torchyard/role": "companion"}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": about}
    before = fake_api.put(foreign(claim))
    assert create._adopt_or_create(fake_server, plan, claim) == (before, False)
    beside = plan.model_copy(update={"store": (claim,), "objects": ()})
    found = check_admission(fake_server, AdmissionAccepted(target="objects"), "admission", beside)
    assert (found.verdict, fake_api.find("v1", "PersistentVolumeClaim", "checkpoints")) == ("ok", before)


def test_a_name_that_became_free_is_taken(fake_api: FakeApi, fake_server: Client, plan: ManifestPlan) -> None:
    """If the existing object disappears after the refusal, the new one is created."""
    fake_api.fail("POST", "/services", 409, times=1)
    _, created = create._adopt_or_create(fake_server, plan, plan.store[0])
    assert created


@pytest.mark.parametrize("refused", [(), ("create",), ("delete",)])
def test_a_user_who_may_make_no_policy_runs_without(
    plan: ManifestPlan, monkeypatch: pytest.MonkeyPatch, refused: tuple[str, ...]
) -> None:
    """Without the right to create or delete a policy, the plan is stored without it, as it is carried out."""
    monkeypatch.setattr(create, "is_allowed", lambda server, verb, resource: verb not in refused)
    left = [thing["kind"] for thing in create.drop_forbidden_objects(plan).store]
    assert left == (["Service", "Pod"] if refused else ["Service", "NetworkPolicy", "Pod"])


def test_a_job_without_a_store_asks_for_no_right(planned: Planned, fake_api: FakeApi) -> None:
    """For a job without a store no rights are requested, because it has no optional objects."""
    plan = create.resolve_cluster(planned())
    assert create.drop_forbidden_objects(plan) is plan
    assert fake_api.asked == []


# --- the job


@pytest.fixture
def of_run(planned: Planned, fake_api: FakeApi) -> ManifestPlan:
    """The plan of a job without a store."""
    return create.resolve_cluster(planned())


def posts(fake_api: FakeApi, plan: ManifestPlan) -> list[str]:
    """How the job was posted: `All` for a dry run, an empty text for a real creation."""
    asked = [each for each in fake_api.requests("POST", "/jobs") if each.body["metadata"]["name"] == plan.job]
    return [each.query.get("dryRun", "") for each in asked]


def test_job_is_created_once(fake_api: FakeApi, of_run: ManifestPlan) -> None:
    """The job is created after a dry run, owned by the run's Lease; a resumed run finds it."""
    first, created = create.create_job(of_run)
    held = fake_api.find("coordination.k8s.io/v1", "Lease", of_run.run)
    assert held
    assert first["metadata"]["ownerReferences"] == [lease_record.owner_reference(held)]
    assert (created, posts(fake_api, of_run), lease_record.is_submitted(held)) == (True, ["All", ""], True)
    again, created = create.create_job(of_run)
    assert (again["metadata"]["uid"], created) == (first["metadata"]["uid"], False)


def test_job_that_somebody_deleted_is_not_created_again(fake_api: FakeApi, of_run: ManifestPlan) -> None:
    """A submitted job that is gone was ended by somebody: a resumed run attaches to nothing, and starts nothing."""
    create.create_job(of_run)
    before = posts(fake_api, of_run)
    fake_api.objects.delete(("batch.volcano.sh/v1alpha1/jobs", "default", of_run.job), {})
    assert create.create_job(of_run) == (of_run.main, False)
    assert posts(fake_api, of_run) == before
    assert fake_api.find("batch.volcano.sh/v1alpha1", "Job", of_run.job) is None


def test_refused_part_leaves_nothing_behind(fake_api: FakeApi, planned: Planned) -> None:
    """If the dry run of one object is refused, no object of the job is created."""
    plan = create.resolve_cluster(planned(rendezvous="c10d"))
    fake_api.fail("POST", f"/{plan.objects[-1]['kind'].lower()}s.*dryRun=All", 422)
    with pytest.raises(ClusterError, match="422"):
        create.create_job(plan)
    made = [each for each in fake_api.asked if each.method == "POST" and "dryRun" not in each.query]
    assert [each.body["kind"] for each in made] == ["Lease"]


def test_name_that_somebody_else_has_is_refused_at_once(fake_api: FakeApi, of_run: ManifestPlan) -> None:
    """An object of another run is not waited for: creating it is tried once."""
    fake_api.put(foreign(of_run.main))
    with pytest.raises(ClusterError, match="does not belong to this run"):
        create.create_job(of_run)
    assert posts(fake_api, of_run) == ["All"]


# --- the store


def test_store_is_used_once_it_is_ready(fake_api: FakeApi, plan: ManifestPlan) -> None:
    """The rendezvous store is awaited until its pod is Ready, and an existing one is used."""
    pod = next(thing for thing in plan.store if thing["kind"] == "Pod")
    place = ("v1/pods", "default", pod["metadata"]["name"])
    told = [
        {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]},
        {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]},
        {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    ]
    seen = list[str]()

    def tell(status: dict[str, Any]) -> None:
        seen.append(status["conditions"][0]["status"])
        fake_api.objects.patch(place, {"status": status})

    for number, status in enumerate(told):
        after(0.3 * (number + 1), partial(tell, status))
    create.create_store(plan)
    assert seen == ["True", "False", "True"]
    create.create_store(plan)
    assert len([each for each in fake_api.requests("POST", "/pods") if not each.query.get("dryRun")]) == 2


@pytest.mark.parametrize(("code", "found"), [(1, ("exit code 1", False)), (137, ("signal 9", True))])
def test_store_that_has_ended_is_not_waited_for(
    fake_api: FakeApi, plan: ManifestPlan, code: int, found: tuple[str, bool]
) -> None:
    """A store that has ended never becomes ready: its last line is quoted, and only a kill is worth another attempt."""
    pod = next(thing for thing in plan.store if thing["kind"] == "Pod")
    name = pod["spec"]["containers"][0]["name"]
    ended = {"name": name, "state": {"terminated": {"exitCode": code, "finishedAt": "2026-01-01T00:00:00Z"}}}
    held = lease.acquire_lease(plan)
    failed = {**create._add_owner(pod, held), "status": {"phase": "Failed", "containerStatuses": [ended]}}
    fake_api.put(failed)
    fake_api.logs[pod["metadata"]["name"]] = lines(2)[0] + b"2026-01-01T00:00:01Z unknown flag: --enable-v2\n"
    with pytest.raises(RendezvousError, match=f"{found[0]}; it said: unknown flag: --enable-v2;") as caught:
        create.create_store(plan)
    assert caught.value.retry is found[1]
