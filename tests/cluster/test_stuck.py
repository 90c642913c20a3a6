"""Jobs that do not start, or lose a pod, on a real control plane: the cause, its sentence, and whether to retry."""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cluster.fake import node
from tests.cluster.jobs import ANNOTATION, Jobs, until
from tests.cluster.wire import Wire
from tests.observe import QUEUE, close, state_of
from torchyard.cluster import create, delete, diagnose
from torchyard.cluster.job_watch import ClusterWatch
from torchyard.common.project_root import ROOT
from torchyard.kube.client import Client, KubeObject
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.plan import ManifestPlan, get_nested
from torchyard.model.profile import Cluster, Deadlines
from torchyard.model.run import Failure, Handle, Run
from torchyard.steps.collect import _find_failure
from torchyard.steps.wait import wait

GPU, OWN = "nvidia.com/gpu", "torchyard.test/own"
SMALL = json.loads((ROOT / "docs" / "small.json").read_text())
ALONE = {"nodes": 1, "resources": {"gpus": 8}}
Overrides = dict[str, Any]
Strike = Callable[[ManifestPlan], None]


class Yard(NamedTuple):
    """Jobs in one namespace."""

    server: Client
    fake: dict[str, Any]
    folder: Path
    made: list[ManifestPlan]

    def plan(self, overrides: Overrides, profile: str = "yolov5-volcano") -> ManifestPlan:
        """The plan of a new run, on the fake nodes unless `overrides` name others."""
        changes = {**self.fake, "cluster.namespace": self.server.namespace, **overrides}
        chosen = load_profile(profile, changes)
        run = Run(id=str(uuid.uuid4()), attempt=1, folder=str(self.folder / uuid.uuid4().hex))
        found = registry.load_launcher(chosen.launcher).plan(chosen, run)
        assert isinstance(found, ManifestPlan)
        self.made.append(found)
        return found

    def clear(self) -> None:
        """Delete the jobs of a test."""
        for plan in self.made:
            delete.delete_object(plan, plan.main)

    def real(self, overrides: Overrides) -> ManifestPlan:
        """The plan of a new, small run on the real nodes."""
        nodes = self.server.list("v1", "Node", {"labelSelector": "torchyard/node=real"}, everywhere=True)
        if len(nodes) < 2:
            pytest.skip("this cluster has no two real nodes (label torchyard/node=real)")
        return self.plan({"pod.node_selector": {}, **SMALL, **overrides})

    def why(self, plan: ManifestPlan, cause: str) -> Failure:
        """Create a job that makes no progress, and return its diagnosis once that has this cause."""
        create.create_job(plan)

        def explained() -> Failure | None:
            watch.poll(0.3)
            found.append(why.failure if (why := watch.diagnose(is_last=True)) else None)
            return found[-1] if found[-1] and found[-1].cause == cause else None

        found: list[Failure | None] = []
        with ClusterWatch(plan) as watch:
            failure: Failure = until(explained, 60)
        return failure

    def end(self, plan: ManifestPlan, start: float = 60.0, strike: Strike | None = None) -> Failure:
        """Create a job, call `strike` once its pods run, and return why the job failed."""
        create.create_job(plan)
        handle = Handle(plan=plan, deadlines=Deadlines(start=start), created=True, submitted_at=time.time())

        def hit(strike: Strike) -> None:
            until(lambda: self.running(plan))
            strike(plan)

        if strike:
            threading.Thread(target=hit, args=(strike,), daemon=True).start()
        return _find_failure(plan, wait(handle))

    def make(self, thing: KubeObject) -> None:
        self.server.create(thing)

    def running(self, plan: ManifestPlan) -> list[dict[str, Any]]:
        """The pods if all of them run, else an empty list."""
        which = ",".join(f"{key}={value}" for key, value in plan.labels.items())
        pods = self.server.list("v1", "Pod", {"labelSelector": which})
        found = [each for each in pods if each["status"].get("phase") == "Running"]
        return found if len(found) == len(plan.nodes) else []


