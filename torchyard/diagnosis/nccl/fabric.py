"""Whether a job used the network that its hardware file promises: a verdict, and the sentence that explains it."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torchyard.model.fabric import FabricReading, FabricVerdict, NodeFabric, Verdict
from torchyard.model.hardware import Expect

_MAX_NAMES = 3
_MAX_ROWS = 20  # nodes in the table
_TCP_TRANSPORTS = ("Socket", "FastSocket")  # transports that are plain TCP; every other one offloads some of the work
_VERBS_TRANSPORTS = ("IB", "IBext", "SHARP")  # NCCL's own, and those of NVIDIA's images for the same devices
_TCP_PROVIDERS = ("tcp", "sockets", "udp")  # of libfabric
_LINK_LAYERS = {"roce": "RoCE", "infiniband": "IB"}  # by promised transport
_GDR_TEXTS = {"yes": ", with GPUDirect", "no": ", without GPUDirect", "mixed": ", with GPUDirect in part"}
# Why a node uses TCP, the surest reason first, and what to do.
_TCP_REASONS = {
    "IB_DISABLE": "NCCL_IB_DISABLE is set: remove it",
    "NCCL_NET": "NCCL_NET is Socket: remove it",
    "libibverbs": "NCCL could not load libibverbs: install it and librdmacm in the image",
    "no provider": "libfabric found no RDMA provider: give the pod its EFA or CXI devices, and look at FI_PROVIDER",
    "no device": "NET/IB found no device: see /dev/infiniband in the pod, its RDMA resource, and NCCL_IB_HCA",
}
_USER_SETTINGS = ("IB_DISABLE", "NCCL_NET")  # set by a user, so these are the reason whatever the pod lacks
_UNKNOWN_REASON = "no line shows why: see /dev/infiniband in the pod, NCCL_IB_HCA, NCCL_IB_DISABLE and libibverbs"


class NodeRow(NamedTuple):
    """A row of the table of nodes, as text."""

    node: str
    transport: str
    gdr: str
    devices: str


def evaluate_fabric(reading: FabricReading, expected: Expect | None, node_count: int) -> FabricVerdict:
    """The verdict on a job of `node_count` nodes. Only lines about channels between nodes prove anything.

    `expected`: what the hardware file promises; None if it promises nothing.
    """
    nodes = [node for node in reading.nodes if node.transports]
    if node_count < 2:
        return _build_verdict("not-applicable", "one node: no traffic between nodes", reading)
    if not nodes:
        return _build_verdict("unknown", _explain_missing_channels(reading), reading)
    transports = _describe_transports(nodes, reading)
    if expected is None:
        return _build_verdict("unknown", f"{transports}; the profile's hardware promises nothing", reading)
    verdict, sentence = _compare_with_expected(nodes, expected, node_count, transports)
    return _build_verdict(verdict, sentence, reading).model_copy(update={"hcas": expected.hcas})


def list_node_rows(verdict: FabricVerdict) -> list[NodeRow]:
    """A header and a row for each node, the worst first and at most 20, and a row with the number of the others.

    Empty if the network is as promised, does not matter, or is unknown for all nodes.
    """
    nodes = verdict.reading.nodes
    if verdict.verdict in ("as-promised", "not-applicable") or not any(node.transports for node in nodes):
        return []
    rows = [NodeRow("node", "transport", "GPUDirect", "devices")]
    for node in sorted(nodes, key=_badness_key)[:_MAX_ROWS]:
        rows.append(_format_row(node, verdict.hcas))
    if len(nodes) > _MAX_ROWS:
        rows.append(NodeRow(f"{len(nodes) - _MAX_ROWS:,} more", "", "", ""))
    return rows


def _badness_key(node: NodeFabric) -> tuple[bool, bool, int, int, str]:
    """The order of the table: TCP first, nodes without a channel line, few devices, then those without GPUDirect."""
    return (
        not _is_tcp(node),
        bool(node.transports),
        len(node.hcas) if node.is_hca_list_complete else 1 << 16,
        ("no", "mixed", "unknown", "yes").index(node.gdr),
        node.node,
    )


def _is_tcp(node: NodeFabric) -> bool:
    """Whether any of its channels is TCP; libfabric can hide it."""
    if any(transport in _TCP_TRANSPORTS for transport in node.transports):
        return True
    uses_tcp_provider = node.provider.partition(";")[0] in _TCP_PROVIDERS
    return uses_tcp_provider and any(_is_libfabric(transport) for transport in node.transports)


def _is_libfabric(transport: str) -> bool:
    """Whether a transport is libfabric's plugin, which had several names: AWS Libfabric, Libfabric, OFI."""
    return "Libfabric" in transport or transport == "OFI"


