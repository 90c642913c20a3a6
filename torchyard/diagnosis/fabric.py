"""Whether a job used the network that its hardware file promises: a verdict, and the sentence that explains it."""

import re
from collections.abc import Iterable, Sequence

from torchyard.model.fabric import FabricReading, FabricVerdict, NodeFabric
from torchyard.model.hardware import Expect

_MAX_NAMES = 3
_MAX_ROWS = 20  # nodes in the table
_SOCKETS = ("Socket", "FastSocket")  # transports that are plain TCP; every other one offloads some of the work
_VERBS = ("IB", "IBext", "SHARP")  # NCCL's own, and those of NVIDIA's images for the same devices
_TCP_PROVIDERS = ("tcp", "sockets", "udp")  # of libfabric
_LINKS = {"roce": "RoCE", "infiniband": "IB"}
# Why a node uses TCP, the surest reason first, and what to do.
_REASONS = {
    "IB_DISABLE": "NCCL_IB_DISABLE is set: remove it",
    "NCCL_NET": "NCCL_NET is Socket: remove it",
    "libibverbs": "NCCL could not load libibverbs: install it and librdmacm in the image",
    "no provider": "libfabric found no RDMA provider: give the pod its EFA or CXI devices, and look at FI_PROVIDER",
    "no device": "NET/IB found no device: see /dev/infiniband in the pod, its RDMA resource, and NCCL_IB_HCA",
}
_CHOICES = ("IB_DISABLE", "NCCL_NET")  # somebody's own, whatever the pod has
_NO_REASON = "no line says why: see /dev/infiniband in the pod, NCCL_IB_HCA, NCCL_IB_DISABLE and libibverbs"


def judge_fabric(reading: FabricReading, promise: Expect | None, count: int) -> FabricVerdict:
    """The verdict on a job of `count` nodes. Only lines about channels between nodes prove anything."""
    nodes = [node for node in reading.nodes if node.transports]
    if count < 2:
        return _tell("not-applicable", "one node: nothing goes over the network", reading)
    if not nodes:
        return _tell("unknown", _explain_silence(reading), reading)
    used = _describe_use(nodes, reading)
    if promise is None:
        return _tell("unknown", f"{used}; the profile's hardware promises nothing", reading)
    verdict, sentence = _compare(nodes, promise, count, used)
    return _tell(verdict, sentence, reading).model_copy(update={"hcas": promise.hcas})


def tabulate_nodes(found: FabricVerdict) -> list[tuple[str, ...]]:
    """A head and a row for each node, the worst first and at most 20, if the network is not as promised; else none."""
    if found.verdict in ("as-promised", "not-applicable") or not any(node.transports for node in found.reading.nodes):
        return []
    nodes = sorted(found.reading.nodes, key=lambda node: (not _is_tcp(node), bool(node.transports), *_rank_rdma(node)))
    rows = [_describe_row(node, found.hcas) for node in nodes[:_MAX_ROWS]]
    more = [(f"{len(nodes) - _MAX_ROWS:,} more", *[""] * 3)] if len(nodes) > _MAX_ROWS else []
    return [("node", "transport", "GPUDirect", "devices"), *rows, *more]


def _is_tcp(node: NodeFabric) -> bool:
    """Whether any of its channels is TCP; libfabric can hide it."""
    by_tcp = node.provider.partition(";")[0] in _TCP_PROVIDERS
    return any(net in _SOCKETS or (by_tcp and _is_libfabric(net)) for net in node.transports)


def _is_libfabric(net: str) -> bool:
    """Whether a transport is libfabric's plugin, which had several names: AWS Libfabric, Libfabric, OFI."""
    return "Libfabric" in net or net == "OFI"


def _rank_rdma(node: NodeFabric) -> tuple[int, int, str]:
    """The order of nodes with RDMA: few devices first, then those without GPUDirect."""
    return (
        len(node.hcas) if node.is_hca_list_complete else 1 << 16,
        ("no", "mixed", "unknown", "yes").index(node.gdr),
        node.node,
    )


