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

    reason: str
    remedy: str
    elsewhere: bool = False


def check_capacity(
    client: Client, requirement: Capacity, name: str, listed_nodes: list[ClusterNode] | None = None
) -> Check:
    """Count the gang's pods that fit; report what the others lack. `listed_nodes`: all nodes, if already listed."""
    nodes = client.list("v1", "Node", everywhere=True) if listed_nodes is None else listed_nodes
    fitting = {node["metadata"]["name"]: pods for node in nodes if (pods := _count_pods(node, requirement))}
    pods = sum(fitting.values())
    if pods >= requirement.pods:
        return passed_check(name, f"{pods} fit on {len(fitting)} of {_format_count(len(nodes), 'node')}")
    mismatches = {
        node["metadata"]["name"]: mismatch for node in nodes if (mismatch := _find_mismatch(node, requirement))
    }
    plugin_details = _check_device_plugin(client, requirement, nodes)
    suffix = (
        ", one per node (on the host's network its port is the node's)"
        if requirement.uses_host_ports
        else ", one per node" * requirement.one_per_node
    )
    title = f"{requirement.pods} needed{suffix}, {pods} {'fits' if pods == 1 else 'fit'}"
    detail = "; ".join((title, *_group_mismatches(mismatches), *plugin_details)) if nodes else "the cluster has no node"
    return failed_check(name, detail, "; or ".join((*_list_remedies(mismatches), *_list_alternatives(requirement))))


def _list_alternatives(requirement: Capacity) -> list[str]:
    """What to request instead."""
    alternatives = (
        ["leave the host's network (`pod.host_network: false`): then pods can share a node"]
        if requirement.uses_host_ports
        else []
    )
    return [*alternatives, "ask for fewer `nodes`"]


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# --- one node


