"""Jobs that do not start, or lose a pod, on a real control plane.

The cause, its sentence, and whether it is retried.
"""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cluster.fake import build_node
from tests.cluster.fault_proxy import FaultProxy
from tests.cluster.jobs import ANNOTATION, Jobs, require_real_nodes, until
from tests.cluster.objects import delete_by_name
from tests.tools.observe import QUEUE, close_queue, get_queue_state
from torchyard.cluster import create, delete, diagnose
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.common.project_root import ROOT
from torchyard.kube.client import Client, KubeObject
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster, Deadlines
from torchyard.model.run import Failure, Handle, Run
from torchyard.steps.collect import collect
from torchyard.steps.wait import wait

GPU_RESOURCE = "nvidia.com/gpu"
OWN_LABEL = "torchyard.test/own"
SMALL: dict[str, Any] = json.loads((ROOT / "docs" / "small.json").read_text())
ONE_FULL_NODE = {"nodes": 1, "resources": {"gpus": 8}}
Overrides = dict[str, Any]
Strike = Callable[[ManifestPlan], None]


class JobFactory(NamedTuple):
    """Creates jobs in one namespace; `clear` deletes those of `plans`."""

    client: Client
    fake_overrides: dict[str, Any]
    folder: Path
    plans: list[ManifestPlan]

    def plan(self, overrides: Overrides, profile: str = "yolov5-volcano") -> ManifestPlan:
        """The plan of a new run, on the fake nodes unless `overrides` name others."""
        changes = self.fake_overrides | {"cluster.namespace": self.client.namespace} | overrides
        loaded_profile = load_profile(profile, changes)
        run = Run(id=str(uuid.uuid4()), attempt=1, folder=str(self.folder / uuid.uuid4().hex))
        plan = registry.make_plan(loaded_profile, run)
        assert isinstance(plan, ManifestPlan)
        self.plans.append(plan)
        return plan

    def clear(self) -> None:
        """Delete the jobs of a test."""
        for plan in self.plans:
            delete.delete_object(plan, plan.main)

    def plan_on_real_nodes(self, overrides: Overrides) -> ManifestPlan:
        """The plan of a new, small run on the real nodes; the test is skipped without them."""
        require_real_nodes(self.client)
        return self.plan({"pod.node_selector": {}} | SMALL | overrides)

    def diagnose(self, plan: ManifestPlan, cause: str) -> Failure:
        """Create a job that makes no progress, and return its diagnosis once it has this cause."""
        create.create_job(plan)

        def find_failure() -> Failure | None:
            watch.poll(timeout_s=0.3)
            diagnosis = watch.diagnose(is_last=True)
            if diagnosis and diagnosis.failure and diagnosis.failure.cause == cause:
                return diagnosis.failure
            return None

        with ClusterWatch(plan) as watch:
            failure: Failure = until(find_failure, timeout_s=60)
        return failure

    def run_to_failure(
        self, plan: ManifestPlan, *, start_deadline_s: float = 60.0, strike: Strike | None = None
    ) -> Failure:
        """Create a job, call `strike` once its pods run, and return why the job failed."""
        create.create_job(plan)
        handle = Handle(plan=plan, deadlines=Deadlines(start=start_deadline_s), created=True, submitted_at=time.time())

        def strike_when_running(strike: Strike) -> None:
            until(lambda: self.list_running_pods(plan))
            strike(plan)

        if strike:
            threading.Thread(target=strike_when_running, args=(strike,), daemon=True).start()
        failure = collect(plan, wait(handle)).failure
        assert failure
        return failure

    def create(self, obj: KubeObject) -> None:
        self.client.create(obj)

    def list_running_pods(self, plan: ManifestPlan) -> list[dict[str, Any]]:
        """The pods if all of them run, else an empty list."""
        selector = ",".join(f"{key}={value}" for key, value in plan.labels.items())
        pods = self.client.list("v1", "Pod", {"labelSelector": selector})
        running_pods = [pod for pod in pods if pod["status"].get("phase") == "Running"]
        return running_pods if len(running_pods) == len(plan.nodes) else []


def build_factory(namespace: str, fake_overrides: dict[str, Any], folder: Path) -> JobFactory:
    """A factory of jobs on fake nodes, with the runs' folders in `folder`."""
    return JobFactory(Client(Cluster(namespace=namespace)), fake_overrides, folder, [])


