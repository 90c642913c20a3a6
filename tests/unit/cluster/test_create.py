"""Creating the objects of a run, on a fake API server: existing objects, a store's network policy, the job."""

import base64
import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Planned
from tests.doubles.fake_api import FakeApi
from tests.doubles.fake_objects import ObjectKey
from tests.doubles.pod_jobs import build_lines, run_later
from torchyard.cluster import create, lease
from torchyard.cluster.checks.admission import check_admission
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.code.archive import keep_archive, read_archive
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError, RendezvousError
from torchyard.model.plan import ManifestPlan
from torchyard.model.requirements import AdmissionAccepted
from torchyard.pods import lease_record


@pytest.fixture
def plan(planned: Planned, fake_server: Client) -> ManifestPlan:
    return create.resolve_cluster(planned(rendezvous="etcd-v2"))


def build_foreign(obj: dict[str, Any]) -> dict[str, Any]:
    """The same object as if another user had created it."""
    foreign_object = copy.deepcopy(obj)
    foreign_object["metadata"]["labels"] = {"team": "other"}
    return foreign_object


@pytest.mark.parametrize("index", [0, 1, 2])
def test_object_of_another_user_is_not_used_for_a_store(
    fake_api: FakeApi, fake_server: Client, plan: ManifestPlan, index: int
) -> None:
    """An existing object of another user is refused: agents unpickle what the store sends."""
    obj = plan.store[index]
    fake_api.put(build_foreign(obj))
    for dry_run in (True, False):
        with pytest.raises(
            ClusterError, match=f"create {obj['kind']} .*-etcd: it exists and does not belong to this run"
        ):
            create.adopt_or_create(fake_server, plan, obj, dry_run=dry_run)


def test_object_of_this_run_is_adopted(fake_server: Client, plan: ManifestPlan) -> None:
    """A resumed run finds the objects that it has already created."""
    created = [create.adopt_or_create(fake_server, plan, obj) for obj in plan.store]
    adopted = [create.adopt_or_create(fake_server, plan, obj) for obj in plan.store]
    assert ([is_new for _, is_new in created], [is_new for _, is_new in adopted]) == ([True] * 3, [False] * 3)
    assert [obj["metadata"]["uid"] for obj, _ in created] == [obj["metadata"]["uid"] for obj, _ in adopted]


def test_existing_companion_of_a_manifest_is_used(fake_api: FakeApi, fake_server: Client, plan: ManifestPlan) -> None:
    """A claim with checkpoints may be older than the run, and is used unchanged."""
    metadata = {"name": "checkpoints", "labels": plan.labels | {"torchyard/role": "companion"}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata}
    existing = fake_api.put(build_foreign(claim))
    assert create.adopt_or_create(fake_server, plan, claim) == (existing, False)
    plan_with_claim = plan.model_copy(update={"store": (claim,), "objects": ()})
    check = check_admission(fake_server, AdmissionAccepted(target="objects"), "admission", plan_with_claim)
    assert (check.verdict, fake_api.find("v1", "PersistentVolumeClaim", "checkpoints")) == ("ok", existing)


