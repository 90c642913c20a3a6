"""Do the pods fit? Counted by what each node can allocate at all, not by what is free just now."""

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, NamedTuple

from torchyard.kube.client import Client, decimal_quantity
from torchyard.model.errors import ClusterError
from torchyard.model.requirements import Capacity, Check, failed_check, passed_check

ClusterNode = dict[str, Any]
_NODES_PLACEHOLDER = "{nodes}"  # in a remedy: the nodes that it is about


class NodeMismatch(NamedTuple):
    """Why no pod fits on a node; `elsewhere`: it is not a node of this kind."""

    why: str
    remedy: str
    elsewhere: bool = False


def check_capacity(api: Client, need: Capacity, name: str, known: list[ClusterNode] | None = None) -> Check:
    """How many pods of the gang fit, and what the other nodes lack. `known`: the nodes, if they are known already."""
    nodes = api.items("v1", "Node", everywhere=True) if known is None else known
    fitting = {node["metadata"]["name"]: pods for node in nodes if (pods := _count_pods(node, need))}
    pods = sum(fitting.values())
    if pods >= need.pods:
        return passed_check(name, f"{pods} fit on {len(fitting)} of {_format_count(len(nodes), 'node')}")
    lacks = {node["metadata"]["name"]: lack for node in nodes if (lack := _find_mismatch(node, need))}
    plugin = _check_device_plugin(api, need, nodes)
    one = (
        ", one a node (its port is the node's, under the host's network)" if need.port else ", one a node" * need.alone
    )
    head = f"{need.pods} needed{one}, {pods} {'fits' if pods == 1 else 'fit'}"
    detail = "; ".join((head, *_group_mismatches(lacks), *plugin)) if nodes else "the cluster has no node"
    return failed_check(name, detail, "; or ".join((*_list_remedies(lacks), *_list_alternatives(need))))


def _list_alternatives(need: Capacity) -> list[str]:
    """What to ask for instead."""
    share = ["leave the host's network (`pod.host_network: false`): then pods can share a node"] if need.port else []
    return [*share, "ask for fewer `nodes`"]


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# --- one node


