"""Checks that the pods fit on the nodes, by what each node can allocate in total, not by what is free right now."""

from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from enum import Enum, auto
from typing import Any, NamedTuple

from torchyard.kube.client import Client, parse_decimal_quantity
from torchyard.model.errors import ClusterError
from torchyard.model.finding import Finding, passed_check
from torchyard.model.pod import read_toleration
from torchyard.model.requirements import Capacity

ClusterNode = dict[str, Any]
_NODES_PLACEHOLDER = "{nodes}"  # in a remedy: replaced by the names of its nodes
_DESCRIBE_NODES = f"`kubectl describe node {_NODES_PLACEHOLDER}`"
_MAX_NAMED_NODES = 3


class MismatchKind(Enum):
    """What keeps pods off a node."""

    LABEL = auto()  # the node does not have the labels that the job needs: it is of another kind
    TAINT = auto()  # that the pods may tolerate
    SHORTAGE = auto()  # it is too small
    FAULT = auto()  # cordoned, not ready, or its devices are lost


class NodeMismatch(NamedTuple):
    """Why no pod fits on a node."""

    reason: str
    remedy: str
    kind: MismatchKind


def check_capacity(
    client: Client, requirement: Capacity, name: str, listed_nodes: list[ClusterNode] | None = None
) -> Finding:
    """Count the gang's pods that fit, and report why the other nodes hold none.

    `listed_nodes`: all nodes, if already listed. Raises ClusterError if nodes may not be listed.
    """
    nodes = client.list("v1", "Node", everywhere=True) if listed_nodes is None else listed_nodes
    pod_count = 0
    mismatches: dict[str, NodeMismatch] = {}
    for node in nodes:
        mismatch = find_mismatch(node, requirement)
        if mismatch:
            mismatches[node["metadata"]["name"]] = mismatch
        else:
            pod_count += count_pods(node, requirement)
    if pod_count >= requirement.pods:
        fitting_nodes = len(nodes) - len(mismatches)
        return passed_check(name, f"{pod_count} fit on {fitting_nodes} of {_format_count(len(nodes), 'node')}")

    plugin_details = _check_device_plugin(client, requirement, nodes)
    remedies = "; or ".join(list_remedies(mismatches) + _list_alternatives(requirement))
    needed = _describe_needed_room(requirement)
    details = [f"needs {needed}, found room for {pod_count}", *_group_mismatches(mismatches), *plugin_details]
    detail = "; ".join(details) if nodes else "the cluster has no node"
    kinds = {mismatch.kind for mismatch in _select_right_kind(mismatches).values()}
    is_tainted = MismatchKind.TAINT in kinds and MismatchKind.SHORTAGE not in kinds
    check = Finding(name, detail, remedies, lacks_room=bool(nodes), lacks_toleration=is_tainted)
    position = requirement.manifest.position if requirement.manifest else None
    return check.at(position) if position else check


def _describe_needed_room(requirement: Capacity) -> str:
    room = f"room for {_format_count(requirement.pods, 'pod')}"
    if requirement.uses_host_ports:
        return f"{room}, one per node (on the host's network its port is the node's)"
    if requirement.one_per_node:
        return f"{room}, one per node"
    return room


def _list_alternatives(requirement: Capacity) -> list[str]:
    """What to request instead."""
    alternatives = []
    if requirement.uses_host_ports:
        key = _name_pod_key(requirement, "pod.host_network", "hostNetwork")
        alternatives.append(f"leave the host's network (`{key}: false`): then pods can share a node")
    if requirement.manifest is None:
        alternatives.append("use fewer `nodes`")
    elif requirement.manifest.pod_count:
        alternatives.append(f"use fewer pods (`{requirement.manifest.pod_count}`)")
    else:
        alternatives.append("use fewer pods")
    return alternatives


def _name_pod_key(requirement: Capacity, profile_key: str, field: str) -> str:
    """The profile's key of a setting, or its field in the spec of the manifest's pods."""
    return f"{requirement.manifest.pod_spec}.{field}" if requirement.manifest else profile_key


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# --- one node


