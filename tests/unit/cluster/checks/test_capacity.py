"""Checks of capacity: how many pods a node holds, why it holds none, and the remedies."""

from typing import Any

import pytest

from tests.doubles.fake_api import FakeApi
from torchyard.cluster.checks.capacity import (
    ClusterNode,
    MismatchKind,
    NodeMismatch,
    check_capacity,
    count_pods,
    find_mismatch,
    list_remedies,
)
from torchyard.kube.client import Client
from torchyard.model.finding import FilePosition
from torchyard.model.pod import Toleration, TolerationItem
from torchyard.model.requirements import Capacity, ManifestFields

GPU = "nvidia.com/gpu"


def build_node(ready: str = "True", **spec: Any) -> ClusterNode:
    """A node of eight GPUs and 128 processors."""
    amounts = {"cpu": "127500m", "memory": "2113Gi", GPU: "8"}
    status = {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"name": "a"}, "spec": spec, "status": status}


def build_requirement(
    *, one_per_node: bool = False, tolerations: tuple[TolerationItem, ...] = (), **resources: str
) -> Capacity:
    requests = {GPU if name == "gpus" else name: amount for name, amount in resources.items()}
    return Capacity(pods=2, labels={}, tolerations=tolerations, resources=requests, one_per_node=one_per_node)


def find_reason(node: ClusterNode, requirement: Capacity) -> str:
    mismatch = find_mismatch(node, requirement)
    return mismatch.reason if mismatch else ""


def test_node_holds_as_many_pods_as_its_scarcest_resource_allows() -> None:
    """A node holds as many pods as its scarcest resource allows."""
    assert count_pods(build_node(), build_requirement(gpus="2", cpu="32", memory="1Gi")) == 3
    assert count_pods(build_node(), build_requirement(gpus="2", cpu="500m", memory="512Gi")) == 4


def test_one_pod_per_node_counts_once_per_node() -> None:
    """If each pod needs a separate node, a node with room for eight pods counts as one."""
    assert count_pods(build_node(), build_requirement(one_per_node=True, gpus="1")) == 1


def test_pods_without_requests_fit_on_one_node() -> None:
    """If pods request no resources, or an amount of 0, one node holds all of them."""
    assert count_pods(build_node(), build_requirement()) == 2
    assert count_pods(build_node(), build_requirement(gpus="0")) == 2


def test_shortage_is_reported_with_both_amounts() -> None:
    """A shortage is reported with the node's amount and the requested one, a missing resource with its name."""
    assert find_reason(build_node(), build_requirement(cpu="128")) == "cpu 127500m < 128"
    assert (
        find_reason(
            build_node(), Capacity(pods=1, labels={}, tolerations=(), resources={"a/b": "1"}, one_per_node=True)
        )
        == "no a/b"
    )


def test_node_that_is_not_ready_holds_no_pod() -> None:
    """A node that is lost, or has not reported its status yet, holds no pod."""
    assert find_reason(build_node(ready="Unknown"), build_requirement()) == "not Ready"
    assert find_reason({"metadata": {"name": "new"}}, build_requirement()) == "not Ready"


def test_toleration_without_a_key_tolerates_every_taint() -> None:
    """A toleration without a key matches all taints, and a PreferNoSchedule taint needs none."""
    tainted = build_node(taints=[{"key": "a", "effect": "NoExecute"}])
    assert find_reason(tainted, build_requirement()) == "taint a"
    assert find_reason(tainted, build_requirement(tolerations=("",))) == ""
    assert find_reason(build_node(taints=[{"key": "a", "effect": "PreferNoSchedule"}]), build_requirement()) == ""


@pytest.mark.parametrize(
    ("toleration", "reason"),
    [
        ({"key": "team", "value": "a"}, ""),
        ({"key": "team", "value": "b"}, "taint team"),
        ({"key": "team", "effect": "NoSchedule"}, ""),
        ({"key": "team", "effect": "NoExecute"}, "taint team"),
        ({"operator": "Exists", "effect": "NoSchedule"}, ""),
        ({"key": "other", "value": "a"}, "taint team"),
    ],
)
def test_toleration_has_the_value_and_the_effect_of_a_taint(toleration: dict[str, str], reason: str) -> None:
    """A toleration with a value or an effect tolerates only the taints that have it."""
    tainted = build_node(taints=[{"key": "team", "value": "a", "effect": "NoSchedule"}])
    requirement = build_requirement(tolerations=(Toleration.model_validate(toleration),))
    assert find_reason(tainted, requirement) == reason


def test_remedy_for_a_taint_of_kubernetes_is_not_a_toleration() -> None:
    """For a taint that Kubernetes sets, such as memory pressure, the remedy is to inspect the node."""
    mismatch = find_mismatch(
        build_node(taints=[{"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"}]), build_requirement()
    )
    assert mismatch is not None
    assert "kubectl describe node" in mismatch.remedy


def test_only_nodes_with_one_of_the_values_hold_pods() -> None:
    """A node without the label, or with a value that is not listed, holds no pod."""
    requirement = build_requirement().model_copy(update={"only": {"kubernetes.io/hostname": ("a", "b"), "none": ()}})
    assert find_reason(build_node(), requirement) == "label kubernetes.io/hostname is not one of a, b"
    labelled_node = build_node()
    labelled_node["metadata"]["labels"] = {"kubernetes.io/hostname": "b"}
    assert find_reason(labelled_node, requirement) == ""


