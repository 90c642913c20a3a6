"""Deleting the objects of a job: what is deleted, what stays, and the proof that no object remains."""

from collections.abc import Callable
from typing import Any

import pytest
from tenacity import stop_after_attempt, wait_none

from tests.conftest import Planned
from tests.doubles.fake_api import FakeApi
from tests.doubles.fake_objects import ObjectKey, RefusedError
from tests.doubles.leases import RUN, exists
from tests.doubles.pod_jobs import run_later
from tests.inputs.user_manifests import JOB, Launched
from tests.support.waiting import wait_until
from torchyard.cluster import create, delete, lease
from torchyard.kube import retry
from torchyard.kube.client import Client, get_cluster_client
from torchyard.model.errors import ClusterError, RunInUseError
from torchyard.model.plan import ManifestPlan

CLAIM: dict[str, Any] = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "checkpoints"}}
PRIORITY_CLASS = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "low"}}
VOLUME: dict[str, Any] = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "disk"}}
NAMESPACE: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}}
CONFIG: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}


@pytest.fixture
def plan(planned: Planned, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> ManifestPlan:
    """The plan of a running job; objects that are being deleted are waited for only as long as one request takes."""
    monkeypatch.setattr(delete, "REMOVAL_TIMEOUT_S", -1.0)  # beside the grace period of a second
    manifest_plan = planned(deadlines={"grace": 1})
    create.create_job(manifest_plan)
    return manifest_plan


# --- the proof


def test_no_leftovers_if_every_kind_was_listed(plan: ManifestPlan) -> None:
    """There are no leftovers if all kinds in the namespace were listed and none has an object of the run."""
    assert delete.delete_all_objects(plan) == []


@pytest.mark.parametrize("kind", ["pods", "jobs", "podgroups"])
def test_kind_that_may_not_be_listed_is_a_leftover(plan: ManifestPlan, fake_api: FakeApi, kind: str) -> None:
    """A kind that the run has created or watched but may not list is reported as a possible leftover."""
    fake_api.fail("GET", rf"volcano.*/{kind}\?" if kind != "pods" else r"/pods\?", 403)
    (leftover,) = delete.delete_all_objects(plan)
    assert "cannot be listed, so objects may remain: a fault of the test: 403" in leftover


def test_kind_without_the_labels_of_the_run_need_not_be_listed(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """A watched kind that is found by the job's uid has no labels of the run, and disappears with the job."""
    owned = tuple(watched.model_copy(update={"owner_label": "test/job-uid"}) for watched in plan.watch[2:])
    fake_api.fail("GET", r"volcano.*/podgroups\?", 403)
    assert delete.delete_all_objects(plan.model_copy(update={"watch": (*plan.watch[:2], *owned)})) == []


def test_failed_list_is_an_error(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """A kind is skipped only if this user or the server cannot list it; any other refusal is raised."""
    fake_api.fail("GET", r"/services\?", 400)
    with pytest.raises(ClusterError, match="400"):
        delete.delete_all_objects(plan)


def test_kind_that_only_controllers_make_need_not_be_listed(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """A kind that the run does not create itself, such as a controller's NetworkPolicy, may be refused."""
    fake_api.fail("GET", r"/networkpolicies\?", 403)
    assert delete.delete_all_objects(plan) == []


def test_removal_reads_only_what_the_run_can_have_made(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """The proof lists the kinds of the plan and of its controllers, never Secrets, and asks for no discovery."""
    first = len(fake_api.received)
    assert delete.delete_all_objects(plan) == []
    lists = [request.path.rpartition("/")[2] for request in fake_api.received[first:] if request.method == "GET"]
    kinds = {"jobs", "pods", "podgroups", "services", "configmaps", "networkpolicies"}
    assert set(lists) == kinds | {plan.job, f"{plan.job}-files"}


def test_removal_that_was_accepted_is_proven_by_one_reading(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """What a stop and the teardown after it deleted is gone once it is not found."""
    delete.stop_job(plan)
    assert delete.delete_all_objects(plan) == []
    assert fake_api.find_requests("GET", "readyz") == []


def test_removal_by_another_user_is_proven_by_two_readings(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """A job that this process has not deleted is read again, by name, from a server that is ready."""
    delete_without_pods(plan, fake_api)
    assert delete.delete_all_objects(plan) == []
    assert fake_api.find_requests("GET", "readyz")


def test_deletion_in_one_attempt_proves_nothing_about_the_next(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """The next attempt's job may have the same name: its absence takes two readings again."""
    assert delete.delete_all_objects(plan) == []
    labels = {key: "2" if key.endswith("/attempt") else value for key, value in plan.labels.items()}
    assert labels != plan.labels
    assert delete.delete_all_objects(plan.model_copy(update={"labels": labels})) == []
    assert fake_api.find_requests("GET", "readyz")


HIDDEN = [
    pytest.param(b"default backend - 404", id="a proxy's page"),
    pytest.param(
        RefusedError(404, "NotFound", "injected", {"name": "default", "kind": "namespaces"}).body,
        id="the namespace is not found",
    ),
]


@pytest.mark.parametrize("body", HIDDEN)
@pytest.mark.parametrize("is_lasting", [True, False], ids=["until the end", "for the deletion"])
def test_hidden_namespace_is_not_an_empty_one(
    plan: ManifestPlan, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch, body: Any, is_lasting: bool
) -> None:
    """While something else answers for the namespace, nothing is known to be gone: an error, or a repeated deletion."""
    monkeypatch.setattr(delete.delete_all_objects.retry, "stop", stop_after_attempt(2))  # type: ignore[attr-defined]
    monkeypatch.setattr(delete.delete_all_objects.retry, "wait", wait_none())  # type: ignore[attr-defined]
    for method in ("GET", "DELETE"):
        fake_api.answer(method, "/namespaces/default/", 404, body, times=10**9 if is_lasting else 2)
    if is_lasting:
        monkeypatch.setattr(retry, "REQUEST_TIMEOUT_S", 0.1)
        with pytest.raises(ClusterError):
            delete.delete_all_objects(plan)
    else:
        assert delete.delete_all_objects(plan) == []
    fake_api.heal()
    job = fake_api.find(plan.main["apiVersion"], plan.main["kind"], plan.job)
    assert (job is not None) == is_lasting


def test_object_that_the_lists_lack_is_a_leftover(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """Lists that are empty prove nothing: the job is read by name, and it exists."""
    empty_list = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []}
    fake_api.answer("GET", "labelSelector", 200, empty_list)
    fake_api.answer("DELETE", "/jobs/", 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"})
    assert delete.delete_all_objects(plan) == [f"Job default/{plan.job}"]


def test_object_that_the_first_list_lacks_is_a_leftover(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """A pod, whose name the plan may not know, is found by the second list."""
    labels = {"labels": plan.labels, "name": "unknown", "finalizers": ["test/held"]}
    fake_api.put({"apiVersion": "v1", "kind": "Pod", "metadata": labels, "spec": {}})
    empty_list = {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": []}
    fake_api.answer("GET", "/pods[?]", 200, empty_list, times=1)
    assert delete.delete_all_objects(plan) == ["Pod default/unknown"]


def test_object_that_a_controller_makes_late_is_awaited(planned: Planned, fake_api: FakeApi) -> None:
    """What a controller makes for a job that is already deleted is no leftover: the garbage collector deletes it."""
    plan = planned(deadlines={"grace": 1})
    create.create_job(plan)
    owner = {"apiVersion": plan.main["apiVersion"], "kind": "Job", "name": plan.job, "uid": "gone"}
    metadata = {"name": "late", "labels": plan.labels, "ownerReferences": [owner]}
    fake_api.put({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": metadata})
    empty_list = {"kind": "PodGroupList", "metadata": {"resourceVersion": "1"}, "items": []}
    fake_api.answer("GET", "/podgroups[?]", 200, empty_list, times=1)

    def collect_garbage() -> None:
        wait_until(lambda: len(fake_api.find_requests("GET", r"/podgroups$")) > 2)
        fake_api.objects.delete(ObjectKey("scheduling.volcano.sh/v1beta1/podgroups", "default", "late"), {})

    run_later(0.0, collect_garbage)
    assert delete.delete_all_objects(plan) == []


# --- a job that another user has deleted


def put_orphan(fake_api: FakeApi, plan: ManifestPlan, name: str, **labels: str) -> dict[str, Any]:
    """A pod with the labels of the run that no object owns."""
    return fake_api.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": plan.labels | labels}})


def delete_without_pods(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """Delete the job as another user, and leave what its controllers have made."""
    group_version, _, version = plan.main["apiVersion"].partition("/")
    key = ObjectKey(f"{group_version}/{version}/jobs", "default", plan.job)
    fake_api.objects.delete(key, {"propagationPolicy": "Orphan"})


@pytest.mark.parametrize("end", [delete.stop_job, delete.delete_all_objects])
def test_pods_that_a_deletion_left_are_deleted(plan: ManifestPlan, fake_api: FakeApi, end: Callable[..., Any]) -> None:
    """Pods of a job that another user deleted without them are deleted; a user's copy of one is a leftover."""
    delete_without_pods(plan, fake_api)
    orphans = [put_orphan(fake_api, plan, f"{plan.job}-{index}-x7k2p") for index in range(2)]
    copied = put_orphan(fake_api, plan, "debug")
    end(plan)
    assert [exists(fake_api, pod) for pod in (*orphans, copied)] == [False, False, True]


def test_pods_of_a_job_that_exists_are_no_orphans(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """A stop deletes the job alone while it exists: its controller ends the pods, with their grace."""
    orphan = put_orphan(fake_api, plan, f"{plan.job}-0-x7k2p")
    delete.stop_job(plan)
    assert exists(fake_api, orphan)


# --- the proof of ownership


LEASE_KEY = ObjectKey("coordination.k8s.io/v1/leases", "default", RUN)


def test_run_that_was_taken_over_is_not_deleted(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """A launcher whose Lease another process has taken deletes neither the job nor the store, and does not stop it."""
    fake_api.objects.patch(LEASE_KEY, {"spec": {"holderIdentity": "elsewhere:/runs"}})
    for remove in (delete.delete_all_objects, lambda taken: delete.delete_object(taken, taken.main)):
        with pytest.raises(RunInUseError, match="taken it over"):
            remove(plan)
    assert fake_api.find_requests("DELETE", ".") == []


def test_owner_that_cannot_be_read_deletes_nothing(
    plan: ManifestPlan, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the Lease cannot be renewed now, an earlier renewal does not count."""
    monkeypatch.setattr(retry, "REQUEST_TIMEOUT_S", 0.1)
    fake_api.answer("PATCH", "/leases/", 404, b"default backend - 404")
    with pytest.raises(ClusterError):
        delete.delete_object(plan, plan.main)
    assert fake_api.find_requests("DELETE", ".") == []


def test_deletion_names_the_object_that_was_read(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """A deletion carries the uid of the job, and follows a renewal of the Lease."""
    job = fake_api.find(plan.main["apiVersion"], plan.main["kind"], plan.job) or {}
    delete.delete_object(plan, plan.main)
    renewal, deletion = fake_api.received[-2:]
    assert (renewal.method, renewal.path) == ("PATCH", f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{RUN}")
    assert deletion.body["preconditions"] == {"uid": job["metadata"]["uid"]}


def test_run_without_a_lease_is_deleted(plan: ManifestPlan, fake_api: FakeApi) -> None:
    """Without a Lease no other process owns the run; a Lease that is only reported missing once protects it."""
    not_found = RefusedError(404, "NotFound", "injected", {"name": RUN, "kind": "leases"}).body
    fake_api.answer("PATCH", "/leases/", 404, not_found, times=1)
    with pytest.raises(ClusterError, match="it was not found, and exists"):
        delete.delete_object(plan, plan.main)
    fake_api.objects.delete(LEASE_KEY, {"propagationPolicy": "Orphan"})
    assert delete.delete_all_objects(plan) == []
    assert fake_api.find(plan.main["apiVersion"], plan.main["kind"], plan.job) is None


# --- pods of a job that is being deleted


OWNER: dict[str, Any] = {"kind": "Job", "metadata": {"name": "train", "uid": "1", "deletionTimestamp": "2026-01-01"}}
LABELS = {"torchyard/run": "train-1"}


def confirm_nothing() -> None:
    """The run has no Lease in these tests."""


def put_pod(fake_api: FakeApi, name: str, owner_uid: str, **labels: str) -> dict[str, Any]:
    owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "train", "uid": owner_uid}
    all_labels = LABELS | {f"torchyard/{key}": value for key, value in labels.items()}
    metadata = {"name": name, "labels": all_labels, "ownerReferences": [owner]}
    return fake_api.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})


def test_pods_of_a_deleted_job_are_deleted_by_one_request(fake_api: FakeApi, fake_server: Client) -> None:
    """Once the job is being deleted, one request deletes all its pods; a store's pod and another run's stay."""
    pods = [put_pod(fake_api, f"worker-{index}", "1") for index in range(3)]
    store = put_pod(fake_api, "etcd", "2", role="etcd")
    other = fake_api.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"}})
    delete.delete_owned_pods(fake_server, LABELS, [OWNER, *pods, store], confirm_nothing)
    assert [exists(fake_api, pod) for pod in (*pods, store, other)] == [False, False, False, True, True]
    assert len(fake_api.find_requests("DELETE", ".")) == 1


def test_many_pods_are_deleted_by_parallel_requests(fake_api: FakeApi, fake_server: Client) -> None:
    """Many pods are divided among four requests by their index; one that was listed without it is deleted too."""
    pods = [put_pod(fake_api, f"worker-{index}", "1", index=str(index)) for index in range(200)]
    pods.append(put_pod(fake_api, "new", "1"))
    store = put_pod(fake_api, "etcd", "2", role="etcd")
    delete.delete_owned_pods(fake_server, LABELS, [OWNER, *pods[:-1], store], confirm_nothing)
    assert [pod["metadata"]["name"] for pod in (*pods, store) if exists(fake_api, pod)] == ["etcd"]
    assert len(fake_api.find_requests("DELETE", ".")) == 4


@pytest.mark.parametrize(
    ("label_sets", "expected"),
    [
        pytest.param([{"index": str(index)} for index in range(31)], [""], id="few pods"),
        pytest.param([{"run": "a"}] * 100, [""], id="no label that differs"),
        pytest.param([{"name": "n" * 60 + str(index)} for index in range(100)], [""], id="labels too long"),
        pytest.param(
            [{"run": "a", "index": str(index % 4)} for index in range(32)],
            ["index in (0,2)", "index notin (0,2)"],
            id="two shares",
        ),
    ],
)
def test_shares_of_pods(label_sets: list[dict[str, str]], expected: list[str]) -> None:
    """The shares are disjoint; pods that no label divides, or that are few, are one share."""
    assert delete.split_pods(label_sets) == expected


@pytest.mark.parametrize("case", ["the owner is not being deleted", "a pod of another owner", "no pod is left"])
def test_pods_are_not_deleted_without_proof(fake_api: FakeApi, fake_server: Client, case: str) -> None:
    """Nothing is sent while an owner lives, if a pod with the run's labels has another owner, or if no pod is left."""
    objects = [OWNER, put_pod(fake_api, "worker-0", "1")]
    if case == "the owner is not being deleted":
        objects[0] = {"kind": "Job", "metadata": {"name": "train", "uid": "1"}}
    elif case == "a pod of another owner":
        objects.append(put_pod(fake_api, "copied", "7"))
    else:
        objects.pop()
    delete.delete_owned_pods(fake_server, LABELS, objects, confirm_nothing)
    assert fake_api.find_requests("DELETE", ".") == []


def test_refused_deletion_of_a_collection_is_ignored(fake_api: FakeApi, fake_server: Client) -> None:
    """A user who may not delete collections of pods leaves them to the garbage collector; other refusals are raised."""
    pod = put_pod(fake_api, "worker-0", "1")
    fake_api.fail("DELETE", "/pods", 403)
    delete.delete_owned_pods(fake_server, LABELS, [OWNER, pod], confirm_nothing)
    assert exists(fake_api, pod)
    fake_api.heal()
    fake_api.fail("DELETE", "/pods", 400)
    with pytest.raises(ClusterError, match="400"):
        delete.delete_owned_pods(fake_server, LABELS, [OWNER, pod], confirm_nothing)


# --- pods that cannot confirm their end


def build_stuck_pod(name: str, node: str | None) -> dict[str, Any]:
    spec = {"nodeName": node} if node else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def put_node(fake_api: FakeApi, name: str, ready: str | None) -> None:
    """Store a node; `ready`: the status of its condition Ready, None without the condition."""
    conditions = [{"type": "Ready", "status": ready}] if ready else []
    status = {"conditions": conditions}
    fake_api.put({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status})


def test_only_pods_of_dead_nodes_are_force_deleted(fake_api: FakeApi, fake_server: Client) -> None:
    """A pod whose node is gone or no longer heard is force-deleted; a kubelet that reports anything may run its pod."""
    for name, ready in (("alive", "True"), ("unready", "False"), ("new", None), ("lost", "Unknown")):
        put_node(fake_api, name, ready)
    pods = [fake_api.put(build_stuck_pod(f"on-{name}", name)) for name in ("alive", "unready", "new", "lost", "gone")]
    objects = [*pods, fake_api.put(CONFIG), fake_api.put(build_stuck_pod("placed-nowhere", None))]
    delete.force_delete_pods(fake_server, objects, confirm_nothing)
    remaining_names = [obj["metadata"]["name"] for obj in objects if exists(fake_api, obj)]
    assert remaining_names == ["on-alive", "on-unready", "on-new", "settings"]
    assert {request.body["gracePeriodSeconds"] for request in fake_api.find_requests("DELETE", "/pods/")} == {0}


def test_node_that_may_not_be_read_does_not_count_as_dead(fake_api: FakeApi, fake_server: Client) -> None:
    """Without the right to read nodes a stuck pod stays, since its node may be alive; any other refusal is raised."""
    pod = fake_api.put(build_stuck_pod("on-alive", "alive"))
    fake_api.fail("GET", "/nodes/alive", 400)
    with pytest.raises(ClusterError):
        delete.force_delete_pods(fake_server, [pod], confirm_nothing)
    assert exists(fake_api, pod)
    fake_api.heal()
    fake_api.fail("GET", "/nodes/alive", 403)
    delete.force_delete_pods(fake_server, [pod], confirm_nothing)
    assert exists(fake_api, pod)


def test_node_is_read_before_each_try_of_a_forced_deletion(fake_api: FakeApi, fake_server: Client) -> None:
    """A node that is heard again during an outage keeps its pod: the deletion is not repeated."""
    put_node(fake_api, "lost", "Unknown")
    pod = fake_api.put(build_stuck_pod("on-lost", "lost"))
    fake_api.fail("DELETE", "/pods/on-lost", 503, times=1)
    confirmations: list[str] = []

    def confirm_ownership() -> None:
        confirmations.append("confirmed")
        put_node(fake_api, "lost", "True")

    delete.force_delete_pods(fake_server, [pod], confirm_ownership)
    assert exists(fake_api, pod)
    assert confirmations == ["confirmed"]


def test_pod_that_got_a_node_meanwhile_is_not_force_deleted(fake_api: FakeApi, fake_server: Client) -> None:
    """A pod without a node has never run; one that has changed since it was read may have got a node."""
    pod = fake_api.put(build_stuck_pod("late", None))
    bound_pod = fake_api.put(build_stuck_pod("late", "alive") | {"metadata": pod["metadata"]})
    delete.force_delete_pods(fake_server, [pod], confirm_nothing)
    assert exists(fake_api, bound_pod)


@pytest.mark.parametrize(
    ("ready", "reason"), [(None, "role torchyard-look"), ("True", "its kubelet reports Ready=True")]
)
def test_pod_that_may_not_be_forced_is_a_leftover_with_the_reason(
    plan: ManifestPlan, fake_api: FakeApi, ready: str | None, reason: str
) -> None:
    """With `on_stuck_pod: force` the leftover states why its node may be alive, and what to do."""
    if ready:
        put_node(fake_api, "gpu-7", ready)
    else:
        fake_api.fail("GET", "/nodes/gpu-7", 403)
    metadata = {
        "name": f"{plan.job}-worker-0",
        "labels": dict(plan.labels),
        "deletionTimestamp": "2026-11-22T08:00:00Z",
    }
    pod = fake_api.put(build_stuck_pod("", "gpu-7") | {"metadata": metadata})
    leftovers = delete.delete_all_objects(plan.model_copy(update={"force_delete": True}))
    (message,) = [leftover for leftover in leftovers if leftover.startswith("Pod")]
    assert "not force-deleted (on_stuck_pod), because node gpu-7 may be alive" in message
    assert reason in message
    assert exists(fake_api, pod)


# --- companions of a manifest's job


def create_and_delete(plan: ManifestPlan) -> list[str]:
    """Create the companions and the job, and delete everything; return the leftovers."""
    run_lease = lease.acquire_lease(plan)
    for obj in plan.store:
        create.adopt_or_create(get_cluster_client(plan.cluster), plan, create.add_owner(obj, run_lease))
    create.create_job(plan)
    return delete.delete_all_objects(plan)


def test_companion_that_holds_data_stays(launched: Launched, fake_api: FakeApi, fake_server: Client) -> None:
    """A claim with checkpoints outlives its run: it has no owner and no labels, and is not a leftover."""
    plan = launched(CLAIM, CONFIG, JOB)
    assert create_and_delete(plan) == []
    claim = fake_server.get("v1", "PersistentVolumeClaim", "checkpoints") or {"metadata": {}}
    assert not claim["metadata"].get("ownerReferences")
    assert not claim["metadata"].get("labels")
    lease.release_lease(plan)
    assert {obj["kind"] for obj in (CLAIM, CONFIG) if exists(fake_api, in_default_namespace(obj))} == {
        "PersistentVolumeClaim"
    }


def in_default_namespace(obj: dict[str, Any]) -> dict[str, Any]:
    return obj | {"metadata": obj["metadata"] | {"namespace": "default"}}


def test_profile_may_delete_data(launched: Launched, fake_api: FakeApi) -> None:
    """With `on_companion_data: delete` a claim is deleted like any other companion."""
    assert create_and_delete(launched(CLAIM, JOB, on_companion_data="delete")) == []
    assert not exists(fake_api, in_default_namespace(CLAIM))


@pytest.mark.parametrize("on_companion_data", ["keep", "delete"])
@pytest.mark.parametrize("companion", [PRIORITY_CLASS, VOLUME, NAMESPACE], ids=["class", "volume", "namespace"])
def test_companion_without_a_namespace_stays(
    launched: Launched, fake_api: FakeApi, companion: dict[str, Any], on_companion_data: str
) -> None:
    """An object of the whole cluster is created outside the namespace, without a label or an owner, and kept."""
    plan = launched(companion, JOB, on_companion_data=on_companion_data)
    assert create_and_delete(plan) == []
    created = fake_api.find(companion["apiVersion"], companion["kind"], companion["metadata"]["name"], "") or {}
    assert {"labels", "ownerReferences"}.isdisjoint(created["metadata"])
    assert not fake_api.find_requests("POST", rf"/namespaces/default/{companion['kind'].lower()}")
    assert create_and_delete(launched(companion, JOB, attempt=2)) == []


def test_companion_older_than_the_run_stays(launched: Launched, fake_api: FakeApi) -> None:
    """A companion that existed before the run is used and kept, with any `on_companion_data`."""
    for obj in (CLAIM, CONFIG):
        fake_api.put(obj)
    assert create_and_delete(launched(CLAIM, CONFIG, JOB, on_companion_data="delete")) == []
    assert [exists(fake_api, in_default_namespace(obj)) for obj in (CLAIM, CONFIG)] == [True, True]


def test_claim_of_another_run_keeps_its_owner(launched: Launched, fake_api: FakeApi) -> None:
    """Labels and owners are removed only from claims of this run."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "theirs", "uid": "1"}
    metadata = {"name": "checkpoints", "labels": {"torchyard/run": "other-00000001"}, "ownerReferences": [owner]}
    fake_api.put(CLAIM | {"metadata": metadata})
    assert create_and_delete(launched(CLAIM, JOB)) == []
    claim = fake_api.find("v1", "PersistentVolumeClaim", "checkpoints") or {"metadata": {}}
    assert {key: claim["metadata"][key] for key in metadata} == metadata


@pytest.mark.parametrize("on_companion_data", ["keep", "delete"])
def test_kept_claim_is_used_by_the_next_run(launched: Launched, fake_api: FakeApi, on_companion_data: str) -> None:
    """The next run of the profile uses the claim that the previous one has kept."""
    assert create_and_delete(launched(CLAIM, JOB)) == []
    assert create_and_delete(launched(CLAIM, JOB, attempt=2, on_companion_data=on_companion_data)) == []
    assert exists(fake_api, in_default_namespace(CLAIM))


# --- files of this machine


def test_files_are_deleted_after_the_job(planned: Planned, fake_api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ConfigMap is owned by the run's Lease, created before the job and deleted after it."""
    monkeypatch.setattr(delete, "REMOVAL_TIMEOUT_S", -1.0)
    plan = planned(deadlines={"grace": 1}, files={"/opt/sample.py": "sample.py"})
    create.create_job(plan)
    config_map = get_cluster_client(plan.cluster).get("v1", "ConfigMap", f"{plan.job}-files")
    assert config_map is not None
    assert [owner["kind"] for owner in config_map["metadata"]["ownerReferences"]] == ["Lease"]
    assert delete.delete_all_objects(plan) == []
    assert not exists(fake_api, config_map)
    deleted_names = [request.path.rpartition("/")[2] for request in fake_api.received if request.method == "DELETE"]
    assert deleted_names == [plan.job, f"{plan.job}-files"]


def test_files_that_are_being_deleted_are_awaited(planned: Planned, fake_api: FakeApi) -> None:
    """A ConfigMap that waits for the garbage collector is not left over, also with a controller that makes none."""
    plan = planned(launcher="pytorchjob")
    assert ("v1", "ConfigMap") not in [(made.api, made.kind) for made in plan.made]
    create.create_job(plan)
    key = ObjectKey("v1/configmaps", "default", f"{plan.job}-files")
    fake_api.objects.patch(key, {"metadata": {"finalizers": ["foregroundDeletion"]}})

    def remove_once_listed() -> None:
        wait_until(lambda: fake_api.find_requests("GET", r"/configmaps$"))
        fake_api.objects.patch(key, {"metadata": {"finalizers": None}})

    run_later(0.0, remove_once_listed)
    assert delete.delete_all_objects(plan) == []


def test_files_that_the_lists_lack_are_awaited_by_name(planned: Planned, fake_api: FakeApi) -> None:
    """A ConfigMap that is being deleted, and that empty lists hide, is not left over."""
    plan = planned(launcher="pytorchjob")
    create.create_job(plan)
    key = ObjectKey("v1/configmaps", "default", f"{plan.job}-files")
    fake_api.objects.patch(key, {"metadata": {"finalizers": ["foregroundDeletion"]}})
    empty_list = {"kind": "List", "metadata": {"resourceVersion": "1"}, "items": []}
    fake_api.answer("GET", "labelSelector", 200, empty_list)

    def remove_once_read() -> None:
        wait_until(lambda: len(fake_api.find_requests("GET", rf"/configmaps/{plan.job}-files$")) > 1)
        fake_api.objects.patch(key, {"metadata": {"finalizers": None}})

    run_later(0.0, remove_once_read)
    assert delete.delete_all_objects(plan) == []


def test_files_that_may_not_be_listed_are_a_leftover(planned: Planned, fake_api: FakeApi) -> None:
    """A run that has created a ConfigMap reports a possible leftover if ConfigMaps may not be listed."""
    plan = planned(files={"/opt/sample.py": "sample.py"})
    create.create_job(plan)
    fake_api.fail("GET", r"/configmaps\?", 403)
    (leftover,) = delete.delete_all_objects(plan)
    assert leftover.startswith("ConfigMap in default: cannot be listed, so objects may remain")