def _describe_row(node: NodeFabric, promised: int | None) -> tuple[str, ...]:
    """`node-1  NET/IB  no  mlx5_0, mlx5_1 (4 found of 8)`."""
    transport = " and ".join(_name_net(net, node) for net in node.transports) or "no channel seen"
    of = f" of {promised}" if promised else ""
    count = f"{len(node.hcas)} found{of}" if node.is_hca_list_complete else ""
    devices = _list_names(node.used)
    return node.node, transport, node.gdr if node.transports else "", f"{devices} ({count})" if count else devices


def _name_net(net: str, node: NodeFabric) -> str:
    return f"NET/{net}{f' ({node.provider})' if node.provider and _is_libfabric(net) else ''}"


def _tell(verdict: str, sentence: str, reading: FabricReading) -> FabricVerdict:
    lines = [line for node in reading.nodes for line in node.evidence]
    is_broken = verdict == "not-rdma"
    tcp = [line for node in reading.nodes if is_broken and _is_tcp(node) for line in _sort_proofs(node)]
    proof = next(iter([*tcp, *lines]), "")
    fields = {"verdict": verdict, "sentence": sentence, "proof": proof, "reading": reading}
    return FabricVerdict.model_validate(fields)


def _sort_proofs(node: NodeFabric) -> list[str]:
    """Its channel lines, those over sockets first."""
    return sorted(node.evidence, key=lambda line: not any(f"NET/{net}/" in line for net in _SOCKETS))


def _explain_silence(reading: FabricReading) -> str:
    """Why the logs prove nothing."""
    if not reading.nccl and not reading.nodes:
        return "no line of NCCL in any log: the program may use another backend, or NCCL_DEBUG is not INFO"
    if not reading.nodes:
        return "NCCL names its version and no more: NCCL_DEBUG=INFO makes it name its network"
    if reading.transport == "mnnvl":
        return "the channels between the nodes go over NVLink (MNNVL), which proves nothing about RDMA"
    if reading.transport == "intra-node-only":
        return "all of NCCL's channels are inside one node"
    chosen = "" if reading.transport == "unknown" else f" NCCL chose {reading.transport}, but"
    return f"no log has a line about a channel between nodes:{chosen or ' it'} may have used any network"


def _compare(nodes: Sequence[NodeFabric], promise: Expect, count: int, used: str) -> tuple[str, str]:
    """The verdict on channels that were seen, and its sentence."""
    tcp = [node for node in nodes if _is_tcp(node)]
    if promise.transport == "socket":
        return ("as-promised", used) if len(tcp) == len(nodes) else ("degraded", f"{used}: TCP was promised")
    if tcp:
        return "not-rdma", _explain_tcp(nodes, promise)
    finders = (_find_other_transports, _find_missing_devices, _find_missing_gdr, _find_other_links)
    if faults := [fault for find in finders for fault in find(nodes, promise)]:
        return "degraded", f"{used}; but {'; '.join(faults)}"
    if len(nodes) < count:
        return "unknown", f"{used}; the logs of {_count_nodes(count - len(nodes))} have no line about a channel"
    return "as-promised", used


def _explain_tcp(nodes: Sequence[NodeFabric], promise: Expect) -> str:
    """Which nodes use TCP over what, the likely reason, and what the others use."""
    tcp = [node for node in nodes if _is_tcp(node)]
    kinds: dict[tuple[str, str], list[str]] = {}
    for node in tcp:
        kinds.setdefault((_name_way(node), _find_reason(node, promise)), []).append(node.node)
    told = [
        f"TCP{way} on {_list_names(names)}, not {_name_promise(promise)}: {why}"
        for (way, why), names in list(kinds.items())[:_MAX_NAMES]
    ]
    if rest := [node for node in nodes if not _is_tcp(node)]:
        names = dict.fromkeys(net for node in rest for net in node.transports)
        told.append(f"{_count_nodes(len(rest))} {'use' if len(rest) > 1 else 'uses'} {_join_nets(names)}")
    return "; ".join(told)


def _name_way(node: NodeFabric) -> str:
    """What carries a node's TCP."""
    if not any(net in _SOCKETS for net in node.transports):
        return f" by libfabric's provider {node.provider}"
    nics = [name for name in node.used if name not in node.hcas]
    return f" over {_list_names(nics)}" if nics else ""


