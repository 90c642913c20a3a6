"""Jobs with fake pods, started without a flow, for the tests of single steps."""

import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.fault_proxy import CONTEXT, FaultProxy
from tests.cluster.objects import delete_by_name
from torchyard.cluster import create
from torchyard.cluster.lease_renewal import get_renewer
from torchyard.kube.client import Client, get_cluster_client
from torchyard.launchers import registry
from torchyard.loading.profile import load_profile
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster
from torchyard.model.run import Run

ANNOTATION = "torchyard.test/"
USER = "torchyard@torchyard"
JOB_KINDS = (
    ("batch.volcano.sh/v1alpha1", "Job"),
    ("kubeflow.org/v1", "PyTorchJob"),
    ("workload.codeflare.dev/v1beta2", "AppWrapper"),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"),
    ("batch/v1", "Job"),
)


def as_user() -> dict[str, Any]:
    """Overrides that run a job with the rights of deploy/kubernetes/rbac.yaml; empty if KUBECONFIG has no such user."""
    try:
        return {"cluster.context": get_cluster_client(Cluster(context=USER)).context}
    except ClusterError:
        return {}


def require_real_nodes(client: Client) -> list[dict[str, Any]]:
    """The two real nodes of the cluster; the test is skipped if it does not have them."""
    nodes = client.list("v1", "Node", {"labelSelector": "torchyard/node=real"}, everywhere=True)
    if len(nodes) < 2:
        pytest.skip("this cluster does not have two real nodes (label torchyard/node=real)")
    return nodes


def until(condition: Callable[[], Any], *, timeout_s: float = 90.0) -> Any:
    """Poll until the function returns a true value, and return it; AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError(f"the condition did not become true within {timeout_s:g} s")


class Jobs:
    """Jobs of two fake pods in one namespace, which run until a test ends them.

    `extra_overrides` can be set before `plan` or `start`. `clear` deletes the namespace's jobs, and stops the renewal
    of the Leases of those that `start` has created.
    """

    def __init__(self, namespace: str, fake: dict[str, Any], folder: Path) -> None:
        self.namespace = namespace
        self.folder = folder
        self.client = Client(Cluster(namespace=namespace))
        self._overrides = fake | {"cluster.namespace": namespace}
        self.extra_overrides: dict[str, Any] = {}
        self._plans: list[ManifestPlan] = []

    def plan(
        self, proxy: FaultProxy | None = None, profile: str = "yolov5-volcano", **annotations: Any
    ) -> ManifestPlan:
        """The plan of a new run; annotations such as `log="/a/file"` control its fake pods.

        With a proxy the run calls the API server through it.
        """
        pod_annotations = {f"{ANNOTATION}{key.replace('_', '-')}": str(value) for key, value in annotations.items()}
        overrides = self._overrides | {"pod.annotations": pod_annotations}
        if proxy:
            overrides["cluster.context"] = CONTEXT
        overrides |= self.extra_overrides
        run = Run(id=str(uuid.uuid4()), attempt=1, folder=str(self.folder))
        loaded_profile = load_profile(profile, overrides)
        plan = registry.make_plan(loaded_profile, run)
        assert isinstance(plan, ManifestPlan)
        return plan

    def start(self, proxy: FaultProxy | None = None, **annotations: Any) -> ManifestPlan:
        """Create the job of a new plan, and return the plan."""
        plan = self.plan(proxy, **annotations)
        self._plans.append(plan)
        create.create_job(plan)
        return plan

    def get_pod(self, plan: ManifestPlan, node: str) -> dict[str, Any]:
        """The current state of a node's pod, which must exist."""
        pod = self.client.get("v1", "Pod", f"{plan.job}-{node}")
        assert pod
        return {"apiVersion": "v1", "kind": "Pod"} | pod

    def annotate(self, plan: ManifestPlan, node: str, **annotations: str) -> None:
        """Change the annotations that control a node's fake pod, such as `end_now="0"`."""
        pod_annotations = {f"{ANNOTATION}{key.replace('_', '-')}": value for key, value in annotations.items()}
        self.client.patch(self.get_pod(plan, node), {"metadata": {"annotations": pod_annotations}})

    def end(self, plan: ManifestPlan) -> None:
        """Let every pod succeed."""
        for node in plan.nodes:
            self.annotate(plan, node, end_now="0")

    def delete(self, plan: ManifestPlan) -> None:
        """Delete the job, as a user would, and wait until its pods are deleted."""
        delete_by_name(self.client, plan.main["apiVersion"], plan.main["kind"], plan.job)
        until(lambda: not self.list_labelled(plan, "v1", "Pod"))

    def list_labelled(self, plan: ManifestPlan, api_version: str, kind: str) -> list[dict[str, Any]]:
        """The objects of a kind that have the run's labels."""
        selector = ",".join(f"{key}={value}" for key, value in plan.labels.items())
        return self.client.list(api_version, kind, {"labelSelector": selector})

    def clear(self) -> None:
        """Delete all jobs in the namespace, and stop renewing the Leases of those that `start` has created."""
        for plan in self._plans:
            get_renewer().drop(plan)
        for version, kind in JOB_KINDS:
            for job in self.client.list(version, kind):
                delete_by_name(self.client, version, kind, job["metadata"]["name"])
