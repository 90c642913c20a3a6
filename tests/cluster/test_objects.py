"""A plan's objects on a real API server: created once, adopted by later processes, and removed completely."""

import copy
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.jobs import Jobs, until
from tests.cluster.wire import Wire
from torchyard.backend import backend_of
from torchyard.cluster import create as objects
from torchyard.cluster import delete
from torchyard.diagnosis import pod_facts
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Deadlines
from torchyard.model.run import Handle
from torchyard.steps.submit import submit
from torchyard.steps.teardown import teardown

ETCD = "yolov5-volcano-etcd"
SUBMIT = """
import sys
from pathlib import Path
from torchyard.model.plan import ManifestPlan
from torchyard.cluster.create import create_job
print(create_job(ManifestPlan.model_validate_json(Path(sys.argv[1]).read_text()))[1])
"""
CONFIG: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap"}


def config_map(name: str, **about: Any) -> dict[str, Any]:
    return {**CONFIG, "metadata": {"name": name, **about}}


def jobs_of(jobs: Jobs, plan: ManifestPlan) -> list[dict[str, Any]]:
    return jobs.labelled(plan, plan.main["apiVersion"], plan.main["kind"])


def running(jobs: Jobs, plan: ManifestPlan) -> bool:
    pods = jobs.labelled(plan, "v1", "Pod")
    return len(pods) == 2 and all(pod_facts.get_pod_phase(pod) == "Running" for pod in pods)


# --- creating


def test_second_submit_adopts(jobs: Jobs) -> None:
    """A second submit of the same plan finds its job, and says that it created nothing."""
    plan = jobs.plan()
    made = [submit(plan, Deadlines()) for _ in range(2)]
    assert [handle.created for handle in made] == [True, False]
    assert made[0].submitted_at == made[1].submitted_at
    assert len(jobs_of(jobs, plan)) == 1


