"""Whole runs, as flows, on the real controllers with fake pods: every profile, every outcome."""

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from flows.train import train
from tests.cluster.carried import reported
from tests.cluster.provide import Home, at_home
from tests.cluster.small import ELSEWHERE, in_pods, one_a_way
from torchyard.kube.client import Client
from torchyard.launchers import jobset, pytorchjob, registry, volcano
from torchyard.loading.profile import load_profile
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster
from torchyard.model.requirements import Capacity
from torchyard.model.run import Report, Run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]
PROFILES = (*in_pods(), *ELSEWHERE)
ALL = pytest.mark.parametrize("profile", PROFILES)
EACH_WAY = pytest.mark.parametrize("profile", [*one_a_way(in_pods()), *ELSEWHERE])
ENDS = {"torchyard.test/end-after": "1"}
QUICK = {"attempts": 1, "deadlines.start": "30s"}
BUSY = "torchyard.test/busy"
KINDS = (
    ("batch.volcano.sh/v1alpha1", "Job"),
    ("kubeflow.org/v1", "PyTorchJob"),
    ("workload.codeflare.dev/v1beta2", "AppWrapper"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    ("batch/v1", "Job"),
    ("scheduling.volcano.sh/v1beta1", "PodGroup"),
    ("v1", "Pod"),
    ("v1", "Service"),
    ("v1", "ConfigMap"),
)
Carry = Callable[..., tuple[State[Any], Report]]


@pytest.fixture(scope="module")
def home(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    made = Home(namespace, tmp_path_factory.mktemp("claims"))
    yield made
    made.clear()


@pytest.fixture
def carry(namespace: str, fake: dict[str, Any], home: Home, record_property: Callable[[str, object], None]) -> Carry:
    """Runs a profile with these pod annotations and other overrides, and returns its state and report."""

    def carried(cell: tuple[str, str], annotations: dict[str, str], **overrides: Any) -> tuple[State[Any], Report]:
        record_property("cell", cell)
        dotted = {key.replace("__", "."): value for key, value in overrides.items()}
        whole = {**at_home(cell[0], namespace), **QUICK, **fake, "pod.annotations": annotations, **dotted}
        plan = sketch(cell[0], whole)
        skip_unserved(Client(Cluster(namespace=namespace)), plan)
        home.provide(plan)
        end = train(cell[0], whole, return_state=True)
        report = reported()
        assert labelled(namespace, report) == []
        return end, report

    return carried


def sketch(profile: str, overrides: dict[str, Any]) -> ManifestPlan:
    """The plan of a profile, for a run that does not exist."""
    chosen = load_profile(profile, overrides)
    plan = registry.load_launcher(chosen.launcher).plan(chosen, Run(id="0" * 8, attempt=1, folder="/runs"))
    assert isinstance(plan, ManifestPlan)
    return plan


def skip_unserved(here: Client, plan: ManifestPlan) -> None:
    """Skip a job whose kind is not served: the two controllers of AppWrappers cannot share a cluster."""
    try:
        here.request("GET", f"/apis/{plan.watch[0].api}")
    except ClusterError as error:
        if error.status != 404:
            raise
        pytest.skip(
            f"this cluster does not serve {plan.watch[0].kind} {plan.watch[0].api} (see `cluster.py up --mcad`)"
        )


def labelled(namespace: str, report: Report) -> list[str]:
    """The name of every object in the namespace that still has the run's label."""
    here = Client(Cluster(namespace=namespace))
    which = {"labelSelector": f"torchyard/run={report.run}"}
    return [thing["metadata"]["name"] for kind in KINDS for thing in here.list(*kind, which)]


@ALL
def test_success(carry: Carry, namespace: str, profile: str) -> None:
    """If all pods end with exit code 0, the run is Completed, its logs are complete and nothing is left over."""
    end, report = carry((profile, "success"), ENDS)
    assert (end.name, report.leftovers) == ("Completed", ()), report.sentence
    assert report.collected
    logs = {log.node: log for log in report.collected.logs if log.node != "etcd"}
    assert {node: log.lost for node, log in logs.items()} == dict.fromkeys(
        sketch(profile, at_home(profile, namespace)).nodes, ""
    )
    assert all("Rendezvous complete" in Path(log.path).read_text() for log in logs.values())


@ALL
def test_a_pod_fails(carry: Carry, profile: str) -> None:
    """If a pod fails, the run is Failed with the pod's exit code, and the other pods are stopped."""
    end, report = carry((profile, "pod fails"), {**ENDS, "torchyard.test/exit": "7"})
    assert (end.name, report.leftovers) == ("Failed", ())
    assert "exit code 7" in report.sentence


@EACH_WAY
def test_never_fits(carry: Carry, busy: dict[str, Any], profile: str) -> None:
    """If no node has room for the pods, the run fails at its start deadline with the scheduler's reason."""
    more = {"pod__node_selector": busy, "resources__cpu": "100", "deadlines__start": "4s"}
    end, report = carry((profile, "never fits"), ENDS, **more)
    assert (end.name, report.leftovers) == ("Failed", ())
    assert re.search(r"not started within 4 s .*: .*waits for .*cpu", report.sentence), report.sentence


@pytest.fixture
def busy(namespace: str, fake: dict[str, Any], profile: str) -> Iterator[dict[str, str]]:
    """The labels of fake nodes that could take the profile's pods, but have most of their CPUs in use."""
    here = Client(Cluster(namespace=namespace))
    (room,) = (need for need in sketch(profile, at_home(profile, namespace)).requires if isinstance(need, Capacity))
    labels = ",".join(f"{key}={value}" for key, value in {"type": "kwok", **room.labels}.items())
    nodes = here.list("v1", "Node", {"labelSelector": labels}, everywhere=True)
    nodes = [node for node in nodes if room.resources.keys() <= node["status"]["allocatable"].keys()][:8]
    pods = []
    for node in nodes:
        mark(here, node, "yes")
        takes = {"name": "all", "image": "none:1", "resources": {"requests": {"cpu": "100"}}}
        about = {"name": f"busy-{uuid.uuid4().hex[:8]}"}
        spec = {"nodeName": node["metadata"]["name"], "containers": [takes]}
        pods.append(here.create({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}))
    yield {"type": "kwok", BUSY: "yes"}
    for pod in pods:
        here.delete("v1", "Pod", pod["metadata"]["name"])
    for node in nodes:
        mark(here, node, None)


def mark(here: Client, node: dict[str, Any], value: str | None) -> None:
    path = here.path("v1", "Node", node["metadata"]["name"], None)
    here.request("PATCH", path, body={"metadata": {"labels": {BUSY: value}}})


@EACH_WAY
def test_deleted_by_another(carry: Carry, namespace: str, profile: str) -> None:
    """If another user deletes the job, the run fails with that as its cause, and not with a failed pod."""
    here = Client(Cluster(namespace=namespace))
    job = sketch(profile, at_home(profile, namespace)).main
    which = (job["apiVersion"], job["kind"])

    def delete_when_running() -> None:
        for _ in range(200):
            time.sleep(0.1)
            pods = here.list("v1", "Pod", {"labelSelector": "torchyard/run,!torchyard/role"})
            if pods and all(pod.get("status", {}).get("phase") == "Running" for pod in pods):
                for each in here.list(*which):
                    here.delete(*which, each["metadata"]["name"])
                return

    other = threading.Thread(target=delete_when_running)
    other.start()
    end, report = carry((profile, "deleted by another"), {})
    other.join()
    assert (end.name, report.leftovers) == ("Failed", ())
    assert "was deleted by somebody else" in report.sentence


# What each webhook refuses: names that no profile can produce.
REFUSED: dict[str, tuple[object, str, str, str]] = {
    "volcano": (volcano, "_TASK_NAME", "Worker", "a lowercase RFC 1123 label"),
    "pytorchjob": (pytorchjob, "_CONTAINER_NAME", "trainer", "at least one container with name pytorch"),
    "appwrapper": (pytorchjob, "_CONTAINER_NAME", "trainer", "at least one container with name pytorch"),
    "runai": (pytorchjob, "_CONTAINER_NAME", "trainer", "at least one container with name pytorch"),
    "jobset": (jobset, "_JOB_NAME", "Worker", "a lowercase RFC 1123 label"),
}


@EACH_WAY
def test_refused(carry: Carry, monkeypatch: pytest.MonkeyPatch, profile: str) -> None:
    """A refusal by a webhook or the API server is reported in its own words, and nothing is created."""
    module, name, value, said = REFUSED[load_profile(profile).launcher]
    monkeypatch.setattr(module, name, value)
    end, report = carry((profile, "refused"), ENDS)
    assert (end.name, report.leftovers, report.attempts) == ("Failed", (), ())
    assert said in report.sentence


def test_refused_by_a_queue(carry: Carry) -> None:
    """Volcano's root queue accepts no jobs; its webhook refuses the job before anything is created."""
    end, report = carry(("yolov5-volcano", "refused"), ENDS, nodes=1, options__queue="root")
    assert (end.name, report.leftovers, report.attempts) == ("Failed", (), ())
    assert "can not submit job to root queue" in report.sentence