@pytest.mark.parametrize(
    ("kind", "labels", "is_used"),
    [
        ("Service", {"torchyard/run": "other-00000001"}, False),
        ("PersistentVolumeClaim", {"torchyard/run": "other-00000001", "torchyard/role": "disposable"}, False),
        ("PersistentVolumeClaim", {"torchyard/run": "other-00000001"}, True),
        ("Service", {"torchyard/role": "companion"}, True),
    ],
)
def test_companion_that_another_run_deletes_is_not_used(
    fake_api: FakeApi, fake_server: Client, plan: ManifestPlan, kind: str, labels: dict[str, str], is_used: bool
) -> None:
    """An existing companion of another run fails preflight and is not used, except for data that the run keeps."""
    metadata = {"name": "hosts", "labels": plan.labels | {"torchyard/role": "companion"}}
    companion = {"apiVersion": "v1", "kind": kind, "metadata": metadata}
    existing = fake_api.put(companion | {"metadata": {"name": "hosts", "labels": labels}})
    companion_plan = plan.model_copy(update={"store": (companion,), "objects": ()})
    check = check_admission(fake_server, AdmissionAccepted(target="objects"), "admission", companion_plan)
    if is_used:
        assert create.adopt_or_create(fake_server, plan, companion) == (existing, False)
        assert (check.verdict, check.what) == ("ok", f"{kind} hosts already exists, and is used as it is")
        return
    reason = "belongs to the run other-00000001, which deletes it at its end"
    for dry_run in (True, False):
        with pytest.raises(ClusterError, match=f"create {kind} hosts: it {reason}"):
            create.adopt_or_create(fake_server, plan, companion, dry_run=dry_run)
    assert (check.verdict, check.what) == ("failed", f"{kind} hosts already exists, and {reason}")
    assert "kubectl -n default get lease other-00000001" in check.remedy
    assert ("so that each run has its own" in check.remedy) == (kind == "Service")
    assert fake_api.find("v1", kind, "hosts") == existing


def test_companion_of_an_earlier_attempt_is_used(fake_api: FakeApi, fake_server: Client, plan: ManifestPlan) -> None:
    """A companion that the run's previous attempt has left is used: no other run deletes it."""
    labels = plan.labels | {"torchyard/role": "companion"}
    companion = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hosts", "labels": labels}}
    existing = fake_api.put(companion | {"metadata": {"name": "hosts", "labels": labels | {"torchyard/attempt": "0"}}})
    assert create.adopt_or_create(fake_server, plan, companion) == (existing, False)


@pytest.mark.parametrize("dry_run", [True, False])
def test_object_of_this_run_is_adopted_where_admission_refuses_it(
    fake_api: FakeApi, fake_server: Client, plan: ManifestPlan, dry_run: bool
) -> None:
    """A quota that the object itself uses up refuses it before the API server finds that its name is taken."""
    existing, _ = create.adopt_or_create(fake_server, plan, plan.store[0])
    fake_api.fail("POST", "/services", 403)
    assert create.adopt_or_create(fake_server, plan, plan.store[0], dry_run=dry_run) == (existing, False)


def test_refusal_is_reported_where_the_object_may_not_be_read(
    fake_api: FakeApi, fake_server: Client, plan: ManifestPlan
) -> None:
    """A user who may neither create nor read an object gets the refusal of its creation."""
    fake_api.fail("POST", "/services", 422)
    fake_api.fail("GET", "/services/", 403)
    with pytest.raises(ClusterError, match=r"POST .*: a fault of the test: 422"):
        create.adopt_or_create(fake_server, plan, plan.store[0])


def test_name_that_becomes_free_is_used(fake_api: FakeApi, fake_server: Client, plan: ManifestPlan) -> None:
    """If the existing object disappears after the refusal, the new one is created."""
    fake_api.fail("POST", "/services", 409, times=1)
    _, created = create.adopt_or_create(fake_server, plan, plan.store[0])
    assert created


def test_conflict_about_something_else_is_reported_as_it_is(
    fake_api: FakeApi, fake_server: Client, plan: ManifestPlan
) -> None:
    """A conflict of quotas has the same status as an existing name, and no object has the name."""
    fake_api.fail("POST", "/services", 409)
    with pytest.raises(ClusterError, match="a fault of the test: 409"):
        create.adopt_or_create(fake_server, plan, plan.store[0])