@pytest.fixture
def job_factory(namespace: str, fake_overrides: dict[str, Any], tmp_path: Path) -> Iterator[JobFactory]:
    """A factory whose jobs are deleted when the test ends."""
    factory = build_factory(namespace, fake_overrides, tmp_path)
    yield factory
    factory.clear()


def add_node(admin_client: Client) -> str:
    """Create a fake node for one test, with eight GPUs and a taint that keeps other pods off it; return its name."""
    name = f"own-{uuid.uuid4().hex[:8]}"
    labels = {OWN_LABEL: name, "node.kubernetes.io/instance-type": "BM.GPU.B4.8"}
    node = build_node(name, labels, {GPU_RESOURCE: "8"}, 7000 + int(name[-3:], 16))
    node["spec"] = {"taints": [{"key": OWN_LABEL, "effect": "NoSchedule"}]}
    admin_client.request("POST", "/api/v1/nodes", body=node)

    def has_ready_condition() -> bool:
        conditions = admin_client.request("GET", f"/api/v1/nodes/{name}")["status"].get("conditions", ())
        return any(condition["type"] == "Ready" for condition in conditions)

    until(has_ready_condition)
    return name


@pytest.fixture
def own_node(admin_client: Client) -> Iterator[str]:
    """A fake node for this test only; its name."""
    name = add_node(admin_client)
    yield name
    admin_client.request("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture(scope="module", autouse=True)
def silent_node_job(
    admin_client: Client, namespace: str, fake_overrides: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[JobFactory, ManifestPlan]]:
    """A job on a node that stops answering when the module begins; Kubernetes takes most of a minute to notice."""
    name = add_node(admin_client)
    job_factory = build_factory(namespace, fake_overrides, tmp_path_factory.mktemp("mute"))
    try:
        plan = job_factory.plan(select_node(name))
        create.create_job(plan)
        until(lambda: job_factory.list_running_pods(plan), timeout_s=60)
        admin_client.request("PATCH", f"/api/v1/nodes/{name}", body={"metadata": {"labels": {"type": None}}})
        yield job_factory, plan
    finally:
        admin_client.request("DELETE", f"/api/v1/nodes/{name}")
        job_factory.clear()


def select_node(name: str) -> Overrides:
    """Overrides that put a job on the test's own node."""
    return {"pod.node_selector": {OWN_LABEL: name}, "pod.tolerations": [OWN_LABEL]} | ONE_FULL_NODE


def build_pod(name: str, node_name: str, container: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A pod that does not belong to the job, on the test's own node."""
    containers = [{"name": "it", "image": "it:1"} | container]
    tolerations = [{"key": OWN_LABEL, "operator": "Exists"}]
    metadata = {"name": name, "labels": {"torchyard/run": "somebody-else"}}
    pod_spec = {"nodeSelector": {OWN_LABEL: node_name}, "containers": containers, "tolerations": tolerations} | spec
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec}


def check_sentence(failure: Failure, needle: str) -> tuple[str, bool]:
    """Check that the failure's sentence contains a text; return the failure's cause and whether it is retried."""
    assert needle in failure.sentence
    return failure.cause, failure.retry


# --- jobs that do not start


def test_gang_that_never_fits(job_factory: JobFactory) -> None:
    """The failure of a start deadline explains what the gang needs and what the nodes have."""
    failure = job_factory.run_to_failure(job_factory.plan({"resources.cpu": 1000}), start_deadline_s=8.0)
    assert failure.sentence.startswith("not started within 8 s (deadlines.start): waits for the gang: it needs 2 pods")
    assert check_sentence(failure, "4 nodes: cpu 512 < 1000") == ("unschedulable", False)


def test_taint(job_factory: JobFactory, own_node: str) -> None:
    """The sentence names the taint that keeps all pods off the selected nodes, and what to do."""
    plan = job_factory.plan(select_node(own_node) | {"pod.tolerations": []})
    failure = job_factory.diagnose(plan, "taint")
    assert check_sentence(failure, f"add {OWN_LABEL} to `pod.tolerations`") == ("taint", False)


def test_host_port(job_factory: JobFactory, own_node: str) -> None:
    """If another run uses the host port, the sentence names the port and that run."""
    plan = job_factory.plan(select_node(own_node) | {"resources.gpus": 1}, "yolov5-pytorchjob")
    container = plan.pod["spec"]["containers"][0]
    port = container["ports"][0]["containerPort"]
    ports = [{"containerPort": port, "hostPort": port}]
    job_factory.client.create(build_pod("holder", own_node, {"ports": ports}, nodeName=own_node, hostNetwork=True))
    failure = job_factory.diagnose(plan, "host-port")
    assert check_sentence(failure, f"no node has port {port} free (run somebody-else has it)") == ("host-port", True)


def test_quota(job_factory: JobFactory) -> None:
    """If a namespace's quota blocks all pods, it is the cause, and the sentence quotes the API server."""
    hard = {"hard": {f"requests.{GPU_RESOURCE}": "2"}}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": hard}
    job_factory.client.create(quota)
    try:
        failure = job_factory.diagnose(job_factory.plan({"resources.gpus": 4}), "quota")
    finally:
        delete_by_name(job_factory.client, "v1", "ResourceQuota", "q")
    assert check_sentence(failure, f"exceeded quota: q, requested: requests.{GPU_RESOURCE}=4") == ("quota", False)


def test_closed_queue(job_factory: JobFactory, admin_client: Client) -> None:
    """A queue that is closed after the preflight is the cause, although no object of a PyTorchJob mentions it."""
    name = f"torchyard-{uuid.uuid4().hex[:8]}"
    path = admin_client.path(QUEUE, "Queue", name, namespace=None)
    queue = {"apiVersion": QUEUE, "kind": "Queue", "metadata": {"name": name}, "spec": {"weight": 1}}
    created_queue = admin_client.request("POST", admin_client.path(QUEUE, "Queue", namespace=None), body=queue)
    until(lambda: get_queue_state(admin_client, name) == "Open")
    close_queue(admin_client, created_queue)
    try:
        plan = job_factory.plan({"options": {"queue": name}}, "yolov5-pytorchjob")
        failure = job_factory.diagnose(plan, "queue-closed")
    finally:
        admin_client.request("DELETE", path)
    assert check_sentence(failure, f"waits for queue {name}, which is Clos") == ("queue-closed", False)


class RealNodeCase(NamedTuple):
    """A job that a real kubelet cannot start: its cause, overrides, a part of its sentence, and whether to retry."""

    cause: str
    overrides: Overrides
    needle: str
    is_retried: bool


REAL_NODE_CASES = [
    RealNodeCase("volume-mount", {"mounts": {"/s": {"secret": "nope"}}}, 'secret "nope" not found', False),
    RealNodeCase("volume-mount", {"mounts": {"/c": {"config_map": "nope"}}}, 'configmap "nope" not found', False),
    RealNodeCase("pod-config", {"pod.env_from": [{"config_map": "nope"}]}, 'configmap "nope" not found', False),
    RealNodeCase("image-pull", {"image": "registry.invalid/nope:1"}, "registry does not respond (ErrImagePull", True),
]


@pytest.mark.parametrize("case", REAL_NODE_CASES, ids=["secret", "config map", "environment", "registry"])
def test_real_kubelet(job_factory: JobFactory, case: RealNodeCase) -> None:
    """If a real kubelet cannot start a pod, the sentence names what is missing."""
    plan = job_factory.plan_on_real_nodes(case.overrides)
    failure = job_factory.diagnose(plan, case.cause)
    assert check_sentence(failure, case.needle) == (case.cause, case.is_retried)


def test_sandbox(job_factory: JobFactory, admin_client: Client) -> None:
    """A node that cannot create a pod's sandbox is the cause, although only an event reports it."""
    name = f"torchyard-{uuid.uuid4().hex[:8]}"
    plan = job_factory.plan_on_real_nodes({})
    plan.pod["spec"]["runtimeClassName"] = name
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": "nope"}
    admin_client.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", body=runtime)
    try:
        failure = job_factory.diagnose(plan, "pod-network")
    finally:
        admin_client.request("DELETE", f"/apis/node.k8s.io/v1/runtimeclasses/{name}")
    assert check_sentence(failure, "FailedCreatePodSandBox") == ("pod-network", True)


# --- jobs that lose a pod


def test_crash_loop(job_factory: JobFactory) -> None:
    """A pod in a crash loop fails the job without a retry."""
    annotations = {f"{ANNOTATION}waiting": "CrashLoopBackOff", f"{ANNOTATION}restarts": "3"}
    failure = job_factory.run_to_failure(job_factory.plan({"pod.annotations": annotations}))
    assert check_sentence(failure, "it crashes repeatedly") == ("crash-loop", False)


def test_out_of_memory(job_factory: JobFactory) -> None:
    """A real container that is killed at its memory limit is the cause, with its exit code."""
    greedy = {"program": "python3", "agent": "none", "rendezvous": "static", "args": ["-c", "bytearray(10**9)"]}
    little = {"pod.limits": {"memory": "64Mi"}, "resources.memory": "64Mi", "nodes": 1}
    failure = job_factory.run_to_failure(job_factory.plan_on_real_nodes(greedy | little))
    assert check_sentence(failure, "it used more memory than its limit (OOMKilled)") == ("oom-pod", False)
    assert failure.exit_code == 137


def test_eviction(job_factory: JobFactory, admin_client: Client) -> None:
    """A pod that is evicted by a drain fails the attempt, which is retried."""

    def drain(plan: ManifestPlan) -> None:
        name = job_factory.list_running_pods(plan)[0]["metadata"]["name"]
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        path = f"/api/v1/namespaces/{job_factory.client.namespace}/pods/{name}/eviction"
        admin_client.request("POST", path, body=body)

    failure = job_factory.run_to_failure(job_factory.plan({}), strike=drain)
    assert check_sentence(failure, "its node was drained") == ("evicted", True)


def test_preemption(job_factory: JobFactory, admin_client: Client, own_node: str) -> None:
    """A pod that is preempted by one of higher priority fails the attempt, which is retried."""
    name = f"torchyard-{uuid.uuid4().hex[:8]}"
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1000}
    admin_client.request("POST", path, body=high)
    strong = build_pod("strong", own_node, {"resources": {"limits": {GPU_RESOURCE: "8"}}}, priorityClassName=name)
    plan = job_factory.plan(select_node(own_node), "yolov5-jobset")
    try:
        failure = job_factory.run_to_failure(plan, strike=lambda _: job_factory.create(strong))
    finally:
        admin_client.request("DELETE", f"{path}/{name}")
        delete_by_name(job_factory.client, "v1", "Pod", "strong")
    assert check_sentence(failure, "preempted for a pod of higher priority") == ("preempted", True)