def _find_reason(node: NodeFabric, promise: Expect) -> str:
    """Why a node uses TCP, and what to do. A promised plugin is its own subject: no HCA would make NCCL load it."""
    if promise.transport == "plugin" and "no provider" not in node.hints:
        return "NCCL does not use the plugin: see LD_LIBRARY_PATH, NCCL_NET_PLUGIN, and its own lines in the log"
    said = [reason for hint, reason in _REASONS.items() if hint in node.hints]
    if node.missing and not any(hint in node.hints for hint in _CHOICES):
        return "; ".join(node.missing)
    if said:
        return said[0]
    if node.is_hca_list_complete:
        return f"NCCL has found {_list_names(node.hcas)} and did not use it: see NCCL_NET and the plugin"
    return _NO_REASON


def _name_promise(promise: Expect) -> str:
    return " or ".join(promise.plugins) if promise.transport == "plugin" else promise.transport


def _find_other_transports(nodes: Sequence[NodeFabric], promise: Expect) -> list[str]:
    """Networks that are neither promised nor TCP."""
    kept = (*promise.plugins, *(_VERBS if promise.transport != "plugin" else ()))
    pattern = rf"(?:{'|'.join(map(re.escape, kept))})(?:_v\d+)?"
    other = [net for node in nodes for net in node.transports if not re.fullmatch(pattern, net)]
    return [f"{_list_names(f'NET/{net}' for net in other)} is not {_name_promise(promise)}"] if other else []


def _find_missing_devices(nodes: Sequence[NodeFabric], promise: Expect) -> list[str]:
    wanted = promise.hcas or 0
    few = [node for node in nodes if node.is_hca_list_complete and len(node.hcas) < wanted]
    if not few:
        return []
    least = min(few, key=lambda node: len(node.hcas))
    also = f", {_list_names(node.node for node in few if node is not least)} too few" if len(few) > 1 else ""
    found = f"{least.node} has {len(least.hcas)} of {wanted} HCAs ({_list_names(least.hcas)}){also}"
    return [f"{found}: look at NCCL_IB_HCA, the pod's RDMA resource and `ibv_devinfo` there"]


def _find_missing_gdr(nodes: Sequence[NodeFabric], promise: Expect) -> list[str]:
    without = [node.node for node in nodes if node.gdr in ("no", "mixed")]
    remedy = "load nvidia-peermem (AMD: the peer memory of amdgpu), and look at NCCL_NET_GDR_LEVEL"
    return [f"no GPUDirect on {_list_names(without)}: {remedy}"] if promise.gdr and without else []


def _find_other_links(nodes: Sequence[NodeFabric], promise: Expect) -> list[str]:
    if not (wanted := _LINKS.get(promise.transport)):
        return []
    other = [node for node in nodes if node.links and wanted not in node.links]
    names = dict.fromkeys(link for node in other for link in node.links)
    remedy = "correct NCCL_IB_HCA, or the hardware file"
    where = _list_names(node.node for node in other)
    return [f"the devices of {where} are {' and '.join(names)}, no {promise.transport}: {remedy}"] if other else []


def _describe_use(nodes: Sequence[NodeFabric], reading: FabricReading) -> str:
    """What carries the channels."""
    names = dict.fromkeys(net for node in nodes for net in node.transports)
    devices = dict.fromkeys(device for node in nodes for device in node.used)
    over = f" over {_list_names(devices)}" if devices else ""
    direct = {"yes": ", with GPUDirect", "no": ", without GPUDirect", "mixed": ", with GPUDirect in part"}
    told = "" if set(names) <= set(_SOCKETS) else direct.get(reading.gdr, "")
    return f"{_join_nets(names)}{over}{told} on {_count_nodes(len(nodes))}"


def _join_nets(names: Iterable[str]) -> str:
    return " and ".join(f"NET/{name}" for name in names)


def _count_nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


def _list_names(names: Iterable[str]) -> str:
    """A few names, and how many more."""
    every = list(dict.fromkeys(names))
    more = f" and {len(every) - _MAX_NAMES} more" if len(every) > _MAX_NAMES else ""
    return ", ".join(every[:_MAX_NAMES]) + more