@pytest.mark.parametrize(
    ("refused", "missing"),
    [
        (("", ""), None),
        (("create", "networkpolicies.networking.k8s.io"), "NetworkPolicy"),
        (("delete", "networkpolicies.networking.k8s.io"), "NetworkPolicy"),
        (("create", "configmaps"), "ConfigMap"),
    ],
)
def test_forbidden_optional_object_is_dropped_from_the_plan(
    plan: ManifestPlan, monkeypatch: pytest.MonkeyPatch, refused: tuple[str, str], missing: str | None
) -> None:
    """Without a right on a policy, or on the ConfigMap of torchyard's own files, the stored plan does not have it."""
    monkeypatch.setattr(
        create, "list_missing_rights", lambda client, rights: [right for right in rights if right == refused]
    )
    kept = create.drop_forbidden_objects(plan)
    kinds = ["Service", "NetworkPolicy", "Pod", "ConfigMap", "Job"]
    assert [obj["kind"] for obj in (*kept.store, *kept.objects)] == [kind for kind in kinds if kind != missing]


def test_job_without_optional_objects_needs_no_review_of_rights(planned: Planned, fake_api: FakeApi) -> None:
    """A job without a store and without torchyard's own files has no optional objects, so no rights are reviewed."""
    plan = create.resolve_cluster(planned(on_hang="off"))
    assert create.drop_forbidden_objects(plan) is plan
    assert fake_api.received == []


# --- the job


@pytest.fixture
def job_plan(planned: Planned, fake_api: FakeApi) -> ManifestPlan:
    """The plan of a job without a store."""
    return create.resolve_cluster(planned())


def list_dry_runs(fake_api: FakeApi, plan: ManifestPlan) -> list[str]:
    """The `dryRun` parameter of each request that created the job: `All`, or empty if it was not a dry run."""
    requests = [
        request for request in fake_api.find_requests("POST", "/jobs") if request.body["metadata"]["name"] == plan.job
    ]
    return [request.query.get("dryRun", "") for request in requests]


def test_job_is_created_once(fake_api: FakeApi, job_plan: ManifestPlan) -> None:
    """The job is created after a dry run, owned by the run's Lease; a resumed run finds it."""
    job, created = create.create_job(job_plan)
    run_lease = fake_api.find("coordination.k8s.io/v1", "Lease", job_plan.run)
    assert run_lease
    assert job["metadata"]["ownerReferences"] == [lease_record.owner_reference(run_lease)]
    assert (created, list_dry_runs(fake_api, job_plan), lease_record.is_submitted(run_lease)) == (
        True,
        ["All", ""],
        True,
    )
    adopted, created = create.create_job(job_plan)
    assert (adopted["metadata"]["uid"], created) == (job["metadata"]["uid"], False)


def test_deleted_job_is_not_created_again(fake_api: FakeApi, job_plan: ManifestPlan) -> None:
    """A submitted job that is gone was deleted by another user: a resumed run creates nothing."""
    create.create_job(job_plan)
    dry_runs = list_dry_runs(fake_api, job_plan)
    fake_api.objects.delete(ObjectKey("batch.volcano.sh/v1alpha1/jobs", "default", job_plan.job), {})
    assert create.create_job(job_plan) == (job_plan.main, False)
    assert list_dry_runs(fake_api, job_plan) == dry_runs
    assert fake_api.find("batch.volcano.sh/v1alpha1", "Job", job_plan.job) is None


def test_deleted_job_is_not_created_again_without_its_lease(fake_api: FakeApi, job_plan: ManifestPlan) -> None:
    """A job that was deleted with its Lease is not created again, and the next Lease records that it was submitted."""
    create.create_job(job_plan)
    fake_api.objects.delete(ObjectKey("coordination.k8s.io/v1/leases", "default", job_plan.run), {})
    assert create.create_job(job_plan, was_submitted=True) == (job_plan.main, False)
    assert fake_api.find("batch.volcano.sh/v1alpha1", "Job", job_plan.job) is None
    run_lease = fake_api.find("coordination.k8s.io/v1", "Lease", job_plan.run)
    assert run_lease
    assert lease_record.is_submitted(run_lease)


def test_attaching_does_not_create_the_job(fake_api: FakeApi, job_plan: ManifestPlan) -> None:
    """A resumed run attaches to its job where creations are refused, as by a quota."""
    job, _ = create.create_job(job_plan)
    posts = len(fake_api.find_requests("POST", "/jobs"))
    fake_api.fail("POST", "/jobs", 403)
    attached, created = create.create_job(job_plan)
    assert (attached["metadata"]["uid"], created) == (job["metadata"]["uid"], False)
    assert len(fake_api.find_requests("POST", "/jobs")) == posts


