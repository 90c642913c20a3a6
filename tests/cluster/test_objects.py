"""A plan's objects on a real API server: created once, adopted by later processes, and removed completely."""

import copy
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fault_proxy import FaultProxy
from tests.cluster.jobs import Jobs, until
from tests.cluster.objects import delete_by_name
from torchyard.backends import job_of
from torchyard.cluster import create, delete
from torchyard.cluster.listing import list_kinds, list_labelled_objects
from torchyard.diagnosis import pod_facts
from torchyard.kube.client import Client, KubeObject
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Handle
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown

ETCD_PROFILE = "yolov5-volcano-etcd"
SUBMIT_SCRIPT = """
import sys
from pathlib import Path
from torchyard.model.plan import ManifestPlan
from torchyard.cluster.create import create_job
print(create_job(ManifestPlan.model_validate_json(Path(sys.argv[1]).read_text()))[1])
"""


def list_remaining(jobs: Jobs, plan: ManifestPlan) -> list[KubeObject]:
    """The plan's objects of every kind that can be listed."""
    return list_labelled_objects(jobs.client, list_kinds(jobs.client), plan.labels).objects


def build_config_map(name: str, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name} | metadata}


def list_jobs(jobs: Jobs, plan: ManifestPlan) -> list[dict[str, Any]]:
    """The jobs that have the run's labels."""
    return jobs.list_labelled(plan, plan.main["apiVersion"], plan.main["kind"])


def is_running(jobs: Jobs, plan: ManifestPlan) -> bool:
    """Whether both pods of the job run."""
    pods = jobs.list_labelled(plan, "v1", "Pod")
    return len(pods) == 2 and all(pod_facts.get_pod_phase(pod) == "Running" for pod in pods)


# --- creating


def test_second_submit_adopts(jobs: Jobs) -> None:
    """A second submit of the same plan finds its job, and returns that it created nothing."""
    plan = jobs.plan()
    handles = [submit(plan, Deadlines()) for _ in range(2)]
    assert [handle.created for handle in handles] == [True, False]
    assert handles[0].submitted_at == handles[1].submitted_at
    assert len(list_jobs(jobs, plan)) == 1


def test_another_process_adopts(jobs: Jobs, tmp_path: Path) -> None:
    """A stored plan is sufficient for another process to find the job."""
    plan = jobs.start()
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    command = [sys.executable, "-c", SUBMIT_SCRIPT, str(tmp_path / "plan.json")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_two_submits_at_once_create_one_job(jobs: Jobs) -> None:
    """If two threads submit at the same moment, one creates the job, and both get it."""
    plan = jobs.plan()
    results = list[tuple[str, bool]]()

    def create_job() -> None:
        job, created = create.create_job(plan)
        results.append((job["metadata"]["uid"], created))

    threads = [threading.Thread(target=create_job) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(created for _, created in results) == [False, True]
    assert len({uid for uid, _ in results}) == 1


def test_submit_whose_response_was_lost_adopts(jobs: Jobs, proxy: FaultProxy) -> None:
    """If the connection breaks after the job is created and before the response arrives, there is still one job."""
    plan = jobs.plan(proxy)
    proxy.cut_after("/jobs?fieldValidation=Strict", -1)
    client = Client(plan.cluster)
    job, _ = create.adopt_or_create(client, plan, plan.main)
    assert proxy.count_requests("POST ") == 2
    assert [existing["metadata"]["uid"] for existing in list_jobs(jobs, plan)] == [job["metadata"]["uid"]]


def test_taken_name_is_refused(jobs: Jobs) -> None:
    """If another job has the same name, submit fails with that reason, and creates nothing."""
    plan = jobs.plan()
    foreign_job = copy.deepcopy(plan.main)
    foreign_job["metadata"]["labels"] = {"team": "other"}
    jobs.client.create(foreign_job)
    with pytest.raises(ClusterError, match=f"create Job {plan.job}: it exists and does not belong to this run"):
        submit(plan, Deadlines())
    assert list_jobs(jobs, plan) == []


def test_nothing_is_created_if_one_object_is_refused(jobs: Jobs) -> None:
    """If a webhook refuses the job, no other object is created, because all dry runs precede the first create."""
    plan = jobs.plan()
    refused = copy.deepcopy(plan.main)
    refused["spec"]["queue"] = "no-such-queue"
    metadata = {"name": f"{plan.job}-first", "labels": plan.labels}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 80}]}}
    with pytest.raises(ClusterError, match="no-such-queue"):
        create.create_job(plan.model_copy(update={"objects": (service, refused)}))
    assert list_remaining(jobs, plan) == []


def test_unknown_field_is_refused(jobs: Jobs) -> None:
    """A field that the API does not have is refused, not dropped."""
    plan = jobs.plan()
    plan.main["spec"]["minAvailble"] = 2
    with pytest.raises(ClusterError, match=r'unknown field "spec.minAvailble"'):
        create.create_job(plan)


