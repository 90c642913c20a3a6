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
from tests.cluster.complete_runs import read_report
from tests.cluster.objects import delete_by_name
from tests.cluster.provide import ProvidedObjects, build_local_overrides
from tests.cluster.small import NEEDS_MCAD, list_pod_profiles, pick_one_per_kind
from torchyard.kube.client import Client
from torchyard.launchers import job, jobset, pytorchjob, registry, volcano
from torchyard.loading.profile import load_profile
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster
from torchyard.model.requirements import Capacity
from torchyard.model.run import Report, Run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]
PROFILES = (*list_pod_profiles(), *NEEDS_MCAD)
ALL_PROFILES = pytest.mark.parametrize("profile", PROFILES)
ONE_PER_KIND = pytest.mark.parametrize("profile", [*pick_one_per_kind(list_pod_profiles()), *NEEDS_MCAD])
END_AFTER_1_S = {"torchyard.test/end-after": "1"}
SHORT_LIMITS = {"attempts": 1, "deadlines.start": "30s"}
BUSY_LABEL = "torchyard.test/busy"
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
RunProfile = Callable[..., tuple[State[Any], Report]]


@pytest.fixture(scope="module")
def provided(namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProvidedObjects]:
    """The objects that the profiles refer to, for the whole module."""
    provided = ProvidedObjects(namespace, tmp_path_factory.mktemp("claims"))
    yield provided
    provided.clear()


@pytest.fixture
def run_profile(
    namespace: str,
    fake_overrides: dict[str, Any],
    provided: ProvidedObjects,
    record_property: Callable[[str, object], None],
) -> RunProfile:
    """A function that runs a profile with pod annotations and other overrides, and returns the state and report.

    In the names of overrides `__` stands for a dot. `cell`: the profile and the outcome, for the table of the summary.
    """

    def run(cell: tuple[str, str], annotations: dict[str, str], **overrides: Any) -> tuple[State[Any], Report]:
        record_property("cell", cell)
        dotted = {key.replace("__", "."): value for key, value in overrides.items()}
        all_overrides = (
            build_local_overrides(cell[0], namespace)
            | SHORT_LIMITS
            | fake_overrides
            | {"pod.annotations": annotations}
            | dotted
        )
        plan = build_plan(cell[0], all_overrides)
        skip_if_not_served(Client(Cluster(namespace=namespace)), plan)
        provided.provide(plan)
        state = train(cell[0], all_overrides, return_state=True)
        report = read_report()
        assert list_labelled(namespace, report) == []
        return state, report

    return run


def build_plan(profile: str, overrides: dict[str, Any]) -> ManifestPlan:
    """The plan of a profile, for a run that does not exist."""
    loaded_profile = load_profile(profile, overrides)
    plan = registry.make_plan(loaded_profile, Run(id="0" * 8, attempt=1, folder="/runs"))
    assert isinstance(plan, ManifestPlan)
    return plan


def skip_if_not_served(client: Client, plan: ManifestPlan) -> None:
    """Skip a job whose kind is not served: the two controllers of AppWrappers cannot share a cluster."""
    served_versions = []
    for group in client.request("GET", "/apis")["groups"]:
        served_versions += [version["groupVersion"] for version in group["versions"]]
    if plan.watch[0].api not in ("v1", *served_versions):
        pytest.skip(
            f"this cluster does not serve {plan.watch[0].kind} {plan.watch[0].api} (see `cluster.py up --mcad`)"
        )


def list_labelled(namespace: str, report: Report) -> list[str]:
    """The name of every object in the namespace that still has the run's label."""
    client = Client(Cluster(namespace=namespace))
    selector = {"labelSelector": f"torchyard/run={report.run}"}
    names: list[str] = []
    for api_version, kind in KINDS:
        names += [obj["metadata"]["name"] for obj in client.list(api_version, kind, selector)]
    return names


@ALL_PROFILES
def test_success(run_profile: RunProfile, namespace: str, profile: str) -> None:
    """If all pods end with exit code 0, the run is Completed, its logs are complete and nothing is left over."""
    state, report = run_profile((profile, "success"), END_AFTER_1_S)
    assert (state.name, report.leftovers) == ("Completed", ()), report.sentence
    assert report.collected
    logs = {log.node: log for log in report.collected.logs if log.node != "etcd"}
    assert {node: log.lost for node, log in logs.items()} == dict.fromkeys(
        build_plan(profile, build_local_overrides(profile, namespace)).nodes, ""
    )
    assert all("Rendezvous complete" in Path(log.path).read_text() for log in logs.values())


@ALL_PROFILES
def test_a_pod_fails(run_profile: RunProfile, profile: str) -> None:
    """If a pod fails, the run is Failed with the pod's exit code, and the other pods are stopped."""
    state, report = run_profile((profile, "pod fails"), END_AFTER_1_S | {"torchyard.test/exit": "7"})
    assert (state.name, report.leftovers) == ("Failed", ())
    assert "exit code 7" in report.sentence