def test_store_gets_its_job_as_owner_once(fake_api: FakeApi, fake_server: Client, plan: ManifestPlan) -> None:
    """The job owns the objects of its store, and a process that attaches to it does not patch them again."""
    run_lease = lease.acquire_lease(plan)
    for obj in plan.store:
        create.adopt_or_create(fake_server, plan, create.add_owner(obj, run_lease))
    job, _ = create.create_job(plan)
    patches = list(fake_api.find_requests("PATCH", "-etcd"))
    assert len(patches) == len(plan.store)
    create.create_job(plan)
    assert fake_api.find_requests("PATCH", "-etcd") == patches
    for obj in plan.store:
        existing = fake_api.find(obj["apiVersion"], obj["kind"], obj["metadata"]["name"]) or {}
        assert job["metadata"]["uid"] in [owner["uid"] for owner in existing["metadata"]["ownerReferences"]]


def test_refused_objects_of_an_attached_job_are_a_warning(
    fake_api: FakeApi, planned: Planned, caplog: pytest.LogCaptureFixture
) -> None:
    """A deleted Service that may not be created again does not keep a resumed run from its job."""
    plan = create.resolve_cluster(planned(launcher="job"))
    job, _ = create.create_job(plan)
    (service,) = (obj for obj in plan.objects if obj["kind"] == "Service")
    fake_api.objects.delete(ObjectKey("v1/services", "default", service["metadata"]["name"]), {})
    fake_api.fail("POST", "/services", 403)
    attached, created = create.create_job(plan)
    assert (attached["metadata"]["uid"], created) == (job["metadata"]["uid"], False)
    assert caplog.messages[-1].startswith("pods that start later will fail: ")


def test_job_of_another_owner_is_not_attached_to(fake_api: FakeApi, job_plan: ManifestPlan) -> None:
    """A submitted job whose name belongs to another owner by now is gone."""
    create.create_job(job_plan)
    fake_api.objects.delete(ObjectKey("batch.volcano.sh/v1alpha1/jobs", "default", job_plan.job), {})
    foreign_job = fake_api.put(build_foreign(job_plan.main))
    assert create.create_job(job_plan) == (job_plan.main, False)
    assert fake_api.find("batch.volcano.sh/v1alpha1", "Job", job_plan.job) == foreign_job


def test_refused_dry_run_creates_nothing(fake_api: FakeApi, planned: Planned) -> None:
    """If the dry run of one object is refused, no object of the job is created."""
    plan = create.resolve_cluster(planned(rendezvous="c10d"))
    fake_api.fail("POST", f"/{plan.objects[-1]['kind'].lower()}s.*dryRun=All", 422)
    with pytest.raises(ClusterError, match="422"):
        create.create_job(plan)
    requests = [request for request in fake_api.received if request.method == "POST" and "dryRun" not in request.query]
    assert [request.body["kind"] for request in requests] == ["Lease"]


def test_name_of_another_owner_is_refused_immediately(fake_api: FakeApi, job_plan: ManifestPlan) -> None:
    """An object of another owner is not waited for: creating the job is tried once."""
    fake_api.put(build_foreign(job_plan.main))
    with pytest.raises(ClusterError, match="does not belong to this run"):
        create.create_job(job_plan)
    assert list_dry_runs(fake_api, job_plan) == ["All"]


# --- the store


