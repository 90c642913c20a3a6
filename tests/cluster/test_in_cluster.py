"""A Prefect server, worker and flow runs in pods of two real nodes, as deploy/kubernetes makes them."""

import contextlib
import json
import os
import signal
import subprocess
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.cluster import launcher_image
from tests.cluster.plane import Plane, environments
from torchyard.common.project_root import ROOT
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]

DEPLOY = ROOT / "deploy" / "kubernetes"
REAL = {"torchyard/node": "real"}
PASSWORD = "0123456789abcdef0123456789abcdef"
PATIENCE_S = 300.0  # for a pod that starts Python on a busy machine
SMALL = json.loads((ROOT / "docs" / "small.json").read_text())
RUN_LABEL = "prefect.io/flow-run-id"
Object = dict[str, Any]


def render(folder: Path) -> list[Object]:
    """The manifests of a kustomization, by the real kubectl."""
    words = [str(Plane.current().program("kubectl")), "kustomize", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def write_overlay(folder: Path, namespace: str, *components: str) -> Path:
    """An overlay as a user writes it; what it adds is the nodes, and volumes for a cluster without storage."""
    base = os.path.relpath(DEPLOY, folder)
    (folder / "nodes.yaml").write_text(yaml.safe_dump({"nodeSelector": REAL}))
    patch = [{"op": "add", "path": "/spec/template/spec/nodeSelector", "value": REAL}]
    overlay = {
        "namespace": namespace,
        "resources": [base],
        "components": [f"{base}/{name}" for name in components],
        "images": [{"name": "torchyard", "newName": launcher_image.IMAGE.rpartition(":")[0], "newTag": "local"}],
        "configMapGenerator": [{"name": "torchyard-run-pod", "behavior": "merge", "files": ["nodes.yaml"]}],
        "patches": [{"target": {"kind": "Deployment"}, "patch": yaml.safe_dump(patch)}],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    return folder


def find_path(server: Client, thing: Object) -> str:
    """Where objects of this kind are created."""
    everywhere = thing["kind"].startswith("Cluster") or thing["kind"] == "PersistentVolume"
    return server.path(
        thing["apiVersion"], thing["kind"], namespace=None if everywhere else thing["metadata"]["namespace"]
    )


def create(server: Client, thing: Object, **query: str) -> Object:
    """Create any object; unknown fields are refused."""
    return server.request("POST", find_path(server, thing), {"fieldValidation": "Strict", **query}, thing)


def build_volume(claim: Object, namespace: str, folder: Path) -> Object:
    """A folder of this machine, which both nodes share, for a claim."""
    name = claim["metadata"]["name"]
    path = folder / name
    path.mkdir()
    path.chmod(0o777)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{name}"},
        "spec": {
            "capacity": claim["spec"]["resources"]["requests"],
            "accessModes": claim["spec"]["accessModes"],
            "hostPath": {"path": str(path)},
            "claimRef": {"namespace": namespace, "name": name},
        },
    }


class Installation:
    """What an overlay has created in a namespace, and its Prefect server's API."""

    def __init__(self, server: Client, namespace: str) -> None:
        self.server, self.namespace = server, namespace
        self.api = httpx.Client(timeout=30)

    def await_available(self, name: str) -> None:
        def is_available() -> bool:
            found = self.server.get("apps/v1", "Deployment", name)
            return bool(found and found["status"].get("availableReplicas"))

        until_slowly(is_available, lambda: self.describe_pods({"labelSelector": f"app={name}"}))

    def describe_pods(self, query: dict[str, str]) -> str:
        """What its pods say, for a test that fails."""
        told = []
        for pod in self.server.list("v1", "Pod", query):
            path = f"{self.server.path('v1', 'Pod', pod['metadata']['name'])}/log"
            told.append(json.dumps(pod["status"])[-3000:])
            for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
                try:
                    said = self.server.stream_lines(path, {"container": container["name"], "tailLines": "60"}, 10)
                    told.append("".join(line.decode() for line in said))
                except ClusterError as error:
                    told.append(str(error))
        return "\n".join(told)

    def connect(self) -> None:
        """Open the API of its Prefect server, at the pod's own address."""
        (pod,) = self.server.list("v1", "Pod", {"labelSelector": "app=torchyard-server"})
        token = b64encode(PASSWORD.encode()).decode()
        self.api = httpx.Client(
            base_url=f"http://{pod['status']['podIP']}:4200/api",
            headers={"Authorization": f"Basic {token}"},
            timeout=30,
        )

    def call(self, method: str, path: str, body: Object | None = None) -> Any:
        answer = self.api.request(method, path, json=body)
        answer.raise_for_status()
        return answer.json()

    def run(self, deployment: str, parameters: Object) -> str:
        """Start a flow run as the UI does; its id."""
        found = self.call("GET", f"/deployments/name/{deployment}")
        made = self.call("POST", f"/deployments/{found['id']}/create_flow_run", {"parameters": parameters})
        return str(made["id"])

    def state(self, run: str) -> Object:
        found: Object = self.call("GET", f"/flow_runs/{run}")["state"]
        return found

    def list_run_pods(self, run: str) -> list[Object]:
        """The pods of a flow run, the newest first."""
        pods = self.server.list("v1", "Pod", {"labelSelector": f"{RUN_LABEL}={run}"})
        return sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), reverse=True)

    def await_end(self, run: str) -> Object:
        def ended() -> Object | None:
            state = self.state(run)
            return state if state["type"] in ("COMPLETED", "FAILED", "CANCELLED") else None

        found: Object = until_slowly(ended, lambda: self.describe_pods({"labelSelector": f"{RUN_LABEL}={run}"}))
        return found

    def await_completed(self, run: str) -> str:
        """Wait for the end of a run, which must be Completed with nothing left; its report."""
        end = self.await_end(run)
        assert (end["name"], self.read_job(run)) == ("Completed", {}), end
        return self.read_report(run)

    def read_job(self, run: str) -> Object:
        """The run's Volcano job; empty if there is none."""
        found = self.server.list("batch.volcano.sh/v1alpha1", "Job")
        return next((each for each in found if f"-{run[-8:]}-" in each["metadata"]["name"]), {})

    def read_log(self, run: str) -> str:
        """What the job's pods have printed so far."""
        told = []
        for pod in self.server.list("v1", "Pod", {"labelSelector": f"torchyard/run=yolov5-volcano-{run[-8:]}"}):
            path = f"{self.server.path('v1', 'Pod', pod['metadata']['name'])}/log"
            try:
                told.append(b"".join(self.server.stream_lines(path, {}, 10)).decode())
            except ClusterError:  # it has not started
                told.append("")
        return "\n".join(told)

    def read_report(self, run: str) -> str:
        flow_run = {"flow_runs": {"id": {"any_": [run]}}}
        found = self.call("POST", "/artifacts/filter", {**flow_run, "sort": "CREATED_DESC"})
        return "\n".join(str(each["data"]) for each in found if str(each["key"]).startswith("report-"))