def test_node_that_does_not_answer(silent_node_job: tuple[JobFactory, ManifestPlan]) -> None:
    """A pod on a node that does not answer is reported with its node, minutes before Kubernetes evicts it."""
    job_factory, plan = silent_node_job
    node_name = plan.pod["spec"]["nodeSelector"][OWN_LABEL]
    failure = job_factory.diagnose(plan, "node-lost")
    assert check_sentence(failure, f"its node {node_name} has not answered since") == ("node-lost", True)


# --- the cost of a diagnosis


def create_stuck_job(jobs: Jobs, proxy: FaultProxy) -> ManifestPlan:
    """Create a job that requests more GPUs than any node has."""
    plan = jobs.plan(proxy)
    for amounts in plan.pod["spec"]["containers"][0]["resources"].values():
        amounts[GPU_RESOURCE] = "16"
    create.create_job(plan)
    return plan


def test_stuck_job_is_queried_rarely(jobs: Jobs, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first query about a stuck job is sent after a while, and the next one much later."""
    monkeypatch.setattr(diagnose, "FIRST_QUERY_AFTER_S", 2.0)
    events_request = "/events?fieldSelector=type%3DWarning"
    with ClusterWatch(create_stuck_job(jobs, proxy)) as watch:
        started_at = time.monotonic()
        until(lambda: not watch.poll(timeout_s=0.1) and watch.diagnose() and proxy.count_requests(events_request))
        assert time.monotonic() - started_at > diagnose.FIRST_QUERY_AFTER_S
        until(lambda: watch.diagnose() and time.monotonic() - started_at > 3 * diagnose.FIRST_QUERY_AFTER_S)
        assert proxy.count_requests(events_request) == 1


def test_diagnosis_without_rights_quotes_the_scheduler(jobs: Jobs, proxy: FaultProxy) -> None:
    """Without the rights to read nodes, queues and events, the diagnosis quotes the scheduler's message."""
    plan = create_stuck_job(jobs, proxy)
    for kind in ("/nodes", "/queues/", "/events?"):
        proxy.respond(kind, 403, {"kind": "Status", "message": "no"}, times=1000)

    def find_failure() -> Failure | None:
        watch.poll(timeout_s=0.1)
        diagnosis = watch.diagnose(is_last=True)
        return diagnosis.failure if diagnosis else None

    with ClusterWatch(plan) as watch:
        failure = until(find_failure, timeout_s=60)
    assert check_sentence(failure, f"Insufficient {GPU_RESOURCE}") == ("unschedulable", False)