def _count_pods(node: ClusterNode, requirement: Capacity) -> int:
    """How many pods the node could hold if it were empty."""
    if _find_mismatch(node, requirement):
        return 0
    counts = [
        int(_get_node_quantity(node, name) // parse_decimal_quantity(amount))
        for name, amount in requirement.resources.items()
        if parse_decimal_quantity(amount)
    ]
    return 1 if requirement.one_per_node else min(counts, default=requirement.pods)


def _find_mismatch(node: ClusterNode, requirement: Capacity) -> NodeMismatch | None:
    """The first thing that keeps every pod off a node."""
    spec = node.get("spec", {})
    if label_mismatch := _find_label_mismatch(node["metadata"].get("labels", {}), requirement):
        return label_mismatch
    if spec.get("unschedulable"):
        return NodeMismatch("cordoned", f"`kubectl uncordon {_NODES_PLACEHOLDER}`")
    if not _is_node_ready(node):
        return NodeMismatch("not Ready", f"`kubectl describe node {_NODES_PLACEHOLDER}`")
    for taint in () if "" in requirement.tolerations else spec.get("taints", ()):  # an empty key tolerates every taint
        if taint["effect"] in ("NoSchedule", "NoExecute") and taint["key"] not in requirement.tolerations:
            return NodeMismatch(f"taint {taint['key']}", _describe_taint_remedy(taint["key"]))
    shortages = (_find_shortage(node, name, amount) for name, amount in requirement.resources.items())
    return next((shortage for shortage in shortages if shortage), None)


def _find_label_mismatch(labels: Mapping[str, str], requirement: Capacity) -> NodeMismatch | None:
    """The first label that keeps every pod off a node."""
    for key, value in requirement.labels.items():
        if labels.get(key) != value:
            return NodeMismatch(
                f"no label {key}={value}", f"`kubectl get nodes -L {key}` shows what exists", elsewhere=True
            )
    for key, values in requirement.only.items():
        if values and labels.get(key) not in values:
            return NodeMismatch(
                f"label {key} is none of {', '.join(values)}", f"`kubectl get nodes -L {key}` shows what exists", True
            )
    for key, values in requirement.avoid.items():
        if labels.get(key) in values:
            return NodeMismatch(
                f"label {key}={labels[key]}, which must be avoided", f"`kubectl describe node {_NODES_PLACEHOLDER}`"
            )
    return None


def _describe_taint_remedy(key: str) -> str:
    """The remedy for a taint; one that Kubernetes itself sets is a fault of the node, not to be tolerated."""
    is_kubernetes_taint = key.startswith("node.kubernetes.io/")
    return f"`kubectl describe node {_NODES_PLACEHOLDER}`" if is_kubernetes_taint else f"add {key} to `pod.tolerations`"


def _is_node_ready(node: ClusterNode) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _get_node_quantity(node: ClusterNode, name: str, field: str = "allocatable") -> Decimal:
    return parse_decimal_quantity(node.get("status", {}).get(field, {}).get(name, "0"))


def _find_shortage(node: ClusterNode, name: str, amount: str) -> NodeMismatch | None:
    """The mismatch if the node has too little of a resource; devices that it used to have are reported as lost."""
    usable, capacity = _get_node_quantity(node, name), _get_node_quantity(node, name, "capacity")
    if usable >= parse_decimal_quantity(amount):
        return None
    text = node.get("status", {}).get("allocatable", {}).get(name)
    if _is_extended_resource(name) and capacity >= parse_decimal_quantity(amount):
        detail = f"{name} {text or 0} of {capacity} usable, its devices are lost or unhealthy"
        return NodeMismatch(detail, f"`kubectl describe node {_NODES_PLACEHOLDER}`")
    return NodeMismatch(f"{name} {text} < {amount}" if text else f"no {name}", f"ask for less {name}")


def _is_extended_resource(name: str) -> bool:
    """Whether a device plugin offers the resource."""
    return "/" in name


# --- all nodes


def _group_mismatches(mismatches: dict[str, NodeMismatch]) -> list[str]:
    """`3 nodes: no label a=b`, for each thing that nodes lack; the most frequent first."""
    counts = Counter(mismatch.reason for mismatch in mismatches.values())
    return [f"{_format_count(count, 'node')}: {reason}" for reason, count in counts.most_common()]


def _list_remedies(mismatches: dict[str, NodeMismatch]) -> list[str]:
    """What to do about the nodes of the right kind; if there are none, how to see which kinds exist."""
    relevant = {name: mismatch for name, mismatch in mismatches.items() if not mismatch.elsewhere} or mismatches
    remedies = dict.fromkeys(mismatch.remedy for mismatch in relevant.values())
    return [
        _insert_node_names(remedy, [name for name, mismatch in relevant.items() if mismatch.remedy == remedy])
        for remedy in remedies
    ]


def _insert_node_names(remedy: str, nodes: list[str]) -> str:
    """The remedy for some nodes: three of them are named, so that it stays one line."""
    if _NODES_PLACEHOLDER not in remedy:
        return remedy
    suffix = f", and {len(nodes) - _MAX_NAMED_NODES} more" if len(nodes) > _MAX_NAMED_NODES else ""
    return remedy.replace(_NODES_PLACEHOLDER, " ".join(nodes[:_MAX_NAMED_NODES])) + suffix


def _check_device_plugin(client: Client, requirement: Capacity, nodes: list[ClusterNode]) -> list[str]:
    """A sentence about the device plugin, if no node of the right kind offers its resource."""
    relevant_nodes = [
        node for node in nodes if requirement.labels.items() <= node["metadata"].get("labels", {}).items()
    ] or nodes
    missing = [
        name
        for name in requirement.resources
        if _is_fabric_device(name) and not any(_get_node_quantity(node, name) for node in relevant_nodes)
    ]
    if not missing or not requirement.device_plugin:
        return []
    message = f"nothing offers {', '.join(missing)}"
    try:
        daemon_sets = client.list("apps/v1", "DaemonSet", {"labelSelector": requirement.device_plugin}, everywhere=True)
    except ClusterError as error:
        return [f"{message}, and its device plugin cannot be checked: {error.message}"]
    if not daemon_sets:
        return [
            f"{message}: no namespace has a DaemonSet with the label {requirement.device_plugin}, its device plugin"
        ]
    return [f"{message}: {_describe_plugin(daemon_set)}" for daemon_set in daemon_sets]


def _is_fabric_device(name: str) -> bool:
    """Whether the fabric's device plugin offers the resource: GPUs have one of their own."""
    return _is_extended_resource(name) and not name.endswith("/gpu")


def _describe_plugin(daemon_set: dict[str, Any]) -> str:
    """How many pods of a device plugin are ready."""
    metadata = daemon_set["metadata"]
    status = daemon_set.get("status", {})
    expected = _format_count(status.get("desiredNumberScheduled", 0), "pod")
    ready = status.get("numberReady", 0)
    return f"its device plugin {metadata['namespace']}/{metadata['name']} has {ready} of {expected} ready"