def test_dry_run_creates_nothing(jobs: Jobs) -> None:
    """A dry run has the API server check a job without creating it."""
    plan = jobs.plan()
    assert jobs.client.create(plan.main, dry_run=True)["metadata"]["uid"]
    assert list_jobs(jobs, plan) == []


# --- the store


def test_store_serves_before_the_job(jobs: Jobs) -> None:
    """create_store returns when the run's store is running, and a second call finds the same store."""
    plan = jobs.plan(profile=ETCD_PROFILE)
    for _ in range(2):
        create.create_store(plan)
    (pod,) = jobs.list_labelled(plan, "v1", "Pod")
    assert pod_facts.get_pod_phase(pod) == "Running"


def test_store_is_deleted_with_the_job(jobs: Jobs) -> None:
    """When a user deletes the job, the store is deleted with it; the attempt's files belong to the run's Lease."""
    plan = jobs.plan(profile=ETCD_PROFILE)
    create.create_store(plan)
    create.create_job(plan)
    delete_by_name(jobs.client, plan.main["apiVersion"], plan.main["kind"], plan.job)
    until(lambda: [obj["metadata"]["name"] for obj in list_remaining(jobs, plan)] == [f"{plan.job}-files"])


# --- removing


@pytest.mark.parametrize("profile", ["yolov5-volcano-etcd", "yolov5-pytorchjob-etcd"])
def test_teardown_leaves_nothing(jobs: Jobs, profile: str) -> None:
    """After the teardown of a running job no object of any kind has its labels."""
    plan = jobs.plan(profile=profile)
    create.create_store(plan)
    create.create_job(plan)
    until(lambda: len(jobs.list_labelled(plan, "v1", "Pod")) == 3)
    assert teardown(plan) == ()
    assert list_remaining(jobs, plan) == []


def test_teardown_can_be_repeated(jobs: Jobs) -> None:
    """Tearing down a job that is deleted, or never existed, succeeds."""
    plan = jobs.start()
    assert (teardown(plan), teardown(plan), teardown(jobs.plan())) == ((), (), ())
    job_of(plan).stop()


