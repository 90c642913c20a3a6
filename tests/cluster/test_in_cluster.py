"""A Prefect server, worker and flow runs in pods of two real nodes, created by the manifests of deploy/kubernetes."""

import contextlib
import json
import os
import signal
import subprocess
import time
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from tests.cluster import launcher_image
from tests.cluster.jobs import require_real_nodes
from tests.cluster.objects import delete_by_name
from tests.cluster.plane import Plane, iter_process_environments
from torchyard.common.project_root import ROOT
from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.profile import Cluster
from torchyard.tasks.flow_run.states import is_transient_error

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]

DEPLOY = ROOT / "deploy" / "kubernetes"
REAL_NODES = {"torchyard/node": "real"}
FLOW_NODES = {"torchyard.test/flows": "yes"}  # of the nodes on which pods of flows may start
PASSWORD = "0123456789abcdef0123456789abcdef"
TIMEOUT_S = 300.0  # for a pod that starts Python on a busy machine
SWEEP_INTERVAL_S = 600.0
SMALL: dict[str, Any] = json.loads((ROOT / "docs" / "small.json").read_text())
RUN_LABEL = "prefect.io/flow-run-id"
Object = dict[str, Any]


def render_kustomization(folder: Path) -> list[Object]:
    """The manifests of a kustomization, by the real kubectl."""
    argv = [str(Plane.current().get_program_path("kubectl")), "kustomize", str(folder)]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return [document for document in yaml.safe_load_all(result.stdout) if document]


def write_overlay(folder: Path, namespace: str, *components: str) -> Path:
    """Write an overlay as a user does; it adds the nodes, and volumes for a cluster without storage."""
    base = os.path.relpath(DEPLOY, folder)
    (folder / "nodes.yaml").write_text(yaml.safe_dump({"nodeSelector": FLOW_NODES}))
    patch = [{"op": "add", "path": "/spec/template/spec/nodeSelector", "value": REAL_NODES}]
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


def get_collection_path(client: Client, obj: Object) -> str:
    """The API path under which objects of this kind are created."""
    is_cluster_wide = obj["kind"].startswith("Cluster") or obj["kind"] == "PersistentVolume"
    return client.path(
        obj["apiVersion"], obj["kind"], namespace=None if is_cluster_wide else obj["metadata"]["namespace"]
    )


def create(client: Client, obj: Object, **query: str) -> Object:
    """Create any object and return it; unknown fields are refused."""
    return client.request("POST", get_collection_path(client, obj), {"fieldValidation": "Strict"} | query, obj)


