"""Do the pods fit? Counts what each node can allocate in total, not what is free right now."""

from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from torchyard.kube.client import Client, parse_decimal_quantity
from torchyard.model.errors import ClusterError
from torchyard.model.requirements import Capacity, Check, failed_check, passed_check

ClusterNode = dict[str, Any]
_NODES_PLACEHOLDER = "{nodes}"  # in a remedy: the nodes that it is about
_MAX_NAMED_NODES = 3


class NodeMismatch(NamedTuple):
    """Why no pod fits on a node; `elsewhere`: the node is not of the kind that the job needs."""

    why: str
    remedy: str
    elsewhere: bool = False


def check_capacity(api: Client, need: Capacity, name: str, known: list[ClusterNode] | None = None) -> Check:
    """Count the pods of the gang that fit; say what the other nodes lack. `known`: the nodes, if already listed."""
    nodes = api.list("v1", "Node", everywhere=True) if known is None else known
    fitting = {node["metadata"]["name"]: pods for node in nodes if (pods := _count_pods(node, need))}
    pods = sum(fitting.values())
    if pods >= need.pods:
        return passed_check(name, f"{pods} fit on {len(fitting)} of {_format_count(len(nodes), 'node')}")
    lacks = {node["metadata"]["name"]: lack for node in nodes if (lack := _find_mismatch(node, need))}
    plugin = _check_device_plugin(api, need, nodes)
    one = (
        ", one per node (on the host's network its port is the node's)"
        if need.uses_host_ports
        else ", one per node" * need.one_per_node
    )
    head = f"{need.pods} needed{one}, {pods} {'fits' if pods == 1 else 'fit'}"
    detail = "; ".join((head, *_group_mismatches(lacks), *plugin)) if nodes else "the cluster has no node"
    return failed_check(name, detail, "; or ".join((*_list_remedies(lacks), *_list_alternatives(need))))


def _list_alternatives(need: Capacity) -> list[str]:
    """What to request instead."""
    share = (
        ["leave the host's network (`pod.host_network: false`): then pods can share a node"]
        if need.uses_host_ports
        else []
    )
    return [*share, "ask for fewer `nodes`"]


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# --- one node