def start(namespace: str, fake: dict[str, Any], folder: Path) -> Yard:
    return Yard(Client(Cluster(namespace=namespace)), fake, folder, [])


@pytest.fixture
def yard(namespace: str, fake: dict[str, Any], tmp_path: Path) -> Iterator[Yard]:
    made = start(namespace, fake, tmp_path)
    yield made
    made.clear()


def add_node(plane: Client) -> str:
    """Create a fake node for one test, with eight GPUs and a taint that keeps other pods away."""
    name = f"own-{uuid.uuid4().hex[:8]}"
    labels = {OWN: name, "node.kubernetes.io/instance-type": "BM.GPU.B4.8"}
    made = node(name, labels, {GPU: "8"}, 7000 + int(name[-3:], 16))
    plane.request("POST", "/api/v1/nodes", body={**made, "spec": {"taints": [{"key": OWN, "effect": "NoSchedule"}]}})
    path = f"/api/v1/nodes/{name}"
    until(lambda: any(each["type"] == "Ready" for each in plane.request("GET", path)["status"].get("conditions", ())))
    return name


@pytest.fixture
def own(plane: Client) -> Iterator[str]:
    """A fake node for this test only."""
    name = add_node(plane)
    yield name
    plane.request("DELETE", f"/api/v1/nodes/{name}")


@pytest.fixture(scope="module", autouse=True)
def mute(
    plane: Client, namespace: str, fake: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Yard, ManifestPlan]]:
    """A job on a node that stops answering when the module begins; Kubernetes takes most of a minute to notice."""
    name, yard = add_node(plane), start(namespace, fake, tmp_path_factory.mktemp("mute"))
    try:
        plan = yard.plan(on(name))
        create.create_job(plan)
        until(lambda: yard.running(plan), 60)
        plane.request("PATCH", f"/api/v1/nodes/{name}", body={"metadata": {"labels": {"type": None}}})
        yield yard, plan
    finally:
        plane.request("DELETE", f"/api/v1/nodes/{name}")
        yard.clear()


def on(name: str) -> Overrides:
    """Overrides that put a job on the test's own node."""
    return {"pod.node_selector": {OWN: name}, "pod.tolerations": [OWN], **ALONE}