def test_store_is_awaited_until_it_is_ready(fake_api: FakeApi, plan: ManifestPlan) -> None:
    """The rendezvous store is awaited until its pod is Ready, and an existing one is used."""
    pod = next(obj for obj in plan.store if obj["kind"] == "Pod")
    key = ObjectKey("v1/pods", "default", pod["metadata"]["name"])
    statuses = [
        {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]},
        {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]},
        {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    ]
    published = list[str]()

    def publish_status(status: dict[str, Any]) -> None:
        published.append(status["conditions"][0]["status"])
        fake_api.objects.patch(key, {"status": status})

    for number, status in enumerate(statuses):
        run_later(0.3 * (number + 1), partial(publish_status, status))
    create.create_store(plan)
    assert published == ["True", "False", "True"]
    create.create_store(plan)
    assert len([request for request in fake_api.find_requests("POST", "/pods") if not request.query.get("dryRun")]) == 2


def test_outage_does_not_count_as_time_without_a_store(
    fake_api: FakeApi, plan: ManifestPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod may become ready unseen, so its time limit counts only while it is observed."""
    pod = next(obj for obj in plan.store if obj["kind"] == "Pod")
    polls = list[bool]()

    def report_outage(_: ClusterWatch) -> bool:
        polls.append(True)
        if len(polls) == 3:
            ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            fake_api.objects.patch(ObjectKey("v1/pods", "default", pod["metadata"]["name"]), {"status": ready})
        return False

    monkeypatch.setattr(create, "_STORE_READY_TIMEOUT_S", 0.0)
    monkeypatch.setattr(ClusterWatch, "is_fully_observed", report_outage)
    create.create_store(plan)
    assert len(polls) >= 3


@pytest.mark.parametrize(
    ("exit_code", "reason", "is_retryable"), [(1, "exit code 1", False), (137, "signal 9", True)], ids=["exit", "kill"]
)
def test_store_that_has_ended_is_not_waited_for(
    fake_api: FakeApi, plan: ManifestPlan, exit_code: int, reason: str, is_retryable: bool
) -> None:
    """A store that has ended is an error that quotes its last line; only a killed one is worth another attempt."""
    pod = next(obj for obj in plan.store if obj["kind"] == "Pod")
    name = pod["spec"]["containers"][0]["name"]
    container_status = {
        "name": name,
        "state": {"terminated": {"exitCode": exit_code, "finishedAt": "2026-01-01T00:00:00Z"}},
    }
    run_lease = lease.acquire_lease(plan)
    failed_status = {"phase": "Failed", "containerStatuses": [container_status]}
    fake_api.put(create.add_owner(pod, run_lease) | {"status": failed_status})
    fake_api.logs[pod["metadata"]["name"]] = build_lines(2)[0] + b"2026-01-01T00:00:01Z unknown flag: --enable-v2\n"
    message = f"{reason}; last line of its log: unknown flag: --enable-v2;"
    with pytest.raises(RendezvousError, match=message) as caught:
        create.create_store(plan)
    assert caught.value.retry is is_retryable


def test_code_is_sent_when_its_config_map_is_created(
    planned: Planned, fake_api: FakeApi, fake_server: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The archive is added to the ConfigMap, which is not looked for before; a process that resumes the run needs none.

    If another user has deleted the ConfigMap meanwhile, the run still attaches, with a warning.
    """
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.py").touch()
    plan = create.resolve_cluster(planned(code_folder="mine", program="a.py"))
    assert plan.code
    keep_archive(plan.code)
    content = read_archive(plan.code)
    for is_new in (True, False):
        assert create.create_job(plan)[1] == is_new
        code_map = fake_api.find("v1", "ConfigMap", f"{plan.job}-code")
        assert code_map
        assert base64.b64decode(code_map["binaryData"]["code.tar.gz"]) == content
        assert code_map["metadata"]["ownerReferences"][0]["kind"] == "Lease"
        assert bool(fake_api.find_requests("GET", f"configmaps/{plan.job}-code")) is not is_new
        Path(plan.code.path).unlink(missing_ok=True)
    assert caplog.messages == []
    fake_api.objects.delete(ObjectKey("v1/configmaps", "default", f"{plan.job}-code"), {})
    assert create.create_job(plan)[1] is False
    assert caplog.messages[0].startswith("pods that start later will fail: code ")
