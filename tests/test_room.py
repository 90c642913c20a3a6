"""How nodes are counted, without a cluster."""

from typing import Any

from torchyard.cluster.checks.capacity import ClusterNode, _count_pods, _find_mismatch
from torchyard.model.requirements import Capacity

GPU = "nvidia.com/gpu"


def node(ready: str = "True", **spec: Any) -> ClusterNode:
    """A node of eight GPUs and 128 processors."""
    amounts = {"cpu": "127500m", "memory": "2113Gi", GPU: "8"}
    status = {"allocatable": amounts, "capacity": amounts, "conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"name": "a"}, "spec": spec, "status": status}


def room(alone: bool = False, tolerations: tuple[str, ...] = (), **resources: str) -> Capacity:
    asked = {GPU if name == "gpus" else name: amount for name, amount in resources.items()}
    return Capacity(pods=2, labels={}, tolerations=tolerations, resources=asked, alone=alone)


def why(found: ClusterNode, need: Capacity) -> str:
    lack = _find_mismatch(found, need)
    return lack.why if lack else ""


def test_scarcest_resource_counts() -> None:
    """A node holds as many pods as its scarcest resource allows."""
    assert _count_pods(node(), room(gpus="2", cpu="32", memory="1Gi")) == 3
    assert _count_pods(node(), room(gpus="2", cpu="500m", memory="512Gi")) == 4


def test_pods_that_keep_apart_count_once_a_node() -> None:
    """Where each pod needs a node of its own, room for eight is room for one."""
    assert _count_pods(node(), room(alone=True, gpus="1")) == 1


def test_pods_that_ask_for_nothing_fit() -> None:
    """Without resources one node holds all the pods; an amount of none is none."""
    assert _count_pods(node(), room()) == 2
    assert _count_pods(node(), room(gpus="0")) == 2


def test_short_resource_is_told_with_both_amounts() -> None:
    """What a node has too little of is told as the node says it; what it has not at all by its name."""
    assert why(node(), room(cpu="128")) == "cpu 127500m < 128"
    assert why(node(), Capacity(pods=1, labels={}, tolerations=(), resources={"a/b": "1"}, alone=True)) == "no a/b"


def test_node_that_is_not_ready_holds_nothing() -> None:
    """A node that is lost, or has not said anything yet, holds no pod."""
    assert why(node(ready="Unknown"), room()) == "not Ready"
    assert why({"metadata": {"name": "new"}}, room()) == "not Ready"


def test_toleration_without_a_key_tolerates_every_taint() -> None:
    """No key is what a manifest writes for all taints; a preference is no hindrance."""
    tainted = node(taints=[{"key": "a", "effect": "NoExecute"}])
    assert why(tainted, room()) == "taint a"
    assert why(tainted, room(tolerations=("",))) == ""
    assert why(node(taints=[{"key": "a", "effect": "PreferNoSchedule"}]), room()) == ""


def test_taint_of_kubernetes_itself_is_not_to_be_tolerated() -> None:
    """A node that is short of memory is to be looked at; a taint of its owner is to be tolerated."""
    found = _find_mismatch(node(taints=[{"key": "node.kubernetes.io/memory-pressure", "effect": "NoSchedule"}]), room())
    assert found is not None
    assert "kubectl describe node" in found.remedy