def count_pods(node: ClusterNode, requirement: Capacity) -> int:
    """How many pods a node without a mismatch could hold if it were empty."""
    if requirement.one_per_node:
        return 1
    counts = []
    for name, amount in requirement.resources.items():
        requested = parse_decimal_quantity(amount)
        if requested:
            counts.append(int(_get_node_quantity(node, name) // requested))
    return min(counts, default=requirement.pods)


def find_mismatch(node: ClusterNode, requirement: Capacity) -> NodeMismatch | None:
    """The first reason why no pod fits on a node, however empty it is; None if a pod fits."""
    spec = node.get("spec", {})
    label_mismatch = _find_label_mismatch(node["metadata"].get("labels", {}), requirement)
    if label_mismatch:
        return label_mismatch
    if spec.get("unschedulable"):
        return NodeMismatch("cordoned", f"`kubectl uncordon {_NODES_PLACEHOLDER}`", MismatchKind.FAULT)
    if not _is_node_ready(node):
        return NodeMismatch("not Ready", _DESCRIBE_NODES, MismatchKind.FAULT)
    for taint in spec.get("taints", ()):
        if taint["effect"] in ("NoSchedule", "NoExecute") and not _is_tolerated(taint, requirement):
            return _explain_taint(taint["key"], requirement)
    for name in requirement.resources:
        shortage = _find_shortage(node, name, requirement)
        if shortage:
            return shortage
    return None


def _is_tolerated(taint: Mapping[str, str], requirement: Capacity) -> bool:
    """Whether the pods tolerate a taint, at least for some seconds."""
    for item in requirement.tolerations:
        if read_toleration(item).tolerates(taint["key"], taint.get("value", ""), taint["effect"]):
            return True
    return False


def _find_label_mismatch(labels: Mapping[str, str], requirement: Capacity) -> NodeMismatch | None:
    """The first label because of which no pod may run on a node; None if its labels match."""
    for key, value in requirement.labels.items():
        if labels.get(key) != value:
            remedy = _describe_label_remedy(key, requirement, "nodeSelector")
            return NodeMismatch(f"no label {key}={value}", remedy, MismatchKind.LABEL)
    for key, values in requirement.only.items():
        if values and labels.get(key) not in values:
            remedy = _describe_label_remedy(key, requirement, "affinity")
            return NodeMismatch(f"label {key} is not one of {', '.join(values)}", remedy, MismatchKind.LABEL)
    for key, values in requirement.avoid.items():
        if labels.get(key) in values:
            reason = f"label {key}={labels[key]}, which must be avoided"
            return NodeMismatch(reason, _DESCRIBE_NODES, MismatchKind.FAULT)
    return None


def _describe_label_remedy(key: str, requirement: Capacity, field: str) -> str:
    """The remedy for a label that nodes lack. In a profile its value may be that of the hardware file."""
    remedy = f"`kubectl get nodes -L {key}` lists the existing values"
    return f"{remedy}, for `{requirement.manifest.pod_spec}.{field}`" if requirement.manifest else remedy


def _explain_taint(key: str, requirement: Capacity) -> NodeMismatch:
    """The mismatch of a taint. One that Kubernetes sets reports a fault of the node, and must not be tolerated."""
    reason = f"taint {key}"
    if key.startswith("node.kubernetes.io/"):
        return NodeMismatch(reason, _DESCRIBE_NODES, MismatchKind.FAULT)
    remedy = f"add {key} to `{_name_pod_key(requirement, 'pod.tolerations', 'tolerations')}`"
    return NodeMismatch(reason, remedy, MismatchKind.TAINT)


def _is_node_ready(node: ClusterNode) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _get_node_quantity(node: ClusterNode, name: str, field: str = "allocatable") -> Decimal:
    return parse_decimal_quantity(node.get("status", {}).get(field, {}).get(name, "0"))


def _find_shortage(node: ClusterNode, name: str, requirement: Capacity) -> NodeMismatch | None:
    """The mismatch of a node that has too little of a resource; None if it has enough.

    Devices that count in the capacity and not in the allocatable amount are reported as lost.
    """
    amount = requirement.resources[name]
    requested = parse_decimal_quantity(amount)
    if _get_node_quantity(node, name) >= requested:
        return None
    allocatable_text = node.get("status", {}).get("allocatable", {}).get(name)
    capacity = _get_node_quantity(node, name, "capacity")
    if _is_extended_resource(name) and capacity >= requested:
        detail = f"{name} {allocatable_text or 0} of {capacity} usable, its devices are lost or unhealthy"
        return NodeMismatch(detail, _DESCRIBE_NODES, MismatchKind.FAULT)
    remedy = f"ask for less {name}"
    if requirement.manifest:
        remedy += f" (`{requirement.manifest.container}.resources`)"
    if not allocatable_text:
        return NodeMismatch(f"no {name}", remedy, MismatchKind.SHORTAGE)
    return NodeMismatch(f"{name} {allocatable_text} < {amount}", remedy, MismatchKind.SHORTAGE)


def _is_extended_resource(name: str) -> bool:
    """Whether a device plugin offers the resource."""
    return "/" in name


# --- all nodes


def _group_mismatches(mismatches: dict[str, NodeMismatch]) -> list[str]:
    """`3 nodes: no label a=b`, for each reason why nodes do not fit; the most frequent first."""
    counts = Counter(mismatch.reason for mismatch in mismatches.values())
    return [f"{_format_count(count, 'node')}: {reason}" for reason, count in counts.most_common()]


def list_remedies(mismatches: dict[str, NodeMismatch]) -> list[str]:
    """The remedies for the nodes of the right kind; if there are none, those that list which kinds exist."""
    nodes_by_remedy: dict[str, list[str]] = {}
    for name, mismatch in _select_right_kind(mismatches).items():
        nodes_by_remedy.setdefault(mismatch.remedy, []).append(name)
    return [_insert_node_names(remedy, nodes) for remedy, nodes in nodes_by_remedy.items()]


def _select_right_kind(mismatches: dict[str, NodeMismatch]) -> dict[str, NodeMismatch]:
    """The mismatches of the nodes that have the job's labels; those of all nodes if none has them."""
    right_kind = {name: mismatch for name, mismatch in mismatches.items() if mismatch.kind is not MismatchKind.LABEL}
    return right_kind or mismatches


def _insert_node_names(remedy: str, nodes: list[str]) -> str:
    """The remedy with the names of its nodes, at most `_MAX_NAMED_NODES` of them, so that it stays one line."""
    if _NODES_PLACEHOLDER not in remedy:
        return remedy
    suffix = f", and {len(nodes) - _MAX_NAMED_NODES} more" if len(nodes) > _MAX_NAMED_NODES else ""
    return remedy.replace(_NODES_PLACEHOLDER, " ".join(nodes[:_MAX_NAMED_NODES])) + suffix


def _check_device_plugin(client: Client, requirement: Capacity, nodes: list[ClusterNode]) -> list[str]:
    """What is wrong with the fabric's device plugin, if no node of the right kind offers its resource; else empty."""
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
    message = f"no node offers {', '.join(missing)}"
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
