"""How preflight counts the room on nodes, without a cluster."""

from typing import Any

from torchyard.cluster.checks.capacity import (
    ClusterNode,
    NodeMismatch,
    _count_pods,
    _find_mismatch,
    _list_remedies,
)
from torchyard.model.requirements import Capacity

GPU = "nvidia.com/gpu"


def node(ready: str = "True", **spec: Any) -> ClusterNode:
    """A node of eight GPUs and 128 processors."""
    amounts = {"cpu": "127500m", "memory": "2113Gi", GPU: "8"}
    status = {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"name": "a"}, "spec": spec, "status": status}


def room(one_per_node: bool = False, tolerations: tuple[str, ...] = (), **resources: str) -> Capacity:
    requests = {GPU if name == "gpus" else name: amount for name, amount in resources.items()}
    return Capacity(pods=2, labels={}, tolerations=tolerations, resources=requests, one_per_node=one_per_node)


def why(node: ClusterNode, requirement: Capacity) -> str:
    mismatch = _find_mismatch(node, requirement)
    return mismatch.reason if mismatch else ""


def test_scarcest_resource_counts() -> None:
    """A node holds as many pods as its scarcest resource allows."""
    assert _count_pods(node(), room(gpus="2", cpu="32", memory="1Gi")) == 3
    assert _count_pods(node(), room(gpus="2", cpu="500m", memory="512Gi")) == 4


def test_pods_that_keep_apart_count_once_a_node() -> None:
    """If each pod needs a node of its own, a node with room for eight counts once."""
    assert _count_pods(node(), room(one_per_node=True, gpus="1")) == 1


def test_pods_that_ask_for_nothing_fit() -> None:
    """If pods request no resources, or an amount of 0, one node holds all of them."""
    assert _count_pods(node(), room()) == 2
    assert _count_pods(node(), room(gpus="0")) == 2


def test_short_resource_is_told_with_both_amounts() -> None:
    """A scarce resource is reported with the node's amount and the requested one, a missing one by its name."""
    assert why(node(), room(cpu="128")) == "cpu 127500m < 128"
    assert (
        why(node(), Capacity(pods=1, labels={}, tolerations=(), resources={"a/b": "1"}, one_per_node=True)) == "no a/b"
    )


def test_node_that_is_not_ready_holds_nothing() -> None:
    """A node that is lost, or has not reported yet, holds no pod."""
    assert why(node(ready="Unknown"), room()) == "not Ready"
    assert why({"metadata": {"name": "new"}}, room()) == "not Ready"


def test_toleration_without_a_key_tolerates_every_taint() -> None:
    """A toleration without a key matches all taints, and a PreferNoSchedule taint needs none."""
    tainted = node(taints=[{"key": "a", "effect": "NoExecute"}])
    assert why(tainted, room()) == "taint a"
    assert why(tainted, room(tolerations=("",))) == ""
    assert why(node(taints=[{"key": "a", "effect": "PreferNoSchedule"}]), room()) == ""


def test_taint_of_kubernetes_itself_is_not_to_be_tolerated() -> None:
    """For a taint of Kubernetes itself, such as memory pressure, the remedy is to check the node."""
    mismatch = _find_mismatch(
        node(taints=[{"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"}]), room()
    )
    assert mismatch is not None
    assert "kubectl describe node" in mismatch.remedy


def test_only_nodes_with_one_of_the_values_hold_pods() -> None:
    """A node without the label, or with another value, is none of those that the job may use."""
    requirement = room().model_copy(update={"only": {"kubernetes.io/hostname": ("a", "b"), "none": ()}})
    assert why(node(), requirement) == "label kubernetes.io/hostname is not one of a, b"
    labelled_node = node()
    labelled_node["metadata"]["labels"] = {"kubernetes.io/hostname": "b"}
    assert why(labelled_node, requirement) == ""


def test_remedy_names_three_nodes() -> None:
    """A remedy for many nodes stays one line: it names three of them, and how many more there are."""
    mismatch = NodeMismatch("not Ready", "`kubectl describe node {nodes}`")
    assert _list_remedies({"a": mismatch}) == ["`kubectl describe node a`"]
    (remedy,) = _list_remedies({f"node-{index}": mismatch for index in range(43)})
    assert remedy == "`kubectl describe node node-0 node-1 node-2`, and 40 more"
    assert _list_remedies({name: NodeMismatch("no gpu", "ask for less gpu") for name in "abcd"}) == ["ask for less gpu"]
