"""Do the pods fit? Counted by what each node can allocate at all, not by what is free just now."""

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from typing import Any, NamedTuple

from torchyard.kube.client import Api, quantity
from torchyard.model.errors import ClusterError
from torchyard.model.requirements import Check, Room, failed, ok

Node = dict[str, Any]
NODES = "{nodes}"  # in a remedy: the nodes that it is about


class Lack(NamedTuple):
    """Why no pod fits on a node; `elsewhere`: it is not a node of this kind."""

    why: str
    remedy: str
    elsewhere: bool = False


def check_room(api: Api, need: Room, name: str, known: list[Node] | None = None) -> Check:
    """How many pods of the gang fit, and what the other nodes lack. `known`: the nodes, if they are known already."""
    nodes = api.items("v1", "Node", everywhere=True) if known is None else known
    fitting = {node["metadata"]["name"]: pods for node in nodes if (pods := fit(node, need))}
    pods = sum(fitting.values())
    if pods >= need.pods:
        return ok(name, f"{pods} fit on {len(fitting)} of {plural(len(nodes), 'node')}")
    lacks = {node["metadata"]["name"]: lack for node in nodes if (lack := lacking(node, need))}
    plugin = check_plugin(api, need, nodes)
    one = (
        ", one a node (its port is the node's, under the host's network)" if need.port else ", one a node" * need.alone
    )
    head = f"{need.pods} needed{one}, {pods} {'fits' if pods == 1 else 'fit'}"
    detail = "; ".join((head, *grouped(lacks), *plugin)) if nodes else "the cluster has no node"
    return failed(name, detail, "; or ".join((*remedies(lacks), *ways_out(need))))


def ways_out(need: Room) -> list[str]:
    """What to ask for instead."""
    share = ["leave the host's network (`pod.host_network: false`): then pods can share a node"] if need.port else []
    return [*share, "ask for fewer `nodes`"]


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# --- one node


def fit(node: Node, need: Room) -> int:
    """How many pods the node could hold if it were empty."""
    if lacking(node, need):
        return 0
    counts = [
        int(offered(node, name) // quantity(amount)) for name, amount in need.resources.items() if quantity(amount)
    ]
    return 1 if need.alone else min(counts, default=need.pods)


def lacking(node: Node, need: Room) -> Lack | None:
    """The first thing that keeps every pod off a node."""
    labels, spec = node["metadata"].get("labels", {}), node.get("spec", {})
    for key, value in need.labels.items():
        if labels.get(key) != value:
            return Lack(f"no label {key}={value}", f"`kubectl get nodes -L {key}` shows what there is", elsewhere=True)
    for key, values in need.avoid.items():
        if labels.get(key) in values:
            return Lack(f"label {key}={labels[key]}, which is to be avoided", f"`kubectl describe node {NODES}`")
    if spec.get("unschedulable"):
        return Lack("cordoned", f"`kubectl uncordon {NODES}`")
    if not ready(node):
        return Lack("not Ready", f"`kubectl describe node {NODES}`")
    for taint in () if "" in need.tolerations else spec.get("taints", ()):  # no key tolerates every taint
        if taint["effect"] in ("NoSchedule", "NoExecute") and taint["key"] not in need.tolerations:
            return Lack(f"taint {taint['key']}", taint_remedy(taint["key"]))
    short = (shortage(node, name, amount) for name, amount in need.resources.items())
    return next((lack for lack in short if lack), None)


def taint_remedy(key: str) -> str:
    """What Kubernetes itself taints a node with is a fault of the node, not to be tolerated."""
    own = key.startswith("node.kubernetes.io/")
    return f"`kubectl describe node {NODES}`" if own else f"add {key} to `pod.tolerations`"


def ready(node: Node) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def offered(node: Node, name: str, of: str = "allocatable") -> Decimal:
    return quantity(node.get("status", {}).get(of, {}).get(name, "0"))


def shortage(node: Node, name: str, amount: str) -> Lack | None:
    """A resource that the node has too little of; devices that it had are told as lost."""
    usable, whole = offered(node, name), offered(node, name, "capacity")
    if usable >= quantity(amount):
        return None
    text = node.get("status", {}).get("allocatable", {}).get(name)
    if extended(name) and whole >= quantity(amount):
        detail = f"{name} {text or 0} of {whole} usable, its devices are lost or unhealthy"
        return Lack(detail, f"`kubectl describe node {NODES}`")
    return Lack(f"{name} {text} < {amount}" if text else f"no {name}", f"ask for less {name}")


def extended(name: str) -> bool:
    """Whether a device plugin offers the resource."""
    return "/" in name


# --- all nodes


def grouped(lacks: dict[str, Lack]) -> list[str]:
    """`3 nodes: no label a=b`, for each thing that nodes lack; what the most lack comes first."""
    counts = Counter(lack.why for lack in lacks.values())
    return [f"{plural(count, 'node')}: {why}" for why, count in counts.most_common()]


def remedies(lacks: dict[str, Lack]) -> list[str]:
    """What to do for the nodes that are meant; where none is, how to see what there is."""
    meant = {name: lack for name, lack in lacks.items() if not lack.elsewhere} or lacks
    found = dict.fromkeys(lack.remedy for lack in meant.values())
    return [each.replace(NODES, " ".join(of(meant, each))) for each in found]


def of(lacks: dict[str, Lack], remedy: str) -> Iterable[str]:
    return [name for name, lack in lacks.items() if lack.remedy == remedy]


def check_plugin(api: Api, need: Room, nodes: list[Node]) -> list[str]:
    """A sentence about the device plugin whose resource no node of the kind offers."""
    meant = [node for node in nodes if need.labels.items() <= node["metadata"].get("labels", {}).items()] or nodes
    absent = [name for name in need.resources if devices(name) and not any(offered(node, name) for node in meant)]
    if not absent or not need.device_plugin:
        return []
    what = f"nothing offers {', '.join(absent)}"
    try:
        found = api.items("apps/v1", "DaemonSet", {"labelSelector": need.device_plugin}, everywhere=True)
    except ClusterError as error:
        return [f"{what}, and its device plugin cannot be looked for: {error.said}"]
    if not found:
        return [f"{what}: no namespace has a DaemonSet with the label {need.device_plugin}, its device plugin"]
    return [f"{what}: {tell(each)}" for each in found]


def devices(name: str) -> bool:
    """Whether the fabric's device plugin offers the resource: GPUs have one of their own."""
    return extended(name) and not name.endswith("/gpu")


def tell(daemons: dict[str, Any]) -> str:
    """How the pods of a device plugin are."""
    meta, status = daemons["metadata"], daemons.get("status", {})
    wanted, up = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
    return f"its device plugin {meta['namespace']}/{meta['name']} has {up} of {plural(wanted, 'pod')} ready"