def test_remedy_names_three_nodes() -> None:
    """A remedy for many nodes stays one line: it names three of them, and how many more there are."""
    mismatch = NodeMismatch("not Ready", "`kubectl describe node {nodes}`", MismatchKind.FAULT)
    assert list_remedies({"a": mismatch}) == ["`kubectl describe node a`"]
    (remedy,) = list_remedies({f"node-{index}": mismatch for index in range(43)})
    assert remedy == "`kubectl describe node node-0 node-1 node-2`, and 40 more"
    mismatches = {name: NodeMismatch("no gpu", "ask for less gpu", MismatchKind.SHORTAGE) for name in "abcd"}
    assert list_remedies(mismatches) == ["ask for less gpu"]


# --- the finding


@pytest.mark.parametrize("uses_host_ports", [True, False])
def test_fewer_nodes_are_always_a_remedy(fake_server: Client, uses_host_ports: bool) -> None:
    """Whatever is missing, the last remedy is to use fewer nodes; before it, with host ports, the pod network."""
    requirement = build_requirement(one_per_node=True).model_copy(update={"uses_host_ports": uses_host_ports})
    remedies = check_capacity(fake_server, requirement, "x", [build_node()]).remedy.split("; or ")
    assert remedies[-1] == "use fewer `nodes`"
    assert any("pod.host_network" in remedy for remedy in remedies) is uses_host_ports


def test_remedies_name_the_fields_of_a_manifest(fake_server: Client) -> None:
    """For a user's manifest the remedies name its fields in place of the profile's keys, and the finding has its line.

    A plain Pod has no number of pods.
    """
    fields = ManifestFields(
        location="Job train, spec.tasks[1].template.spec",
        container="spec.tasks[1].template.spec.containers[0]",
        pod_count="spec.tasks[1].replicas",
        position=FilePosition("job.yaml", 7),
    )
    update = {"labels": {"pool": "a"}, "uses_host_ports": True, "manifest": fields}
    requirement = build_requirement(one_per_node=True, gpus="16").model_copy(update=update)
    other_kind = build_node()
    tainted = build_node(taints=[{"key": "team", "effect": "NoSchedule"}])
    small = build_node()
    for index, node in enumerate((tainted, small)):
        node["metadata"] = {"name": f"node-{index}", "labels": {"pool": "a"}}
    check = check_capacity(fake_server, requirement, "x", [other_kind, tainted, small])
    assert (check.file, check.line, check.lacks_toleration) == ("job.yaml", 7, False)
    assert check_capacity(fake_server, requirement, "x", [other_kind, tainted]).lacks_toleration
    assert check.remedy.split("; or ") == [
        "add team to `spec.tasks[1].template.spec.tolerations`",
        "ask for less nvidia.com/gpu (`spec.tasks[1].template.spec.containers[0].resources`)",
        "leave the host's network (`spec.tasks[1].template.spec.hostNetwork: false`): then pods can share a node",
        "use fewer pods (`spec.tasks[1].replicas`)",
    ]
    plain_pod = requirement.model_copy(update={"manifest": fields.model_copy(update={"pod_count": None})})
    remedies = check_capacity(fake_server, plain_pod, "x", [other_kind]).remedy.split("; or ")
    values = "`kubectl get nodes -L pool` lists the existing values, for `spec.tasks[1].template.spec.nodeSelector`"
    assert (remedies[0], remedies[-1]) == (values, "use fewer pods")


def test_too_few_nodes_are_a_lack_of_room(fake_server: Client) -> None:
    """Nodes that were listed and do not suffice lack room; a list without any node does not show that."""
    requirement = build_requirement(gpus="16")
    checks = [check_capacity(fake_server, requirement, "x", nodes) for nodes in ([build_node()], [])]
    assert [(check.verdict, check.lacks_room) for check in checks] == [("failed", True), ("failed", False)]


def build_fabric_requirement(**amounts: str) -> Capacity:
    """A requirement whose fabric has the device plugin `app=sriovdp`; `rdma_vf="1"` requests 1 of rdma/vf."""
    resources = {name.replace("_", "/"): amount for name, amount in amounts.items()}
    return build_requirement().model_copy(update={"resources": resources, "device_plugin": "app=sriovdp"})


def test_device_plugin_is_found_in_any_namespace(fake_api: FakeApi, fake_server: Client) -> None:
    """The device plugin of a missing resource is found in another namespace than the job's."""
    status = {"desiredNumberScheduled": 2, "numberReady": 1}
    metadata = {"name": "sriov", "labels": {"app": "sriovdp"}}
    fake_api.put({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata, "status": status}, "kube-system")
    requirement = build_fabric_requirement(rdma_vf="1")
    detail = "no node offers rdma/vf: its device plugin kube-system/sriov has 1 of 2 pods ready"
    assert check_capacity(fake_server, requirement, "x", [build_node()]).what.endswith(f"; {detail}")


def test_device_plugin_of_the_fabric_does_not_offer_other_resources(fake_server: Client) -> None:
    """Processors, memory and GPUs that no node has are not blamed on the fabric's device plugin."""
    requirement = build_fabric_requirement(amd_gpu="1", hugepages="1Gi", rdma_vf="1")
    check = check_capacity(fake_server, requirement, "x", [build_node()])
    assert "no node offers rdma/vf: no namespace has a DaemonSet with the label app=sriovdp" in check.what