def test_another_process_adopts(jobs: Jobs, tmp_path: Path) -> None:
    """A stored plan is enough for another process to find the job."""
    plan = jobs.start()
    (tmp_path / "plan.json").write_text(plan.model_dump_json())
    command = [sys.executable, "-c", SUBMIT, str(tmp_path / "plan.json")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_two_submits_at_once_make_one_job(jobs: Jobs) -> None:
    """If two threads submit at the same moment, one creates the job, and both get it."""
    plan, made = jobs.plan(), list[tuple[str, bool]]()

    def create() -> None:
        job, created = objects.create_job(plan)
        made.append((job["metadata"]["uid"], created))

    both = [threading.Thread(target=create) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert sorted(created for _, created in made) == [False, True]
    assert len({uid for uid, _ in made}) == 1


def test_submit_whose_answer_was_lost_adopts(jobs: Jobs, wire: Wire) -> None:
    """If the connection breaks after the job is created and before the answer arrives, there is still one job."""
    plan = jobs.plan(wire)
    wire.cut_after("/jobs?fieldValidation=Strict", -1)
    server = Client(plan.cluster)
    job, _ = objects._adopt_or_create(server, plan, plan.main)
    assert wire.count("POST ") == 2
    assert [each["metadata"]["uid"] for each in jobs_of(jobs, plan)] == [job["metadata"]["uid"]]


def test_taken_name_is_refused(jobs: Jobs) -> None:
    """If another job has the same name, submit fails with a sentence that says so, and creates nothing."""
    plan = jobs.plan()
    theirs = copy.deepcopy(plan.main)
    theirs["metadata"]["labels"] = {"team": "other"}
    jobs.server.create(theirs)
    with pytest.raises(ClusterError, match=f"create Job {plan.job}: it exists and does not belong to this run"):
        submit(plan, Deadlines())
    assert jobs_of(jobs, plan) == []


def test_nothing_is_made_where_a_part_is_refused(jobs: Jobs) -> None:
    """If a webhook refuses the job, no other object of the plan is created, because dry runs of all come first."""
    plan = jobs.plan()
    refused = copy.deepcopy(plan.main)
    refused["spec"]["queue"] = "no-such-queue"
    about = {"name": f"{plan.job}-first", "labels": plan.labels}
    before = {"apiVersion": "v1", "kind": "Service", "metadata": about, "spec": {"ports": [{"port": 80}]}}
    with pytest.raises(ClusterError, match="no-such-queue"):
        objects.create_job(plan.model_copy(update={"objects": (before, refused)}))
    assert delete._list_visible_objects(jobs.server, delete.list_kinds(jobs.server), plan.labels) == []


def test_unknown_field_is_refused(jobs: Jobs) -> None:
    """A field that the API does not have is refused, not dropped."""
    plan = jobs.plan()
    plan.main["spec"]["minAvailble"] = 2
    with pytest.raises(ClusterError, match=r'unknown field "spec.minAvailble"'):
        objects.create_job(plan)


def test_dry_run_makes_nothing(jobs: Jobs) -> None:
    """A dry run has the API server check a job without creating it."""
    plan = jobs.plan()
    assert jobs.server.create(plan.main, dry_run=True)["metadata"]["uid"]
    assert jobs_of(jobs, plan) == []


# --- the store


def test_store_serves_before_the_job(jobs: Jobs) -> None:
    """create_store returns when the run's store is running, and a second call finds the same store."""
    plan = jobs.plan(profile=ETCD)
    for _ in range(2):
        objects.create_store(plan)
    (pod,) = jobs.labelled(plan, "v1", "Pod")
    assert pod_facts.get_pod_phase(pod) == "Running"


def test_store_goes_with_the_job(jobs: Jobs) -> None:
    """When a user deletes the job, the store is deleted with it."""
    plan = jobs.plan(profile=ETCD)
    objects.create_store(plan)
    objects.create_job(plan)
    jobs.server.delete(plan.main["apiVersion"], plan.main["kind"], plan.job)
    until(lambda: delete._list_visible_objects(jobs.server, delete.list_kinds(jobs.server), plan.labels) == [])


# --- removing


@pytest.mark.parametrize("profile", ["yolov5-volcano-etcd", "yolov5-pytorchjob-etcd"])
def test_teardown_leaves_nothing(jobs: Jobs, profile: str) -> None:
    """After the teardown of a running job no object of any kind has its labels."""
    plan = jobs.plan(profile=profile)
    objects.create_store(plan)
    objects.create_job(plan)
    until(lambda: len(jobs.labelled(plan, "v1", "Pod")) == 3)
    assert teardown(plan) == ()
    assert delete._list_visible_objects(jobs.server, delete.list_kinds(jobs.server), plan.labels) == []


def test_teardown_can_be_repeated(jobs: Jobs) -> None:
    """Tearing down a job that is gone, or never existed, succeeds."""
    plan = jobs.start()
    assert (teardown(plan), teardown(plan), teardown(jobs.plan())) == ((), (), ())
    backend_of(plan).stop()


def test_two_teardowns_at_once(jobs: Jobs) -> None:
    """Two teardowns of a job at the same time, such as a sweep's and the run's own, both succeed."""
    plan, told = jobs.start(), list[tuple[str, ...]]()
    both = [threading.Thread(target=lambda: told.append(teardown(plan))) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()
    assert told == [(), ()]


@pytest.mark.parametrize("moment", ["created", "has pods", "runs"])
def test_teardown_while_the_job_starts(jobs: Jobs, moment: str) -> None:
    """A job that is torn down at any moment of its start leaves no pod."""
    plan = jobs.start()
    pods = {"created": lambda: True, "has pods": lambda: jobs.labelled(plan, "v1", "Pod"), "runs": None}[moment]
    until(pods or (lambda: running(jobs, plan)))
    assert teardown(plan) == ()


def test_job_goes_after_its_pods(jobs: Jobs) -> None:
    """A stopped job stays until its pods are gone (foreground deletion), so its absence proves theirs."""
    plan = jobs.start()
    until(lambda: running(jobs, plan))
    backend_of(plan).stop()
    (job,) = jobs_of(jobs, plan)
    assert "foregroundDeletion" in job["metadata"]["finalizers"]
    until(lambda: not jobs_of(jobs, plan))
    assert jobs.labelled(plan, "v1", "Pod") == []


@pytest.fixture
def held(jobs: Jobs) -> Iterator[ManifestPlan]:
    """A running job with a pod that has another user's finalizer."""
    plan = jobs.start()
    until(lambda: running(jobs, plan))
    pod = jobs.named(plan, "worker-0")
    jobs.server.patch(pod, {"metadata": {"finalizers": ["torchyard.test/held"]}})
    yield plan
    jobs.server.patch(pod, {"metadata": {"finalizers": None}})
    until(lambda: not jobs.labelled(plan, "v1", "Pod"))


def test_pod_that_does_not_go_is_told(jobs: Jobs, held: ManifestPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Teardown reports a stuck pod and the finalizer that holds it, after the grace and a bounded time."""
    monkeypatch.setattr(delete, "REMOVAL_TIMEOUT_S", -12.0)
    pod = f"Pod {jobs.namespace}/{held.job}-worker-0: its finalizer torchyard.test/held holds it"
    assert any(left.startswith(pod) for left in teardown(held))


@pytest.fixture
def deserted(jobs: Jobs) -> Iterator[Callable[..., ManifestPlan]]:
    """Starts a job of one pod on a node that then stops answering."""
    name = f"dead-{uuid.uuid4().hex[:6]}"
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"dead": name}}}
    path = jobs.server.path("v1", "Node", name, namespace=None)
    jobs.server.request("POST", jobs.server.path("v1", "Node", namespace=None), body=node)
    room = {"cpu": "100", "memory": "1000Gi", "ephemeral-storage": "1000Gi", "nvidia.com/gpu": "8", "pods": "10"}
    report(jobs, path, "True", {"capacity": room, "allocatable": room})

    def start(**keys: Any) -> ManifestPlan:
        jobs.more = {"nodes": 1, "hardware": None, "fabric": None, **keys}
        jobs.more["pod.node_selector"] = {"dead": name}
        made = jobs.plan()
        objects.create_job(made)
        until(lambda: [pod for pod in jobs.labelled(made, "v1", "Pod") if pod["spec"].get("nodeName") == name], 60)
        report(jobs, path, "False", {})
        return made

    yield start
    jobs.server.request("DELETE", path)


def report(jobs: Jobs, node: str, ready: str, status: dict[str, Any]) -> None:
    """Write a node's status as its kubelet would."""
    condition = {"type": "Ready", "status": ready, "reason": "Test", "lastHeartbeatTime": None}
    jobs.server.request("PATCH", f"{node}/status", body={"status": {**status, "conditions": [condition]}})


def test_pod_on_a_dead_node_is_told(
    jobs: Jobs, deserted: Callable[..., ManifestPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pod whose node does not confirm its end is reported with its node, and left as it is."""
    monkeypatch.setattr(delete, "REMOVAL_TIMEOUT_S", -9.0)
    plan = deserted()
    (pod, *_) = sorted(teardown(plan), key=lambda each: not each.startswith("Pod"))
    assert "does not confirm its end" in pod
    jobs.server.delete("v1", "Pod", f"{plan.job}-worker-0", force=True)
    assert teardown(plan) == ()


def test_pod_on_a_dead_node_is_forced(deserted: Callable[..., ManifestPlan], monkeypatch: pytest.MonkeyPatch) -> None:
    """With `on_stuck_pod: force`, a pod on a node that is known to be dead is deleted by force."""
    monkeypatch.setattr(delete, "REMOVAL_TIMEOUT_S", -9.0)
    assert teardown(deserted(on_stuck_pod="force")) == ()


def test_what_others_labelled_is_told(jobs: Jobs) -> None:
    """A ConfigMap to which a user gave the run's labels is reported as left over at once, and is not deleted."""
    plan = jobs.start()
    jobs.server.create(config_map("notes", labels=plan.labels))
    assert teardown(plan) == (f"ConfigMap {jobs.namespace}/notes",)
    assert jobs.server.delete("v1", "ConfigMap", "notes")


def test_what_others_named_alike_is_left_alone(jobs: Jobs) -> None:
    """Stop and teardown do not touch a job that has the run's name but not its labels."""
    plan = jobs.plan()
    theirs = copy.deepcopy(plan.main)
    theirs["metadata"]["labels"] = {"team": "other"}
    jobs.server.create(theirs)
    backend_of(plan).stop()
    left = teardown(plan)  # its pods have our labels: they are reported, and stay as well
    assert [each for each in left if not each.startswith("Pod ")] == []
    there = jobs.server.get(theirs["apiVersion"], "Job", plan.job)
    assert there
    assert "deletionTimestamp" not in there["metadata"]


def test_teardown_outlasts_an_outage(jobs: Jobs, wire: Wire) -> None:
    """A teardown waits for an API server that is down for a moment."""
    plan = jobs.start(wire)
    until(lambda: running(jobs, plan))
    other = threading.Timer(0.3, wire.leave, [2.0])
    other.start()
    assert teardown(plan) == ()
    other.join()


def test_one_kind_that_cannot_be_listed_holds_nothing_up(jobs: Jobs, wire: Wire) -> None:
    """An API whose own server is down, such as a metrics server's, does not delay the check for leftovers."""
    plan = jobs.start(wire)
    down = {"kind": "Status", "message": "the server is currently unable to handle the request"}
    wire.answer("GET /apis/apps/v1", 503, down, times=1000)
    began = time.monotonic()
    assert teardown(plan) == ()
    assert time.monotonic() - began < 10


def test_handle_is_enough(jobs: Jobs) -> None:
    """The handle that submit returns can be stored as JSON and read by another process."""
    handle = submit(jobs.plan(), Deadlines())
    assert Handle.model_validate_json(handle.model_dump_json()) == handle