def _format_row(node: NodeFabric, expected_hcas: int | None) -> NodeRow:
    """`node-1  NET/IB  no  mlx5_0, mlx5_1 (4 found of 8)`."""
    transport = " and ".join(_format_transport(transport, node) for transport in node.transports)
    devices = _format_names(node.used)
    if node.is_hca_list_complete:
        expected = f" of {expected_hcas}" if expected_hcas else ""
        devices += f" ({len(node.hcas)} found{expected})"
    return NodeRow(node.node, transport or "no channel seen", node.gdr if node.transports else "", devices)


def _format_transport(transport: str, node: NodeFabric) -> str:
    provider = f" ({node.provider})" if node.provider and _is_libfabric(transport) else ""
    return f"NET/{transport}{provider}"


def _build_verdict(verdict: Verdict, sentence: str, reading: FabricReading) -> FabricVerdict:
    """The verdict with its proof, the first log line of the evidence; empty if no node has any.

    For `not-rdma` (the profile expects RDMA, and a node used TCP) it is a line of such a node, if possible of a channel
    over sockets.
    """
    lines: list[str] = []
    if verdict == "not-rdma":
        for node in reading.nodes:
            if _is_tcp(node):
                lines += _sort_evidence(node)
    for node in reading.nodes:
        lines += node.evidence
    return FabricVerdict(verdict=verdict, sentence=sentence, proof=lines[0] if lines else "", reading=reading)


def _sort_evidence(node: NodeFabric) -> list[str]:
    """Its channel lines, those over sockets first."""
    return sorted(node.evidence, key=lambda line: not any(f"NET/{transport}/" in line for transport in _TCP_TRANSPORTS))


def _explain_missing_channels(reading: FabricReading) -> str:
    """Why the logs prove nothing."""
    if not reading.nccl and not reading.nodes:
        return "no line of NCCL in any log: the program may use another backend, or NCCL_DEBUG is not INFO"
    if not reading.nodes:
        return "NCCL printed only its version: NCCL_DEBUG=INFO makes it name its network"
    if reading.transport == "mnnvl":
        return "the channels between the nodes go over NVLink (MNNVL), which proves nothing about RDMA"
    if reading.transport == "intra-node-only":
        return "all of NCCL's channels are inside one node"
    subject = "it" if reading.transport == "unknown" else f"NCCL chose {reading.transport}, but"
    return f"no log has a line about a channel between nodes: {subject} may have used any network"


def _compare_with_expected(
    nodes: Sequence[NodeFabric], expected: Expect, node_count: int, transports: str
) -> tuple[Verdict, str]:
    """The verdict on nodes with channel lines, and its sentence."""
    tcp_nodes = [node for node in nodes if _is_tcp(node)]
    if expected.transport == "socket":
        if len(tcp_nodes) == len(nodes):
            return "as-promised", transports
        return "degraded", f"{transports}: TCP was promised"
    if tcp_nodes:
        return "not-rdma", _explain_tcp(nodes, expected)
    problems = [
        _find_other_transports(nodes, expected),
        _find_missing_devices(nodes, expected),
        _find_missing_gdr(nodes, expected),
        _find_other_links(nodes, expected),
    ]
    messages = [problem for problem in problems if problem]
    if messages:
        return "degraded", f"{transports}; but {'; '.join(messages)}"
    if len(nodes) < node_count:
        missing_nodes = _format_node_count(node_count - len(nodes))
        return "unknown", f"{transports}; the logs of {missing_nodes} have no line about a channel"
    return "as-promised", transports


def _explain_tcp(nodes: Sequence[NodeFabric], expected: Expect) -> str:
    """Which nodes use TCP over what, the likely reason, and what the others use."""
    nodes_by_reason: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        if _is_tcp(node):
            key = (_describe_tcp_path(node), _find_tcp_reason(node, expected))
            nodes_by_reason.setdefault(key, []).append(node.node)
    messages = []
    for (tcp_path, reason), names in list(nodes_by_reason.items())[:_MAX_NAMES]:
        messages.append(f"TCP{tcp_path} on {_format_names(names)}, not {_format_expected(expected)}: {reason}")

    rdma_nodes = [node for node in nodes if not _is_tcp(node)]
    if rdma_nodes:
        transports = dict.fromkeys(transport for node in rdma_nodes for transport in node.transports)
        verb = "use" if len(rdma_nodes) > 1 else "uses"
        messages.append(f"{_format_node_count(len(rdma_nodes))} {verb} {_format_transports(transports)}")
    return "; ".join(messages)


def _describe_tcp_path(node: NodeFabric) -> str:
    """What carries a node's TCP, as ` over eth0`; empty if no line names it."""
    if not any(transport in _TCP_TRANSPORTS for transport in node.transports):
        return f" by libfabric's provider {node.provider}"
    nics = [name for name in node.used if name not in node.hcas]
    return f" over {_format_names(nics)}" if nics else ""