def pod(name: str, where: str, container: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A pod that does not belong to the job, on the test's own node."""
    containers = [{"name": "it", "image": "it:1", **container}]
    tolerations = [{"key": OWN, "operator": "Exists"}]
    metadata = {"name": name, "labels": {"torchyard/run": "somebody-else"}}
    made = {"nodeSelector": {OWN: where}, "containers": containers, "tolerations": tolerations, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": made}


def told(failure: Failure, part: str) -> tuple[str, bool]:
    """The failure's cause and whether it is retried; its sentence must contain the part."""
    assert part in failure.sentence
    return failure.cause, failure.retry


# --- jobs that do not start


def test_gang_that_never_fits(yard: Yard) -> None:
    """The failure of a start deadline explains what the gang needs and what the nodes have."""
    failure = yard.end(yard.plan({"resources.cpu": 1000}), 8.0)
    assert failure.sentence.startswith("not started within 8 s (deadlines.start): waits for the gang: it needs 2 pods")
    assert told(failure, "4 nodes: cpu 128 < 1000") == ("unschedulable", False)


def test_taint(yard: Yard, own: str) -> None:
    """A taint that keeps all pods off the selected nodes is named, with what to do."""
    plan = yard.plan({**on(own), "pod.tolerations": []})
    assert told(yard.why(plan, "taint"), f"add {OWN} to `pod.tolerations`") == ("taint", False)


def test_host_port(yard: Yard, own: str) -> None:
    """If another run uses the host port, the sentence names the port and that run."""
    plan = yard.plan({**on(own), "resources.gpus": 1}, "yolov5-pytorchjob")
    container = get_nested(plan.main, plan.template_path)["spec"]["containers"][0]
    port = container["ports"][0]["containerPort"]
    ports = [{"containerPort": port, "hostPort": port}]
    yard.server.create(pod("holder", own, {"ports": ports}, nodeName=own, hostNetwork=True))
    failure = yard.why(plan, "host-port")
    assert told(failure, f"no node has port {port} free (run somebody-else has it)") == ("host-port", True)


def test_quota(yard: Yard) -> None:
    """If a namespace's quota blocks all pods, it is the cause, and the sentence quotes the API server."""
    hard = {"hard": {f"requests.{GPU}": "2"}}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": hard}
    yard.server.create(quota)
    try:
        failure = yard.why(yard.plan({"resources.gpus": 4}), "quota")
    finally:
        yard.server.delete("v1", "ResourceQuota", "q")
    assert told(failure, f"exceeded quota: q, requested: requests.{GPU}=4") == ("quota", False)


def test_closed_queue(yard: Yard, plane: Client) -> None:
    """A queue that is closed after the preflight is the cause, though no object of a PyTorchJob mentions it."""
    name = f"torchyard-{uuid.uuid4().hex[:8]}"
    path = plane.path(QUEUE, "Queue", name, namespace=None)
    queue = {"apiVersion": QUEUE, "kind": "Queue", "metadata": {"name": name}, "spec": {"weight": 1}}
    made = plane.request("POST", plane.path(QUEUE, "Queue", namespace=None), body=queue)
    until(lambda: state_of(plane, name) == "Open")
    close(plane, made)
    try:
        failure = yard.why(yard.plan({"options": {"queue": name}}, "yolov5-pytorchjob"), "queue-closed")
    finally:
        plane.request("DELETE", path)
    assert told(failure, f"waits for queue {name}, which is Clos") == ("queue-closed", False)


Case = tuple[str, Overrides, str, bool]
REAL: list[Case] = [
    ("volume-mount", {"mounts": {"/s": {"secret": "nope"}}}, 'secret "nope" not found', False),
    ("volume-mount", {"mounts": {"/c": {"config_map": "nope"}}}, 'configmap "nope" not found', False),
    ("pod-config", {"pod.env_from": [{"config_map": "nope"}]}, 'configmap "nope" not found', False),
    ("registry", {"image": "registry.invalid/nope:1"}, "registry does not answer (ErrImagePull", True),
]


@pytest.mark.parametrize("case", REAL, ids=str)
def test_real_kubelet(yard: Yard, case: Case) -> None:
    """If a real kubelet cannot start a pod, the sentence names what is missing."""
    cause, overrides, part, retry = case
    assert told(yard.why(yard.real(overrides), cause), part) == (cause, retry)


def test_sandbox(yard: Yard, plane: Client) -> None:
    """A node that cannot create a pod's sandbox is the cause, though only an event says so."""
    name = f"torchyard-{uuid.uuid4().hex[:8]}"
    plan = yard.real({})
    get_nested(plan.main, plan.template_path)["spec"]["runtimeClassName"] = name
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": "nope"}
    plane.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", body=runtime)
    try:
        failure = yard.why(plan, "pod-network")
    finally:
        plane.request("DELETE", f"/apis/node.k8s.io/v1/runtimeclasses/{name}")
    assert told(failure, "FailedCreatePodSandBox") == ("pod-network", True)


# --- jobs that lose a pod


def test_crash_loop(yard: Yard) -> None:
    """A pod in a crash loop fails the job without a retry."""
    notes = {f"{ANNOTATION}waiting": "CrashLoopBackOff", f"{ANNOTATION}restarts": "3"}
    failure = yard.end(yard.plan({"pod.annotations": notes}))
    assert told(failure, "it crashes again and again") == ("crash-loop", False)


def test_out_of_memory(yard: Yard) -> None:
    """A real container that is killed at its memory limit is the cause, with its exit code."""
    greedy = {"program": "python3", "agent": "none", "rendezvous": "static", "args": ["-c", "bytearray(10**9)"]}
    little = {"pod.limits": {"memory": "64Mi"}, "resources.memory": "64Mi", "nodes": 1}
    failure = yard.end(yard.real({**greedy, **little}))
    assert told(failure, "it used more memory than its limit (OOMKilled)") == ("oom-pod", False)
    assert failure.exit_code == 137


def test_eviction(yard: Yard, plane: Client) -> None:
    """A pod that is evicted by a drain fails the attempt, which is retried."""

    def drain(plan: ManifestPlan) -> None:
        name = yard.running(plan)[0]["metadata"]["name"]
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        plane.request("POST", f"/api/v1/namespaces/{yard.server.namespace}/pods/{name}/eviction", body=body)

    assert told(yard.end(yard.plan({}), strike=drain), "its node was drained") == ("evicted", True)


def test_preemption(yard: Yard, plane: Client, own: str) -> None:
    """A pod that is preempted by one of higher priority fails the attempt, which is retried."""
    name, path = f"torchyard-{uuid.uuid4().hex[:8]}", "/apis/scheduling.k8s.io/v1/priorityclasses"
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1000}
    plane.request("POST", path, body=high)
    strong = pod("strong", own, {"resources": {"limits": {GPU: "8"}}}, priorityClassName=name)
    plan = yard.plan(on(own), "yolov5-jobset")
    try:
        failure = yard.end(plan, strike=lambda _: yard.make(strong))
    finally:
        plane.request("DELETE", f"{path}/{name}")
        yard.server.delete("v1", "Pod", "strong")
    assert told(failure, "preempted for a pod of higher priority") == ("preempted", True)


def test_node_that_does_not_answer(mute: tuple[Yard, ManifestPlan]) -> None:
    """A pod on a node that does not answer is reported with its node, minutes before Kubernetes evicts it."""
    yard, plan = mute
    own = plan.pod["spec"]["nodeSelector"][OWN]
    assert told(yard.why(plan, "node-lost"), f"its node {own} has not answered since") == ("node-lost", True)


# --- the cost of a diagnosis


def stuck(jobs: Jobs, wire: Wire) -> ManifestPlan:
    """Create a job that requests more GPUs than any node has."""
    plan = jobs.plan(wire)
    for amounts in get_nested(plan.main, plan.template_path)["spec"]["containers"][0]["resources"].values():
        amounts[GPU] = "16"
    create.create_job(plan)
    return plan


def test_a_stuck_job_is_looked_at_rarely(jobs: Jobs, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first query about a stuck job comes after a while, and the next one only much later."""
    monkeypatch.setattr(diagnose, "_FIRST_QUERY_AFTER_S", 2.0)
    looks = "/events?fieldSelector=type%3DWarning"
    with ClusterWatch(stuck(jobs, wire)) as watch:
        begin = time.monotonic()
        until(lambda: not watch.poll(0.1) and watch.diagnose() and wire.count(looks))
        assert time.monotonic() - begin > diagnose._FIRST_QUERY_AFTER_S
        until(lambda: watch.diagnose() and time.monotonic() - begin > 3 * diagnose._FIRST_QUERY_AFTER_S)
        assert wire.count(looks) == 1


def test_what_may_not_be_seen_costs_only_that(jobs: Jobs, wire: Wire) -> None:
    """Without the rights to read nodes, queues and events, the diagnosis quotes the scheduler's message."""
    plan = stuck(jobs, wire)
    for kind in ("/nodes", "/queues/", "/events?"):
        wire.answer(kind, 403, {"kind": "Status", "message": "no"}, times=1000)
    with ClusterWatch(plan) as watch:
        until(lambda: not watch.poll(0.1) and watch.diagnose(), 60)
        found = until(lambda: watch.diagnose(is_last=True))
    assert told(found.failure, f"Insufficient {GPU}") == ("unschedulable", False)