def build_volume(claim: Object, namespace: str, folder: Path) -> Object:
    """A PersistentVolume for a claim: a folder of this machine, which both nodes share."""
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
    """The objects that an overlay has created in a namespace, and its Prefect server's API.

    `connect` must be called before `call` and the methods that use flow runs; the server's pod must be running by then.
    """

    def __init__(self, client: Client, namespace: str, server_folder: Path) -> None:
        """`server_folder`: the volume of its Prefect server."""
        self.client = client
        self.namespace = namespace
        self.server_folder = server_folder
        self.prefect_api = httpx.Client(timeout=30)

    def await_available(self, name: str) -> None:
        """Wait until a Deployment has an available pod."""

        def is_available() -> bool:
            deployment = self.client.get("apps/v1", "Deployment", name)
            return bool(deployment and deployment["status"].get("availableReplicas"))

        wait_until(is_available, lambda: self.describe_pods({"labelSelector": f"app={name}"}))

    def describe_pods(self, query: dict[str, str]) -> str:
        """The states and last log lines of its pods, for the message of a test that fails."""
        lines = []
        for pod in self.client.list("v1", "Pod", query):
            path = f"{self.client.path('v1', 'Pod', pod['metadata']['name'])}/log"
            lines.append(json.dumps(pod["status"])[-3000:])
            for container in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
                try:
                    log_lines = self.client.stream_lines(path, {"container": container["name"], "tailLines": "60"}, 10)
                    lines.append("".join(line.decode() for line in log_lines))
                except ClusterError as error:
                    lines.append(str(error))
        return "\n".join(lines)

    def connect(self) -> None:
        """Open the API of its Prefect server, at the pod's own address."""
        (pod,) = self.client.list("v1", "Pod", {"labelSelector": "app=torchyard-server"})
        token = b64encode(PASSWORD.encode()).decode()
        self.prefect_api = httpx.Client(
            base_url=f"http://{pod['status']['podIP']}:4200/api",
            headers={"Authorization": f"Basic {token}"},
            timeout=30,
        )

    @retry(
        retry=retry_if_exception(is_transient_error), wait=wait_fixed(1), stop=stop_after_delay(TIMEOUT_S), reraise=True
    )
    def call(self, method: str, path: str, body: Object | None = None) -> Any:
        """Send a request to the Prefect server, again while it is busy; return the JSON of the response."""
        response = self.prefect_api.request(method, path, json=body)
        response.raise_for_status()
        return response.json()

    def start_flow_run(self, deployment: str, parameters: Object) -> str:
        """Start a flow run as the UI does; return its id."""
        details = self.call("GET", f"/deployments/name/{deployment}")
        # With the key a request that was repeated starts one run.
        body = {"parameters": parameters, "idempotency_key": uuid.uuid4().hex}
        flow_run = self.call("POST", f"/deployments/{details['id']}/create_flow_run", body)
        return str(flow_run["id"])

    def read_state(self, run: str) -> Object:
        """The state of a flow run."""
        state: Object = self.call("GET", f"/flow_runs/{run}")["state"]
        return state

    def list_run_pods(self, run: str) -> list[Object]:
        """The pods of a flow run, the newest first."""
        pods = self.client.list("v1", "Pod", {"labelSelector": f"{RUN_LABEL}={run}"})
        return sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), reverse=True)

    def await_end(self, run: str, timeout_s: float = TIMEOUT_S) -> Object:
        """Wait until a flow run has ended; return its last state."""

        def find_end() -> Object | None:
            state = self.read_state(run)
            return state if state["type"] in ("COMPLETED", "FAILED", "CANCELLED") else None

        final_state: Object = wait_until(
            find_end, lambda: self.describe_pods({"labelSelector": f"{RUN_LABEL}={run}"}), timeout_s
        )
        return final_state

    def await_completed(self, run: str, timeout_s: float = TIMEOUT_S) -> str:
        """Wait for the end of a run, which must be Completed without leftovers; return its report."""
        state = self.await_end(run, timeout_s)
        assert (state["name"], self.read_job(run)) == ("Completed", {}), state
        return self.read_report(run)

    def has_lost_event(self, run: str, event: str) -> bool:
        """Whether Prefect has given up an event of a flow run, as after four failures of its handler."""
        for path in (self.server_folder / "dlq").glob("*"):
            message = json.loads(json.loads(path.read_text())["data"])
            if message["event"] == event and message["resource"]["prefect.resource.id"] == f"prefect.flow-run.{run}":
                return True
        return False

    def read_job(self, run: str) -> Object:
        """The run's Volcano job; empty if there is none."""
        for job in self.client.list("batch.volcano.sh/v1alpha1", "Job"):
            if f"-{run[-8:]}-" in job["metadata"]["name"]:
                return job
        return {}

    def read_log(self, run: str) -> str:
        """Everything that the job's pods have printed so far."""
        logs = []
        for pod in self.client.list("v1", "Pod", {"labelSelector": f"torchyard/run=yolov5-volcano-{run[-8:]}"}):
            path = f"{self.client.path('v1', 'Pod', pod['metadata']['name'])}/log"
            try:
                logs.append(b"".join(self.client.stream_lines(path, {}, 10)).decode())
            except ClusterError:  # it has not started
                logs.append("")
        return "\n".join(logs)

    def read_report(self, run: str) -> str:
        """The reports of a flow run, the newest first."""
        query = {"flow_runs": {"id": {"any_": [run]}}, "sort": "CREATED_DESC"}
        artifacts = self.call("POST", "/artifacts/filter", query)
        return "\n".join(str(artifact["data"]) for artifact in artifacts if str(artifact["key"]).startswith("report-"))


def wait_until(condition: Any, describe: Any, timeout_s: float = TIMEOUT_S) -> Any:
    """As `until`, once a second; the AssertionError has the text that `describe` returns."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < deadline, describe()
        time.sleep(1)


@pytest.fixture(scope="module")
def nodes(admin_client: Client) -> Iterator[list[str]]:
    """The names of the two real nodes, which have the launcher's image, and on which flows may run."""
    real_nodes = require_real_nodes(admin_client)
    obstacle = launcher_image.describe_obstacle()
    if obstacle:
        pytest.skip(obstacle)
    names = [node["metadata"]["name"] for node in real_nodes]
    for name in names:
        label_node(admin_client, name, FLOW_NODES)
    yield names
    for name in names:
        label_node(admin_client, name, None)