def until_slowly(found: Any, describe: Any) -> Any:
    """As `until`, once a second; a failure says what the pods say."""
    deadline = time.monotonic() + PATIENCE_S
    while not (something := found()):
        assert time.monotonic() < deadline, describe()
        time.sleep(1)
    return something


@pytest.fixture(scope="module")
def nodes(plane: Client) -> list[str]:
    """The names of the two real nodes, which have the launcher's image."""
    found = plane.list("v1", "Node", {"labelSelector": "torchyard/node=real"}, everywhere=True)
    if len(found) < 2:
        pytest.skip("this cluster has no two real nodes (label torchyard/node=real)")
    if lacking := launcher_image.why_not():
        pytest.skip(lacking)
    return [each["metadata"]["name"] for each in found]


@pytest.fixture(scope="module")
def installed(
    plane: Client, nodes: list[str], namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """A running installation of this checkout."""
    folder = tmp_path_factory.mktemp("deploy")
    launcher_image.load_image(Plane.current(), launcher_image.build_image(folder))
    here = Client(Cluster(namespace=namespace))
    secret = {"metadata": {"name": "torchyard-prefect"}, "stringData": {"PREFECT_API_AUTH_STRING": PASSWORD}}
    here.create({"apiVersion": "v1", "kind": "Secret", **secret})
    made = list[Object]()
    try:
        yield install(plane, here, folder, made)
    finally:
        for each in made:
            if "namespace" not in each["metadata"]:
                plane.request("DELETE", f"{find_path(plane, each)}/{each['metadata']['name']}")


def install(plane: Client, here: Client, folder: Path, made: list[Object]) -> Installation:
    """Create everything and wait until it works; `made` gets each object."""
    namespace = here.namespace
    for each in render(write_overlay(folder, namespace, "server")):
        if each["kind"] == "ClusterRole":
            continue  # those of the test cluster
        if each["kind"] == "ClusterRoleBinding":
            each["metadata"]["name"] += f"-{namespace}"
        if each["kind"] == "PersistentVolumeClaim":
            made.append(create(plane, build_volume(each, namespace, folder)))
        made.append(create(plane, each))
    installation = Installation(here, namespace)
    installation.await_available("torchyard-server")
    installation.await_available("torchyard-worker")
    installation.connect()
    return installation


@pytest.fixture
def cordon(plane: Client, nodes: list[str]) -> Iterator[Any]:
    """Keeps new pods off a node for the length of a test."""

    def keep_off(name: str, off: bool = True) -> None:
        plane.request("PATCH", plane.path("v1", "Node", name, namespace=None), body={"spec": {"unschedulable": off}})

    yield keep_off
    for name in nodes:
        keep_off(name, False)


def test_every_manifest_is_accepted(plane: Client, namespace: str, tmp_path: Path) -> None:
    """The API server takes every object of the base and of both components, and knows all of their fields."""
    found = render(write_overlay(tmp_path, namespace, "server", "claim"))
    for each in found:
        each["metadata"]["name"] += "-strict"
        create(plane, each, dryRun="All")
    assert {"Deployment", "PersistentVolumeClaim", "Role", "ConfigMap"} <= {each["kind"] for each in found}


def carry_fake_job(installed: Installation, seconds: str) -> str:
    """Start a run whose job's pods are fake and end after some seconds, and wait until it watches them; its id."""
    pod = {"pod.node_selector": {"type": "kwok"}, "pod.annotations": {"torchyard.test/end-after": seconds}}
    run = installed.run("train/yolov5-volcano", {"profile": "yolov5-volcano", "overrides": pod})
    until_slowly(
        lambda: installed.read_job(run).get("status", {}).get("state", {}).get("phase") == "Running",
        lambda: installed.describe_pods({"labelSelector": f"{RUN_LABEL}={run}"}),
    )
    return run


@pytest.fixture(scope="module")
def killed(installed: Installation) -> str:
    """A run whose processes were killed while its job trains, as by a node's lack of memory."""
    run = carry_fake_job(installed, "150")
    mark = f"PREFECT__FLOW_RUN_ID={run}".encode()
    for words, process in environments():
        if mark in words:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    return run


@pytest.mark.usefixtures("killed")  # it comes back meanwhile
def test_a_run_outlives_its_pod(installed: Installation, cordon: Any) -> None:
    """A flow's pod is deleted while its job trains: the run goes on in a pod on the other node, with the same job."""
    overrides = {**SMALL, "args": ["--epochs=30", "--pause=2"]}
    run = installed.run("train/yolov5-volcano", {"profile": "yolov5-volcano", "overrides": overrides})
    until_slowly(
        lambda: '"epoch": 2' in installed.read_log(run),
        lambda: installed.describe_pods({"labelSelector": f"{RUN_LABEL}={run}"}),
    )
    (first,), before = installed.list_run_pods(run), installed.read_job(run)["metadata"]["uid"]
    cordon(first["spec"]["nodeName"])
    installed.server.delete("v1", "Pod", first["metadata"]["name"])
    until_slowly(
        lambda: (
            {pod["spec"].get("nodeName") for pod in installed.list_run_pods(run)} - {None, first["spec"]["nodeName"]}
        ),
        lambda: installed.describe_pods({"labelSelector": f"{RUN_LABEL}={run}"}),
    )
    assert installed.read_job(run)["metadata"]["uid"] == before
    report = installed.await_completed(run)
    assert "handed the run over" in report
    assert [f"| {epoch} |" in report for epoch in (1, 15, 30)] == [True] * 3


def test_a_cancelled_run_is_torn_down(installed: Installation) -> None:
    """A run that is cancelled in Prefect removes its job, and starts no other pod."""
    run = carry_fake_job(installed, "600")
    installed.call("POST", f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
    assert installed.await_end(run)["name"] == "Cancelled"
    assert (installed.read_job(run), len(installed.list_run_pods(run)) <= 1) == ({}, True)


def test_a_killed_run_comes_back(installed: Installation, killed: str) -> None:
    """After SIGKILL another pod takes the run over from its Lease, once that was not renewed for long enough."""
    assert "was lost" in installed.await_completed(killed)
