"""Cells in pods on the two real nodes of the test cluster, and what takes their nodes away."""

import itertools
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster import kueue
from tests.cluster.jobs import as_user
from tests.cluster.plane import Plane
from tests.stop.cells import Cell
from tests.stop.trial import PROGRAM, StopTrial, read_truth
from torchyard.common.project_root import ROOT
from torchyard.kube.client import Client, get_cluster_client
from torchyard.model.profile import Cluster

Object = dict[str, Any]
SMALL: Object = json.loads((ROOT / "docs" / "small.json").read_text())
_PROGRAM_PATH = "/opt/stopped/program.py"  # in the pods
_DRAINED_S = 8.0  # how long a drained node stays closed
_PREEMPTOR_S = 8.0  # how long the pod or the job with the higher priority runs
_PRIORITIES = {"low": 1_000, "high": 100_000}
_PRIORITY_PATH = "/apis/scheduling.k8s.io/v1/priorityclasses"
_SLOT = "stop.torchyard.test/slot-{}"  # a resource of which each node has one, for one cell
_HOSTNAME_LABEL = "kubernetes.io/hostname"


class StopNamespace:
    """The matrix's own namespace and priority classes, used with an administrator's rights."""

    def __init__(self) -> None:
        self.name = f"torchyard-stop-{uuid.uuid4().hex[:6]}"
        self._client = Client(Cluster(context=get_cluster_client(Cluster()).context, namespace=self.name))
        self._slot_numbers = itertools.count(1)
        self._queues: list[str] = []

    @contextmanager
    def open(self) -> Iterator["StopNamespace"]:
        """Create the namespace and its priority classes; remove them at the end."""
        metadata = {"name": self.name, "labels": kueue.NAMESPACE_LABELS}  # jobs without a queue are not affected
        self._client.request("POST", "/api/v1/namespaces", body={"metadata": metadata})
        try:
            for level, value in _PRIORITIES.items():
                body = {"metadata": {"name": self.name_priority(level)}, "value": value}
                self._client.request("POST", _PRIORITY_PATH, body=body)
            while not self._client.get("v1", "ServiceAccount", "default"):
                time.sleep(0.1)
            yield self
        finally:
            self._client.request("DELETE", f"/api/v1/namespaces/{self.name}")
            for level in _PRIORITIES:
                self._client.request("DELETE", f"{_PRIORITY_PATH}/{self.name_priority(level)}")
            for queue in self._queues:
                self._client.request("DELETE", f"/apis/{kueue.API_VERSION}/clusterqueues/{queue}")

    def name_priority(self, level: str) -> str:
        """The PriorityClass of a level, `low` or `high`."""
        return f"{self.name}-{level}"

    def add_slot(self) -> str:
        """Give each real node one of a new resource, and return its name."""
        slot = _SLOT.format(next(self._slot_numbers))
        amounts = {slot: "1"}
        nodes = self._client.list("v1", "Node", {"labelSelector": "torchyard/node=real"}, everywhere=True)
        for node in nodes:
            path = f"/api/v1/nodes/{node['metadata']['name']}/status"
            change = {"status": {"capacity": amounts, "allocatable": amounts}}
            self._client.request("PATCH", path, body=change)
        return slot

    def add_queue(self, slot: str) -> str:
        """Create a queue of Kueue with room for one job of two pods that need a slot each; return its name."""
        name = f"{self.name}-{slot.rpartition('-')[2]}"
        self._queues.append(name)
        quotas = {slot: 2, "cpu": "1k", "memory": "1Ti", "ephemeral-storage": "1Ti"}
        Plane.current().api().create_all(kueue.build_queue(name, self.name, quotas))
        return name

    def take_queue(self, queue: str, slot: str) -> None:
        """Create a job of the high priority that needs a slot of a queue."""
        container = {
            "name": "main",
            "image": SMALL["image"],
            "command": ["sleep", f"{_PREEMPTOR_S:g}"],
            "resources": {"requests": {"cpu": "10m", "memory": "1Mi"}, "limits": {slot: "1"}},
        }
        pod_spec = {
            "priorityClassName": self.name_priority("high"),
            "nodeSelector": {"torchyard/node": "real"},
            "restartPolicy": "Never",
            "containers": [container],
        }
        metadata = {"name": f"preemptor-{queue}", "labels": {"kueue.x-k8s.io/queue-name": queue}}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": {"spec": pod_spec}}}
        self._client.create(job)

    def get_pod(self, name: str) -> Object:
        pod = self._client.get("v1", "Pod", name)
        assert pod, name
        return pod

    def evict(self, name: str) -> None:
        """Let the Eviction API end a pod, as `kubectl drain` does."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": self.name}}
        self._client.request("POST", f"/api/v1/namespaces/{self.name}/pods/{name}/eviction", body=body)

    def drain(self, name: str) -> None:
        """Close the node of a pod, evict the pod, and open the node some seconds later."""
        node_path = f"/api/v1/nodes/{self.get_pod(name)['spec']['nodeName']}"
        self._client.request("PATCH", node_path, body={"spec": {"unschedulable": True}})
        try:
            self.evict(name)
            time.sleep(_DRAINED_S)
        finally:
            self._client.request("PATCH", node_path, body={"spec": {"unschedulable": False}})

    def preempt(self, name: str, slot: str, scheduler: str) -> None:
        """Create a pod of the high priority that needs the slot of another pod, on the node of that pod."""
        preemptor = f"preemptor-{name}"
        if scheduler == "volcano":
            group_spec = {"minMember": 1, "queue": "default", "priorityClassName": self.name_priority("high")}
            group = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup"}
            self._client.create(group | {"metadata": {"name": preemptor}, "spec": group_spec})
        container = {
            "name": "main",
            "image": SMALL["image"],
            "command": ["sleep", f"{_PREEMPTOR_S:g}"],
            "resources": {"limits": {slot: "1"}},
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": preemptor, "annotations": {"scheduling.k8s.io/group-name": preemptor}},
            "spec": {
                "schedulerName": scheduler,
                "priorityClassName": self.name_priority("high"),
                "nodeSelector": {_HOSTNAME_LABEL: self.get_pod(name)["spec"]["nodeName"]},
                "restartPolicy": "Never",
                "containers": [container],
            },
        }
        self._client.create(pod)


class PodTrial(StopTrial):
    """A job of two pods, whose folder is the node's."""

    def __init__(self, cell: Cell, folder: Path, namespace: StopNamespace) -> None:
        self.namespace = namespace
        self.slot = namespace.add_slot() if cell.way in ("preempt", "kueue") else None
        self.queue = namespace.add_queue(self.slot) if self.slot and cell.way == "kueue" else None
        super().__init__(cell, folder, {}, {})
        (folder / "checkpoints").mkdir()

    def build_profile(self) -> dict[str, Any]:
        profile = SMALL | super().build_profile()
        profile["launcher"] = self.cell.location
        profile["program"] = _PROGRAM_PATH
        profile["files"] = {_PROGRAM_PATH: str(PROGRAM)}
        profile["mounts"] = {str(self.folder): {"host": str(self.folder)}}
        profile["checkpoints"] = f"{self.folder}/checkpoints"
        profile["metrics"] = "none"
        profile["cluster"] = {"namespace": self.namespace.name}
        context = as_user().get("cluster.context")
        if context:
            profile["cluster"]["context"] = context
        if self.slot:
            profile["resources"] = SMALL["resources"] | {self.slot: 1}
            profile["pod"] = SMALL["pod"] | {"priority_class": self.namespace.name_priority("low")}
        if self.queue:
            profile["options"] = {"local_queue": self.queue}
        return profile

    def disrupt(self) -> None:
        """Take rank 0's pod away, or the machines of all pods."""
        pod = read_truth(self.truth_path).host
        match self.cell.way:
            case "evict":
                self.namespace.evict(pod)
            case "drain":
                self.namespace.drain(pod)
            case "preempt":
                assert self.slot
                scheduler = str(self.namespace.get_pod(pod)["spec"]["schedulerName"])
                self.namespace.preempt(pod, self.slot, scheduler)
            case "kueue":
                assert self.queue
                assert self.slot
                self.namespace.take_queue(self.queue, self.slot)
            case _:
                super().disrupt()