def _find_tcp_reason(node: NodeFabric, expected: Expect) -> str:
    """Why a node uses TCP, and what to do. A promised plugin comes first: no HCA would make NCCL load it."""
    if expected.transport == "plugin" and "no provider" not in node.hints:
        return "NCCL does not use the plugin: see LD_LIBRARY_PATH, NCCL_NET_PLUGIN, and its own lines in the log"
    if node.missing and not any(hint in node.hints for hint in _USER_SETTINGS):
        return "; ".join(node.missing)
    for hint, reason in _TCP_REASONS.items():
        if hint in node.hints:
            return reason
    if node.is_hca_list_complete:
        return f"NCCL has found {_format_names(node.hcas)} and did not use it: see NCCL_NET and the plugin"
    return _UNKNOWN_REASON


def _format_expected(expected: Expect) -> str:
    """The promised transport, or the names of the promised plugin."""
    return " or ".join(expected.plugins) if expected.transport == "plugin" else expected.transport


# --- problems: what is less than expected


def _find_other_transports(nodes: Sequence[NodeFabric], expected: Expect) -> str | None:
    """The problem of networks that are neither expected nor TCP; None if there are none."""
    expected_names = list(expected.plugins)
    if expected.transport != "plugin":
        expected_names += _VERBS_TRANSPORTS
    pattern = re.compile(rf"(?:{'|'.join(map(re.escape, expected_names))})(?:_v\d+)?")
    unexpected: dict[str, None] = {}
    for node in nodes:
        for transport in node.transports:
            if not pattern.fullmatch(transport):
                unexpected[f"NET/{transport}"] = None
    if not unexpected:
        return None
    return f"{_format_names(unexpected)} is not {_format_expected(expected)}"


def _find_missing_devices(nodes: Sequence[NodeFabric], expected: Expect) -> str | None:
    """The problem of nodes with fewer HCAs than expected; None if there are none."""
    expected_hcas = expected.hcas or 0
    incomplete = [node for node in nodes if node.is_hca_list_complete and len(node.hcas) < expected_hcas]
    if not incomplete:
        return None
    worst = min(incomplete, key=lambda node: len(node.hcas))
    message = f"{worst.node} has {len(worst.hcas)} of {expected_hcas} HCAs ({_format_names(worst.hcas)})"
    if len(incomplete) > 1:
        message += f", {_format_names(node.node for node in incomplete if node is not worst)} too few"
    return f"{message}: look at NCCL_IB_HCA, the pod's RDMA resource and `ibv_devinfo` there"


def _find_missing_gdr(nodes: Sequence[NodeFabric], expected: Expect) -> str | None:
    """The problem of nodes without GPUDirect, on some or all channels; None if none is expected or none is missing."""
    node_names = [node.node for node in nodes if node.gdr in ("no", "mixed")]
    if not expected.gdr or not node_names:
        return None
    remedy = "load nvidia-peermem (AMD: the peer memory of amdgpu), and look at NCCL_NET_GDR_LEVEL"
    return f"no GPUDirect on {_format_names(node_names)}: {remedy}"


def _find_other_links(nodes: Sequence[NodeFabric], expected: Expect) -> str | None:
    """The problem of nodes whose devices have another link layer than expected; None if there are none."""
    link_layer = _LINK_LAYERS.get(expected.transport)
    other_nodes = [node for node in nodes if node.links and link_layer not in node.links]
    if link_layer is None or not other_nodes:
        return None
    node_names = _format_names(node.node for node in other_nodes)
    link_layers = dict.fromkeys(layer for node in other_nodes for layer in node.links)
    remedy = "correct NCCL_IB_HCA, or the hardware file"
    return f"the devices of {node_names} are {' and '.join(link_layers)}, not {expected.transport}: {remedy}"


# --- text


def _describe_transports(nodes: Sequence[NodeFabric], reading: FabricReading) -> str:
    """What carries the channels: `NET/IB over mlx5_0, mlx5_1, with GPUDirect on 2 nodes`."""
    transports = dict.fromkeys(transport for node in nodes for transport in node.transports)
    devices = dict.fromkeys(device for node in nodes for device in node.used)
    text = _format_transports(transports)
    if devices:
        text += f" over {_format_names(devices)}"
    if not set(transports) <= set(_TCP_TRANSPORTS):
        text += _GDR_TEXTS.get(reading.gdr, "")
    return f"{text} on {_format_node_count(len(nodes))}"


def _format_transports(names: Iterable[str]) -> str:
    return " and ".join(f"NET/{name}" for name in names)


def _format_node_count(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _format_names(names: Iterable[str]) -> str:
    """A few names, and how many more."""
    unique_names = list(dict.fromkeys(names))
    text = ", ".join(unique_names[:_MAX_NAMES])
    if len(unique_names) > _MAX_NAMES:
        text += f" and {len(unique_names) - _MAX_NAMES} more"
    return text