def _count_pods(node: ClusterNode, need: Capacity) -> int:
    """How many pods the node could hold if it were empty."""
    if _find_mismatch(node, need):
        return 0
    counts = [
        int(_node_quantity(node, name) // decimal_quantity(amount))
        for name, amount in need.resources.items()
        if decimal_quantity(amount)
    ]
    return 1 if need.alone else min(counts, default=need.pods)


def _find_mismatch(node: ClusterNode, need: Capacity) -> NodeMismatch | None:
    """The first thing that keeps every pod off a node."""
    labels, spec = node["metadata"].get("labels", {}), node.get("spec", {})
    for key, value in need.labels.items():
        if labels.get(key) != value:
            return NodeMismatch(
                f"no label {key}={value}", f"`kubectl get nodes -L {key}` shows what there is", elsewhere=True
            )
    for key, values in need.avoid.items():
        if labels.get(key) in values:
            return NodeMismatch(
                f"label {key}={labels[key]}, which is to be avoided", f"`kubectl describe node {_NODES_PLACEHOLDER}`"
            )
    if spec.get("unschedulable"):
        return NodeMismatch("cordoned", f"`kubectl uncordon {_NODES_PLACEHOLDER}`")
    if not _is_node_ready(node):
        return NodeMismatch("not Ready", f"`kubectl describe node {_NODES_PLACEHOLDER}`")
    for taint in () if "" in need.tolerations else spec.get("taints", ()):  # no key tolerates every taint
        if taint["effect"] in ("NoSchedule", "NoExecute") and taint["key"] not in need.tolerations:
            return NodeMismatch(f"taint {taint['key']}", _taint_remedy(taint["key"]))
    short = (_find_shortage(node, name, amount) for name, amount in need.resources.items())
    return next((lack for lack in short if lack), None)


def _taint_remedy(key: str) -> str:
    """What Kubernetes itself taints a node with is a fault of the node, not to be tolerated."""
    own = key.startswith("node.kubernetes.io/")
    return f"`kubectl describe node {_NODES_PLACEHOLDER}`" if own else f"add {key} to `pod.tolerations`"


def _is_node_ready(node: ClusterNode) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _node_quantity(node: ClusterNode, name: str, of: str = "allocatable") -> Decimal:
    return decimal_quantity(node.get("status", {}).get(of, {}).get(name, "0"))


def _find_shortage(node: ClusterNode, name: str, amount: str) -> NodeMismatch | None:
    """A resource that the node has too little of; devices that it had are told as lost."""
    usable, whole = _node_quantity(node, name), _node_quantity(node, name, "capacity")
    if usable >= decimal_quantity(amount):
        return None
    text = node.get("status", {}).get("allocatable", {}).get(name)
    if _is_extended_resource(name) and whole >= decimal_quantity(amount):
        detail = f"{name} {text or 0} of {whole} usable, its devices are lost or unhealthy"
        return NodeMismatch(detail, f"`kubectl describe node {_NODES_PLACEHOLDER}`")
    return NodeMismatch(f"{name} {text} < {amount}" if text else f"no {name}", f"ask for less {name}")


def _is_extended_resource(name: str) -> bool:
    """Whether a device plugin offers the resource."""
    return "/" in name


# --- all nodes


def _group_mismatches(lacks: dict[str, NodeMismatch]) -> list[str]:
    """`3 nodes: no label a=b`, for each thing that nodes lack; what the most lack comes first."""
    counts = Counter(lack.why for lack in lacks.values())
    return [f"{_format_count(count, 'node')}: {why}" for why, count in counts.most_common()]


def _list_remedies(lacks: dict[str, NodeMismatch]) -> list[str]:
    """What to do for the nodes that are meant; where none is, how to see what there is."""
    meant = {name: lack for name, lack in lacks.items() if not lack.elsewhere} or lacks
    found = dict.fromkeys(lack.remedy for lack in meant.values())
    return [each.replace(_NODES_PLACEHOLDER, " ".join(_select_nodes(meant, each))) for each in found]


def _select_nodes(lacks: dict[str, NodeMismatch], remedy: str) -> Iterable[str]:
    return [name for name, lack in lacks.items() if lack.remedy == remedy]


def _check_device_plugin(api: Client, need: Capacity, nodes: list[ClusterNode]) -> list[str]:
    """A sentence about the device plugin whose resource no node of the kind offers."""
    meant = [node for node in nodes if need.labels.items() <= node["metadata"].get("labels", {}).items()] or nodes
    absent = [
        name
        for name in need.resources
        if _is_fabric_device(name) and not any(_node_quantity(node, name) for node in meant)
    ]
    if not absent or not need.device_plugin:
        return []
    what = f"nothing offers {', '.join(absent)}"
    try:
        found = api.items("apps/v1", "DaemonSet", {"labelSelector": need.device_plugin}, everywhere=True)
    except ClusterError as error:
        return [f"{what}, and its device plugin cannot be looked for: {error.said}"]
    if not found:
        return [f"{what}: no namespace has a DaemonSet with the label {need.device_plugin}, its device plugin"]
    return [f"{what}: {_describe_plugin(each)}" for each in found]


def _is_fabric_device(name: str) -> bool:
    """Whether the fabric's device plugin offers the resource: GPUs have one of their own."""
    return _is_extended_resource(name) and not name.endswith("/gpu")


def _describe_plugin(daemons: dict[str, Any]) -> str:
    """How the pods of a device plugin are."""
    meta, status = daemons["metadata"], daemons.get("status", {})
    wanted, up = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
    return f"its device plugin {meta['namespace']}/{meta['name']} has {up} of {_format_count(wanted, 'pod')} ready"