def _count_pods(node: ClusterNode, need: Capacity) -> int:
    """How many pods the node could hold if it were empty."""
    if _find_mismatch(node, need):
        return 0
    counts = [
        int(_node_quantity(node, name) // parse_decimal_quantity(amount))
        for name, amount in need.resources.items()
        if parse_decimal_quantity(amount)
    ]
    return 1 if need.one_per_node else min(counts, default=need.pods)


def _find_mismatch(node: ClusterNode, need: Capacity) -> NodeMismatch | None:
    """The first thing that keeps every pod off a node."""
    spec = node.get("spec", {})
    if found := _find_label_mismatch(node["metadata"].get("labels", {}), need):
        return found
    if spec.get("unschedulable"):
        return NodeMismatch("cordoned", f"`kubectl uncordon {_NODES_PLACEHOLDER}`")
    if not _is_node_ready(node):
        return NodeMismatch("not Ready", f"`kubectl describe node {_NODES_PLACEHOLDER}`")
    for taint in () if "" in need.tolerations else spec.get("taints", ()):  # an empty key tolerates every taint
        if taint["effect"] in ("NoSchedule", "NoExecute") and taint["key"] not in need.tolerations:
            return NodeMismatch(f"taint {taint['key']}", _taint_remedy(taint["key"]))
    short = (_find_shortage(node, name, amount) for name, amount in need.resources.items())
    return next((lack for lack in short if lack), None)


def _find_label_mismatch(labels: Mapping[str, str], need: Capacity) -> NodeMismatch | None:
    """The first label that keeps every pod off a node."""
    for key, value in need.labels.items():
        if labels.get(key) != value:
            return NodeMismatch(
                f"no label {key}={value}", f"`kubectl get nodes -L {key}` shows what exists", elsewhere=True
            )
    for key, values in need.only.items():
        if values and labels.get(key) not in values:
            return NodeMismatch(
                f"label {key} is none of {', '.join(values)}", f"`kubectl get nodes -L {key}` shows what exists", True
            )
    for key, values in need.avoid.items():
        if labels.get(key) in values:
            return NodeMismatch(
                f"label {key}={labels[key]}, which must be avoided", f"`kubectl describe node {_NODES_PLACEHOLDER}`"
            )
    return None


def _taint_remedy(key: str) -> str:
    """The remedy for a taint; one that Kubernetes itself sets is a fault of the node, not to be tolerated."""
    own = key.startswith("node.kubernetes.io/")
    return f"`kubectl describe node {_NODES_PLACEHOLDER}`" if own else f"add {key} to `pod.tolerations`"


def _is_node_ready(node: ClusterNode) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _node_quantity(node: ClusterNode, name: str, of: str = "allocatable") -> Decimal:
    return parse_decimal_quantity(node.get("status", {}).get(of, {}).get(name, "0"))


def _find_shortage(node: ClusterNode, name: str, amount: str) -> NodeMismatch | None:
    """The mismatch if the node has too little of a resource; devices that it used to have are reported as lost."""
    usable, whole = _node_quantity(node, name), _node_quantity(node, name, "capacity")
    if usable >= parse_decimal_quantity(amount):
        return None
    text = node.get("status", {}).get("allocatable", {}).get(name)
    if _is_extended_resource(name) and whole >= parse_decimal_quantity(amount):
        detail = f"{name} {text or 0} of {whole} usable, its devices are lost or unhealthy"
        return NodeMismatch(detail, f"`kubectl describe node {_NODES_PLACEHOLDER}`")
    return NodeMismatch(f"{name} {text} < {amount}" if text else f"no {name}", f"ask for less {name}")


def _is_extended_resource(name: str) -> bool:
    """Whether a device plugin offers the resource."""
    return "/" in name


# --- all nodes


def _group_mismatches(lacks: dict[str, NodeMismatch]) -> list[str]:
    """`3 nodes: no label a=b`, for each thing that nodes lack; the most frequent first."""
    counts = Counter(lack.why for lack in lacks.values())
    return [f"{_format_count(count, 'node')}: {why}" for why, count in counts.most_common()]


def _list_remedies(lacks: dict[str, NodeMismatch]) -> list[str]:
    """What to do about the nodes of the right kind; if there are none, how to see which kinds exist."""
    meant = {name: lack for name, lack in lacks.items() if not lack.elsewhere} or lacks
    found = dict.fromkeys(lack.remedy for lack in meant.values())
    return [_name_nodes(each, [name for name, lack in meant.items() if lack.remedy == each]) for each in found]


def _name_nodes(remedy: str, nodes: list[str]) -> str:
    """The remedy for some nodes: three of them are named, so that it stays one line."""
    if _NODES_PLACEHOLDER not in remedy:
        return remedy
    more = f", and {len(nodes) - _MAX_NAMED_NODES} more" if len(nodes) > _MAX_NAMED_NODES else ""
    return remedy.replace(_NODES_PLACEHOLDER, " ".join(nodes[:_MAX_NAMED_NODES])) + more


def _check_device_plugin(api: Client, need: Capacity, nodes: list[ClusterNode]) -> list[str]:
    """A sentence about the device plugin, if no node of the right kind offers its resource."""
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
        found = api.list("apps/v1", "DaemonSet", {"labelSelector": need.device_plugin}, everywhere=True)
    except ClusterError as error:
        return [f"{what}, and its device plugin cannot be checked: {error.message}"]
    if not found:
        return [f"{what}: no namespace has a DaemonSet with the label {need.device_plugin}, its device plugin"]
    return [f"{what}: {_describe_plugin(each)}" for each in found]


def _is_fabric_device(name: str) -> bool:
    """Whether the fabric's device plugin offers the resource: GPUs have one of their own."""
    return _is_extended_resource(name) and not name.endswith("/gpu")


def _describe_plugin(daemons: dict[str, Any]) -> str:
    """How many pods of a device plugin are ready."""
    meta, status = daemons["metadata"], daemons.get("status", {})
    wanted, up = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
    return f"its device plugin {meta['namespace']}/{meta['name']} has {up} of {_format_count(wanted, 'pod')} ready"