def test_two_teardowns_at_once(jobs: Jobs) -> None:
    """Two teardowns of a job at the same time, such as a sweep's and the run's own, both succeed."""
    plan = jobs.start()
    leftovers = list[tuple[str, ...]]()
    threads = [threading.Thread(target=lambda: leftovers.append(teardown(plan))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert leftovers == [(), ()]


@pytest.mark.parametrize("moment", ["created", "has pods", "runs"])
def test_teardown_while_the_job_starts(jobs: Jobs, moment: str) -> None:
    """A job that is torn down at any moment of its start leaves no pod."""
    plan = jobs.start()
    if moment == "has pods":
        until(lambda: jobs.list_labelled(plan, "v1", "Pod"))
    elif moment == "runs":
        until(lambda: is_running(jobs, plan))
    assert teardown(plan) == ()


def test_job_is_deleted_after_its_pods(jobs: Jobs) -> None:
    """A stopped job exists until its pods are deleted (foreground deletion), so its absence proves theirs."""
    plan = jobs.start()
    until(lambda: is_running(jobs, plan))
    job_of(plan).stop()
    (job,) = list_jobs(jobs, plan)
    assert "foregroundDeletion" in job["metadata"]["finalizers"]
    until(lambda: not list_jobs(jobs, plan))
    assert jobs.list_labelled(plan, "v1", "Pod") == []


@pytest.fixture
def held_job(jobs: Jobs) -> Iterator[ManifestPlan]:
    """A running job with a pod that has another user's finalizer."""
    plan = jobs.start()
    until(lambda: is_running(jobs, plan))
    pod = jobs.get_pod(plan, "worker-0")
    jobs.client.patch(pod, {"metadata": {"finalizers": ["torchyard.test/held"]}})
    yield plan
    jobs.client.patch(pod, {"metadata": {"finalizers": None}})
    until(lambda: not jobs.list_labelled(plan, "v1", "Pod"))


def test_stuck_pod_is_reported(jobs: Jobs, held_job: ManifestPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Teardown reports a stuck pod and the finalizer that blocks it, after the grace and a bounded time."""
    monkeypatch.setattr(delete, "REMOVAL_TIMEOUT_S", -12.0)  # of the grace of 15 s, teardown waits 3 s
    message = f"Pod {jobs.namespace}/{held_job.job}-worker-0: its finalizer torchyard.test/held holds it"
    assert any(leftover.startswith(message) for leftover in teardown(held_job))


@pytest.fixture
def start_on_dead_node(jobs: Jobs) -> Iterator[Callable[..., ManifestPlan]]:
    """A function that starts a job of one pod on a node, which then stops answering."""
    name = f"dead-{uuid.uuid4().hex[:6]}"
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"dead": name}}}
    path = jobs.client.path("v1", "Node", name, namespace=None)
    jobs.client.request("POST", jobs.client.path("v1", "Node", namespace=None), body=node)
    capacity = {"cpu": "100", "memory": "1000Gi", "ephemeral-storage": "1000Gi", "nvidia.com/gpu": "8", "pods": "10"}
    patch_node_status(jobs, path, "True", {"capacity": capacity, "allocatable": capacity})

    def has_pod_on_node(plan: ManifestPlan) -> bool:
        return any(pod["spec"].get("nodeName") == name for pod in jobs.list_labelled(plan, "v1", "Pod"))

    def start_job(**overrides: Any) -> ManifestPlan:
        jobs.extra_overrides = {"nodes": 1, "hardware": None, "fabric": None} | overrides
        jobs.extra_overrides["pod.node_selector"] = {"dead": name}
        plan = jobs.plan()
        create.create_job(plan)
        until(lambda: has_pod_on_node(plan), timeout_s=60)
        patch_node_status(jobs, path, "Unknown", {})
        return plan

    yield start_job
    jobs.client.request("DELETE", path)


def patch_node_status(jobs: Jobs, node: str, ready: str, status: dict[str, Any]) -> None:
    """Write a node's status as its kubelet does; with `Unknown`, as the cluster does once that no longer reports."""
    condition = {"type": "Ready", "status": ready, "reason": "Test", "lastHeartbeatTime": None}
    jobs.client.request("PATCH", f"{node}/status", body={"status": status | {"conditions": [condition]}})


def test_pod_on_a_dead_node_is_reported(
    jobs: Jobs, start_on_dead_node: Callable[..., ManifestPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod whose node does not confirm its end is reported with its node, and not deleted by force."""
    monkeypatch.setattr(delete, "REMOVAL_TIMEOUT_S", -9.0)  # of the grace of 15 s, teardown waits 6 s
    plan = start_on_dead_node()
    (message, *_) = sorted(teardown(plan), key=lambda leftover: not leftover.startswith("Pod"))
    assert "does not confirm that the pod has ended" in message
    delete_by_name(jobs.client, "v1", "Pod", f"{plan.job}-worker-0", force=True)
    assert teardown(plan) == ()


def test_pod_on_a_dead_node_is_deleted_by_force(
    start_on_dead_node: Callable[..., ManifestPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `on_stuck_pod: force`, a pod on a node that is dead is deleted by force."""
    monkeypatch.setattr(delete, "REMOVAL_TIMEOUT_S", -9.0)  # of the grace of 15 s, teardown waits 6 s
    assert teardown(start_on_dead_node(on_stuck_pod="force")) == ()


def test_foreign_object_with_our_labels_is_reported(jobs: Jobs) -> None:
    """A ConfigMap to which a user gave the run's labels is reported as left over at once, and is not deleted."""
    plan = jobs.start()
    jobs.client.create(build_config_map("notes", labels=plan.labels))
    assert teardown(plan) == (f"ConfigMap {jobs.namespace}/notes",)
    assert delete_by_name(jobs.client, "v1", "ConfigMap", "notes")


def test_foreign_job_with_our_name_is_kept(jobs: Jobs) -> None:
    """Stop and teardown do not change a job that has the run's name but not its labels."""
    plan = jobs.plan()
    foreign_job = copy.deepcopy(plan.main)
    foreign_job["metadata"]["labels"] = {"team": "other"}
    jobs.client.create(foreign_job)
    job_of(plan).stop()
    leftovers = teardown(plan)  # its pods have our labels: they are reported, and stay as well
    assert [leftover for leftover in leftovers if not leftover.startswith("Pod ")] == []
    existing = jobs.client.get(foreign_job["apiVersion"], "Job", plan.job)
    assert existing
    assert "deletionTimestamp" not in existing["metadata"]


def test_teardown_outlasts_an_outage(jobs: Jobs, proxy: FaultProxy) -> None:
    """A teardown waits for an API server that is down for a moment."""
    plan = jobs.start(proxy)
    until(lambda: is_running(jobs, plan))
    outage = threading.Timer(0.3, proxy.interrupt, kwargs={"duration_s": 2.0})
    outage.start()
    assert teardown(plan) == ()
    outage.join()


def test_removal_asks_only_for_kinds_of_the_run(jobs: Jobs, proxy: FaultProxy) -> None:
    """Teardown reads neither discovery nor Secrets: an API whose own server is down does not concern it."""
    plan = jobs.start(proxy)
    request_count = len(proxy.request_lines)
    assert teardown(plan) == ()
    requests = proxy.request_lines[request_count:]
    assert not [line for line in requests if line in ("GET /api", "GET /apis") or "/secrets" in line]


def test_handle_survives_json(jobs: Jobs) -> None:
    """The handle that submit returns can be stored as JSON and read by another process."""
    handle = submit(jobs.plan(), Deadlines())
    assert Handle.model_validate_json(handle.model_dump_json()) == handle