@pytest.fixture(scope="module")
def installation(
    admin_client: Client, nodes: list[str], namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """A running installation of this checkout."""
    folder = tmp_path_factory.mktemp("deploy")
    launcher_image.load_image(Plane.current(), launcher_image.build_image(folder))
    client = Client(Cluster(namespace=namespace))
    secret = {"metadata": {"name": "torchyard-prefect"}, "stringData": {"PREFECT_API_AUTH_STRING": PASSWORD}}
    client.create({"apiVersion": "v1", "kind": "Secret"} | secret)
    created = list[Object]()
    try:
        yield install(admin_client, client, folder, created)
    finally:
        for obj in created:
            if "namespace" not in obj["metadata"]:
                admin_client.request("DELETE", f"{get_collection_path(admin_client, obj)}/{obj['metadata']['name']}")


def install(admin_client: Client, client: Client, folder: Path, created: list[Object]) -> Installation:
    """Create everything and wait until it works; `made` gets each object."""
    namespace = client.namespace
    for obj in render_kustomization(write_overlay(folder, namespace, "server")):
        if obj["kind"] == "ClusterRole":
            continue  # those of the test cluster
        if obj["kind"] == "ClusterRoleBinding":
            obj["metadata"]["name"] += f"-{namespace}"
        if obj["kind"] == "PersistentVolumeClaim":
            created.append(create(admin_client, build_volume(obj, namespace, folder)))
        created.append(create(admin_client, obj))
    installation = Installation(client, namespace, folder / "torchyard-server")
    installation.await_available("torchyard-server")
    installation.await_available("torchyard-worker")
    installation.connect()
    return installation


@pytest.fixture
def keep_flows_off(admin_client: Client, nodes: list[str]) -> Iterator[Callable[[str], None]]:
    """A function that keeps new pods of flows off a node, until the test ends. Other tests' pods are not affected."""
    yield lambda name: label_node(admin_client, name, None)
    for name in nodes:
        label_node(admin_client, name, FLOW_NODES)


def label_node(client: Client, name: str, labels: dict[str, str] | None) -> None:
    """Add the labels of nodes on which flows run; None removes them."""
    body = {"metadata": {"labels": labels or dict.fromkeys(FLOW_NODES)}}
    client.request("PATCH", client.path("v1", "Node", name, namespace=None), body=body)


def test_every_manifest_is_accepted(admin_client: Client, namespace: str, tmp_path: Path) -> None:
    """The API server accepts every object of the base and of both components, with all of their fields."""
    manifests = render_kustomization(write_overlay(tmp_path, namespace, "server", "claim"))
    for manifest in manifests:
        manifest["metadata"]["name"] += "-strict"
        create(admin_client, manifest, dryRun="All")
    assert {"Deployment", "PersistentVolumeClaim", "Role", "ConfigMap"} <= {manifest["kind"] for manifest in manifests}


def start_fake_job(installation: Installation, seconds: str) -> str:
    """Start a run whose job's pods are fake and end after some seconds; return its id once the job is running."""
    pod = {"pod.node_selector": {"type": "kwok"}, "pod.annotations": {"torchyard.test/end-after": seconds}}
    run = installation.start_flow_run("train/yolov5-volcano", {"profile": "yolov5-volcano", "overrides": pod})
    wait_until(
        lambda: installation.read_job(run).get("status", {}).get("state", {}).get("phase") == "Running",
        lambda: installation.describe_pods({"labelSelector": f"{RUN_LABEL}={run}"}),
    )
    return run


@pytest.fixture(scope="module")
def killed_run(installation: Installation) -> str:
    """A run whose processes were killed while its job trains, as by a node's lack of memory."""
    run = start_fake_job(installation, "150")
    variable = f"PREFECT__FLOW_RUN_ID={run}".encode()
    for environment, process in iter_process_environments():
        if variable in environment:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    return run


@pytest.mark.usefixtures("killed_run")  # it resumes during this test
def test_run_survives_its_pod(installation: Installation, keep_flows_off: Callable[[str], None]) -> None:
    """A flow's pod is deleted while its job trains: the run continues in a pod on the other node, with the same job."""
    overrides = SMALL | {"args": ["--epochs=30", "--pause=2"]}
    run = installation.start_flow_run("train/yolov5-volcano", {"profile": "yolov5-volcano", "overrides": overrides})
    wait_until(
        lambda: '"epoch": 2' in installation.read_log(run),
        lambda: installation.describe_pods({"labelSelector": f"{RUN_LABEL}={run}"}),
    )
    (first_pod,) = installation.list_run_pods(run)
    job_uid = installation.read_job(run)["metadata"]["uid"]
    keep_flows_off(first_pod["spec"]["nodeName"])
    delete_by_name(installation.client, "v1", "Pod", first_pod["metadata"]["name"])
    wait_until(
        lambda: (
            {pod["spec"].get("nodeName") for pod in installation.list_run_pods(run)}
            - {None, first_pod["spec"]["nodeName"]}
        ),
        lambda: installation.describe_pods({"labelSelector": f"{RUN_LABEL}={run}"}),
    )
    assert installation.read_job(run)["metadata"]["uid"] == job_uid
    report = installation.await_completed(run)
    assert "handed the run over" in report
    assert [f"| {epoch} |" in report for epoch in (1, 15, 30)] == [True] * 3


def test_a_cancelled_run_is_torn_down(installation: Installation) -> None:
    """A run that is cancelled in Prefect removes its job, and starts no other pod."""
    run = start_fake_job(installation, "600")
    installation.call("POST", f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING"}})
    assert installation.await_end(run)["name"] == "Cancelled"
    assert (installation.read_job(run), len(installation.list_run_pods(run)) <= 1) == ({}, True)


def test_killed_run_resumes(installation: Installation, killed_run: str) -> None:
    """After a SIGKILL another pod takes the run over from its Lease, once that was not renewed for long enough."""
    timeout_s = TIMEOUT_S
    if installation.has_lost_event(killed_run, "prefect.flow-run.Crashed"):
        timeout_s += SWEEP_INTERVAL_S - 60  # no automation can resume it; a test may take 900 s
    assert "was lost" in installation.await_completed(killed_run, timeout_s)