@ONE_PER_KIND
def test_pods_that_never_fit(run_profile: RunProfile, busy_nodes: dict[str, Any], profile: str) -> None:
    """If no node has room for the pods, the run fails at its start deadline with the scheduler's reason."""
    overrides = {"pod__node_selector": busy_nodes, "resources__cpu": "500", "deadlines__start": "10s"}
    state, report = run_profile((profile, "never fits"), END_AFTER_1_S, **overrides)
    assert (state.name, report.leftovers) == ("Failed", ())
    assert re.search(r"not started within 10 s .*: .*waits for .*cpu", report.sentence), report.sentence


@pytest.fixture
def busy_nodes(namespace: str, fake_overrides: dict[str, Any], profile: str) -> Iterator[dict[str, str]]:
    """The labels of fake nodes that could take the profile's pods, but have some of their CPUs in use.

    Only pods that need almost a whole node do not fit: the pods of other tests still do.
    """
    client = Client(Cluster(namespace=namespace))
    requirements = build_plan(profile, build_local_overrides(profile, namespace)).requires
    (capacity,) = (requirement for requirement in requirements if isinstance(requirement, Capacity))
    labels = {"type": "kwok"} | capacity.labels
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    nodes = []
    for node in client.list("v1", "Node", {"labelSelector": selector}, everywhere=True):
        # A node with a taint belongs to another test, which deletes it.
        if capacity.resources.keys() <= node["status"]["allocatable"].keys() and not node["spec"].get("taints"):
            nodes.append(node)
    nodes = nodes[:8]
    pods = []
    for node in nodes:
        label_node(client, node, "yes")
        container = {"name": "all", "image": "none:1", "resources": {"requests": {"cpu": "20"}}}
        metadata = {"name": f"busy-{uuid.uuid4().hex[:8]}"}
        spec = {"nodeName": node["metadata"]["name"], "containers": [container]}
        pods.append(client.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}))
    yield {"type": "kwok", BUSY_LABEL: "yes"}
    for pod in pods:
        delete_by_name(client, "v1", "Pod", pod["metadata"]["name"])
    for node in nodes:
        label_node(client, node, None)


def label_node(client: Client, node: dict[str, Any], value: str | None) -> None:
    """Set the label BUSY_LABEL of a node, or remove it (None)."""
    path = client.path("v1", "Node", node["metadata"]["name"], None)
    client.request("PATCH", path, body={"metadata": {"labels": {BUSY_LABEL: value}}})


@ONE_PER_KIND
def test_deleted_by_another(run_profile: RunProfile, namespace: str, profile: str) -> None:
    """If another user deletes the job, the run fails with that as its cause, and not with a failed pod."""
    client = Client(Cluster(namespace=namespace))
    main = build_plan(profile, build_local_overrides(profile, namespace)).main
    kind = (main["apiVersion"], main["kind"])

    def delete_when_running() -> None:
        for _ in range(200):
            time.sleep(0.1)
            pods = client.list("v1", "Pod", {"labelSelector": "torchyard/run,!torchyard/role"})
            if pods and all(pod.get("status", {}).get("phase") == "Running" for pod in pods):
                for job_of_run in client.list(*kind):
                    delete_by_name(client, *kind, job_of_run["metadata"]["name"])
                return

    deleter = threading.Thread(target=delete_when_running)
    deleter.start()
    state, report = run_profile((profile, "deleted by another"), {})
    deleter.join()
    assert (state.name, report.leftovers) == ("Failed", ())
    assert "was deleted by another user or controller" in report.sentence


# What each webhook, or the API server itself, refuses: names that no profile can produce.
REFUSED: dict[str, tuple[object, str, str, str]] = {
    "volcano": (volcano, "_TASK_NAME", "Worker", "a lowercase RFC 1123 label"),
    "pytorchjob": (pytorchjob, "_CONTAINER_NAME", "trainer", "at least one container with name pytorch"),
    "appwrapper": (pytorchjob, "_CONTAINER_NAME", "trainer", "at least one container with name pytorch"),
    "runai": (pytorchjob, "_CONTAINER_NAME", "trainer", "at least one container with name pytorch"),
    "jobset": (jobset, "_JOB_NAME", "Worker", "a lowercase RFC 1123 label"),
    "job": (job, "_NODE_NAME", "Worker", "a lowercase RFC 1123 label"),
}


@ONE_PER_KIND
def test_refused(run_profile: RunProfile, monkeypatch: pytest.MonkeyPatch, profile: str) -> None:
    """A refusal by a webhook or the API server is reported in its own words, and nothing is created."""
    module, name, value, message = REFUSED[load_profile(profile).launcher]
    monkeypatch.setattr(module, name, value)
    state, report = run_profile((profile, "refused"), END_AFTER_1_S)
    assert (state.name, report.leftovers, report.attempts) == ("Failed", (), ())
    assert message in report.sentence


def test_refused_by_a_queue(run_profile: RunProfile) -> None:
    """Volcano's root queue accepts no jobs; its webhook refuses the job before anything is created."""
    state, report = run_profile(("yolov5-volcano", "refused"), END_AFTER_1_S, nodes=1, options__queue="root")
    assert (state.name, report.leftovers, report.attempts) == ("Failed", (), ())
    assert "can not submit job to root queue" in report.sentence
