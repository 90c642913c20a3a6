"""Manifests of users whose pods must find each other by name, on real nodes with the real controllers."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.train import train
from tests.cluster.complete_runs import run_to_completion
from tests.cluster.jobs import require_real_nodes, until
from tests.cluster.objects import delete_by_name
from torchyard.common.project_root import ROOT
from torchyard.kube.client import Client
from torchyard.model.profile import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]
IMAGE = json.loads((ROOT / "docs" / "small.json").read_text())["image"]
# Waits until the addresses of both pods, as the manifest writes them, resolve; then long enough for the other pod.
SCRIPT = """
for address in {addresses}; do
i=0
until getent hosts "$address"; do
i=$((i+1))
[ $i -lt 60 ] || exit 7
sleep 0.5
done
done
sleep 5
"""


def build_pod(addresses: str, name: str = "main", **spec: Any) -> dict[str, Any]:
    """A pod template that succeeds once it has found `addresses`."""
    container = {
        "name": name,
        "image": IMAGE,
        "command": ["/bin/sh", "-c", SCRIPT.format(addresses=addresses)],
        "resources": {"requests": {"cpu": "50m"}},
    }
    fields = {"nodeSelector": {"torchyard/node": "real"}, "restartPolicy": "Never", "containers": [container]}
    return {"spec": fields | {"terminationGracePeriodSeconds": 1} | spec}


def build_object(api: str, kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}


def build_volcano_job() -> dict[str, Any]:
    """A Job of two roles, whose containers have different names."""
    addresses = "train-master-0.train train-worker-0.train"
    tasks = [
        {"name": "master", "replicas": 1, "template": build_pod(addresses, "master")},
        {"name": "worker", "replicas": 1, "template": build_pod(addresses, "worker")},
    ]
    plugins = {"svc": ["--publish-not-ready-addresses=true"]}
    job = {"minAvailable": 2, "schedulerName": "volcano", "plugins": plugins, "tasks": tasks}
    return build_object("batch.volcano.sh/v1alpha1", "Job", "train", **job)


def build_jobset() -> dict[str, Any]:
    """A JobSet of two replicated Jobs, the pods of which look for the first one's pod."""
    addresses = "train-leader-0-0.train train-rest-0-0.train"
    job = {"completions": 1, "parallelism": 1, "completionMode": "Indexed", "backoffLimit": 0}
    jobs = [
        {"name": name, "template": {"spec": job | {"template": build_pod(addresses)}}} for name in ("leader", "rest")
    ]
    return build_object("jobset.x-k8s.io/v1alpha2", "JobSet", "train", replicatedJobs=jobs)


def build_pytorchjob() -> dict[str, Any]:
    """A PyTorchJob with a master and a worker."""
    replica = {
        "replicas": 1,
        "restartPolicy": "Never",
        "template": build_pod("train-master-0 train-worker-0", "pytorch"),
    }
    return build_object(
        "kubeflow.org/v1", "PyTorchJob", "train", pytorchReplicaSpecs={"Master": replica, "Worker": replica}
    )


def build_indexed_job() -> list[dict[str, Any]]:
    """An Indexed Job, and the headless Service by which its pods find each other."""
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {"job-name": "train"}}
    job = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimit": 0}
    job["template"] = build_pod("train-0.train-hosts train-1.train-hosts", subdomain="train-hosts")
    return [build_object("v1", "Service", "train-hosts", **service), build_object("batch/v1", "Job", "train", **job)]


def build_single_job() -> dict[str, Any]:
    """A Job of one pod, whose name has no index."""
    return build_object("batch/v1", "Job", "train", backoffLimit=0, template=build_pod("localhost"))


def wrap(*components: dict[str, Any]) -> dict[str, Any]:
    """An AppWrapper of these objects."""
    contents = [{"template": component} for component in components]
    return build_object("workload.codeflare.dev/v1beta2", "AppWrapper", "train", components=contents)


def build_plain_pod(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}} | build_pod("localhost")


SERVICE = build_object("v1", "Service", "train-other", clusterIP="None", selector={"app": "none"})
MANIFESTS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "volcano-two-containers": ("volcano", [build_volcano_job()]),
    "jobset-own-name": ("jobset", [build_jobset()]),
    "pytorchjob-own-name": ("pytorchjob", [build_pytorchjob()]),
    "indexed-job": ("job", build_indexed_job()),
    "appwrapper-jobset": ("appwrapper", [wrap(build_jobset())]),
    "appwrapper-second-component": ("appwrapper", [wrap(SERVICE, build_pytorchjob())]),
    "appwrapper-indexed-job": ("appwrapper", [wrap(*build_indexed_job())]),
    "appwrapper-pods": ("appwrapper", [wrap(build_plain_pod("a"), build_plain_pod("b"))]),
}


@pytest.fixture
def namespace_overrides(admin_client: Client, user_overrides: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The overrides that run a manifest in the namespace."""
    require_real_nodes(admin_client)
    return user_overrides | {"cluster.namespace": namespace, "deadlines": {"start": "3m", "run": "3m"}}


def write_profile(folder: Path, launcher: str, documents: list[dict[str, Any]], **keys: Any) -> str:
    (folder / "job.yaml").write_text(yaml.safe_dump_all(documents))
    profile = folder / "users-own.yaml"
    profile.write_text(yaml.safe_dump({"about": "theirs", "launcher": launcher, "manifest": "job.yaml"} | keys))
    return str(profile)


@pytest.mark.parametrize("name", MANIFESTS)
def test_manifest_with_its_own_name_runs(name: str, namespace_overrides: dict[str, Any], tmp_path: Path) -> None:
    """Pods find each other by the name that the manifest writes, although a run gives the job another one."""
    report = run_to_completion(write_profile(tmp_path, *MANIFESTS[name]), namespace_overrides)
    assert report.collected
    assert len(report.collected.logs) == 2


@pytest.mark.parametrize(
    ("launcher", "document"), [("job", build_single_job()), ("appwrapper", wrap(build_single_job()))]
)
def test_job_of_one_pod_runs(
    launcher: str, document: dict[str, Any], namespace_overrides: dict[str, Any], tmp_path: Path
) -> None:
    """The only pod of a Job that is not Indexed is followed to its end, also inside an AppWrapper."""
    report = run_to_completion(write_profile(tmp_path, launcher, [document]), namespace_overrides)
    assert report.collected
    assert [log.node for log in report.collected.logs] == ["worker-0"]


def test_kept_name(namespace_overrides: dict[str, Any], namespace: str, tmp_path: Path) -> None:
    """A job that keeps its name is refused while another object has that name, which is left alone; then it runs."""
    client = Client(Cluster(namespace=namespace))
    job = build_volcano_job()
    profile = write_profile(tmp_path, "volcano", [job], manifest_name="keep")
    stranger = client.create(job | {"metadata": {"name": "train", "namespace": namespace}})
    state = train(profile, namespace_overrides, return_state=True)
    assert "Job train already exists, and does not belong to this run" in str(state.message)
    assert "write manifest_name: run" in str(state.message)
    existing = client.get(job["apiVersion"], "Job", "train")
    assert existing
    assert existing["metadata"]["uid"] == stranger["metadata"]["uid"]
    delete_by_name(client, job["apiVersion"], "Job", "train")
    until(lambda: client.get(job["apiVersion"], "Job", "train") is None)
    state = train(profile, namespace_overrides, return_state=True)
    assert state.name == "Completed"
