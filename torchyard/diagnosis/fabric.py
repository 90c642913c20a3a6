"""Whether a job used the network that its hardware file promises: a verdict, and the sentence that explains it."""

import re
from collections.abc import Iterable, Sequence

from torchyard.model.fabric import FabricReading, FabricVerdict, NodeFabric
from torchyard.model.hardware import Expect

_MAX_NAMES = 3
_MAX_ROWS = 20  # nodes in the table
_TCP_TRANSPORTS = ("Socket", "FastSocket")  # transports that are plain TCP; every other one offloads some of the work
_VERBS_TRANSPORTS = ("IB", "IBext", "SHARP")  # NCCL's own, and those of NVIDIA's images for the same devices
_TCP_PROVIDERS = ("tcp", "sockets", "udp")  # of libfabric
_LINK_LAYERS = {"roce": "RoCE", "infiniband": "IB"}
# Why a node uses TCP, the surest reason first, and what to do.
_TCP_REASONS = {
    "IB_DISABLE": "NCCL_IB_DISABLE is set: remove it",
    "NCCL_NET": "NCCL_NET is Socket: remove it",
    "libibverbs": "NCCL could not load libibverbs: install it and librdmacm in the image",
    "no provider": "libfabric found no RDMA provider: give the pod its EFA or CXI devices, and look at FI_PROVIDER",
    "no device": "NET/IB found no device: see /dev/infiniband in the pod, its RDMA resource, and NCCL_IB_HCA",
}
_USER_SETTINGS = ("IB_DISABLE", "NCCL_NET")  # somebody's own, whatever the pod has
_UNKNOWN_REASON = "no line says why: see /dev/infiniband in the pod, NCCL_IB_HCA, NCCL_IB_DISABLE and libibverbs"


def evaluate_fabric(reading: FabricReading, expected: Expect | None, node_count: int) -> FabricVerdict:
    """The verdict on a job of `count` nodes. Only lines about channels between nodes prove anything."""
    nodes = [node for node in reading.nodes if node.transports]
    if node_count < 2:
        return _build_verdict("not-applicable", "one node: nothing goes over the network", reading)
    if not nodes:
        return _build_verdict("unknown", _explain_missing_channels(reading), reading)
    transports = _describe_transports(nodes, reading)
    if expected is None:
        return _build_verdict("unknown", f"{transports}; the profile's hardware promises nothing", reading)
    verdict, sentence = _compare_with_expected(nodes, expected, node_count, transports)
    return _build_verdict(verdict, sentence, reading).model_copy(update={"hcas": expected.hcas})


def list_node_rows(verdict: FabricVerdict) -> list[tuple[str, ...]]:
    """A head and a row for each node, the worst first and at most 20, if the network is not as promised; else none."""
    if verdict.verdict in ("as-promised", "not-applicable") or not any(
        node.transports for node in verdict.reading.nodes
    ):
        return []
    nodes = sorted(
        verdict.reading.nodes, key=lambda node: (not _is_tcp(node), bool(node.transports), *_rdma_sort_key(node))
    )
    rows = [_format_row(node, verdict.hcas) for node in nodes[:_MAX_ROWS]]
    remainder = [(f"{len(nodes) - _MAX_ROWS:,} more", *[""] * 3)] if len(nodes) > _MAX_ROWS else []
    return [("node", "transport", "GPUDirect", "devices"), *rows, *remainder]


def _is_tcp(node: NodeFabric) -> bool:
    """Whether any of its channels is TCP; libfabric can hide it."""
    uses_tcp_provider = node.provider.partition(";")[0] in _TCP_PROVIDERS
    return any(
        transport in _TCP_TRANSPORTS or (uses_tcp_provider and _is_libfabric(transport))
        for transport in node.transports
    )


def _is_libfabric(transport: str) -> bool:
    """Whether a transport is libfabric's plugin, which had several names: AWS Libfabric, Libfabric, OFI."""
    return "Libfabric" in transport or transport == "OFI"


def _rdma_sort_key(node: NodeFabric) -> tuple[int, int, str]:
    """The order of nodes with RDMA: few devices first, then those without GPUDirect."""
    return (
        len(node.hcas) if node.is_hca_list_complete else 1 << 16,
        ("no", "mixed", "unknown", "yes").index(node.gdr),
        node.node,
    )


def _format_row(node: NodeFabric, expected_hcas: int | None) -> tuple[str, ...]:
    """`node-1  NET/IB  no  mlx5_0, mlx5_1 (4 found of 8)`."""
    transports = " and ".join(_format_transport(transport, node) for transport in node.transports) or "no channel seen"
    total = f" of {expected_hcas}" if expected_hcas else ""
    count = f"{len(node.hcas)} found{total}" if node.is_hca_list_complete else ""
    devices = _format_names(node.used)
    return node.node, transports, node.gdr if node.transports else "", f"{devices} ({count})" if count else devices


def _format_transport(transport: str, node: NodeFabric) -> str:
    return f"NET/{transport}{f' ({node.provider})' if node.provider and _is_libfabric(transport) else ''}"


def _build_verdict(verdict: str, sentence: str, reading: FabricReading) -> FabricVerdict:
    lines = [line for node in reading.nodes for line in node.evidence]
    is_not_rdma = verdict == "not-rdma"
    tcp_lines = [line for node in reading.nodes if is_not_rdma and _is_tcp(node) for line in _sort_evidence(node)]
    evidence = next(iter([*tcp_lines, *lines]), "")
    fields = {"verdict": verdict, "sentence": sentence, "proof": evidence, "reading": reading}
    return FabricVerdict.model_validate(fields)


def _sort_evidence(node: NodeFabric) -> list[str]:
    """Its channel lines, those over sockets first."""
    return sorted(node.evidence, key=lambda line: not any(f"NET/{transport}/" in line for transport in _TCP_TRANSPORTS))


def _explain_missing_channels(reading: FabricReading) -> str:
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


def _compare_with_expected(
    nodes: Sequence[NodeFabric], expected: Expect, node_count: int, transports: str
) -> tuple[str, str]:
    """The verdict on channels that were seen, and its sentence."""
    tcp_nodes = [node for node in nodes if _is_tcp(node)]
    if expected.transport == "socket":
        return (
            ("as-promised", transports)
            if len(tcp_nodes) == len(nodes)
            else ("degraded", f"{transports}: TCP was promised")
        )
    if tcp_nodes:
        return "not-rdma", _explain_tcp(nodes, expected)
    finders = (_find_other_transports, _find_missing_devices, _find_missing_gdr, _find_other_links)
    if faults := [fault for find in finders for fault in find(nodes, expected)]:
        return "degraded", f"{transports}; but {'; '.join(faults)}"
    if len(nodes) < node_count:
        return (
            "unknown",
            f"{transports}; the logs of {_format_node_count(node_count - len(nodes))} have no line about a channel",
        )
    return "as-promised", transports


def _explain_tcp(nodes: Sequence[NodeFabric], expected: Expect) -> str:
    """Which nodes use TCP over what, the likely reason, and what the others use."""
    tcp_nodes = [node for node in nodes if _is_tcp(node)]
    nodes_by_reason: dict[tuple[str, str], list[str]] = {}
    for node in tcp_nodes:
        nodes_by_reason.setdefault((_describe_tcp_path(node), _find_tcp_reason(node, expected)), []).append(node.node)
    messages = [
        f"TCP{tcp_path} on {_format_names(names)}, not {_format_expected(expected)}: {reason}"
        for (tcp_path, reason), names in list(nodes_by_reason.items())[:_MAX_NAMES]
    ]
    if rdma_nodes := [node for node in nodes if not _is_tcp(node)]:
        names = dict.fromkeys(transport for node in rdma_nodes for transport in node.transports)
        messages.append(
            f"{_format_node_count(len(rdma_nodes))} {'use' if len(rdma_nodes) > 1 else 'uses'} {_format_transports(names)}"
        )
    return "; ".join(messages)


def _describe_tcp_path(node: NodeFabric) -> str:
    """What carries a node's TCP."""
    if not any(transport in _TCP_TRANSPORTS for transport in node.transports):
        return f" by libfabric's provider {node.provider}"
    nics = [name for name in node.used if name not in node.hcas]
    return f" over {_format_names(nics)}" if nics else ""


def _find_tcp_reason(node: NodeFabric, expected: Expect) -> str:
    """Why a node uses TCP, and what to do. A promised plugin is its own subject: no HCA would make NCCL load it."""
    if expected.transport == "plugin" and "no provider" not in node.hints:
        return "NCCL does not use the plugin: see LD_LIBRARY_PATH, NCCL_NET_PLUGIN, and its own lines in the log"
    reasons = [reason for hint, reason in _TCP_REASONS.items() if hint in node.hints]
    if node.missing and not any(hint in node.hints for hint in _USER_SETTINGS):
        return "; ".join(node.missing)
    if reasons:
        return reasons[0]
    if node.is_hca_list_complete:
        return f"NCCL has found {_format_names(node.hcas)} and did not use it: see NCCL_NET and the plugin"
    return _UNKNOWN_REASON


def _format_expected(expected: Expect) -> str:
    return " or ".join(expected.plugins) if expected.transport == "plugin" else expected.transport


def _find_other_transports(nodes: Sequence[NodeFabric], expected: Expect) -> list[str]:
    """Networks that are neither promised nor TCP."""
    expected_names = (*expected.plugins, *(_VERBS_TRANSPORTS if expected.transport != "plugin" else ()))
    pattern = rf"(?:{'|'.join(map(re.escape, expected_names))})(?:_v\d+)?"
    unexpected = [transport for node in nodes for transport in node.transports if not re.fullmatch(pattern, transport)]
    return (
        [f"{_format_names(f'NET/{net}' for net in unexpected)} is not {_format_expected(expected)}"]
        if unexpected
        else []
    )


def _find_missing_devices(nodes: Sequence[NodeFabric], expected: Expect) -> list[str]:
    expected_hcas = expected.hcas or 0
    few = [node for node in nodes if node.is_hca_list_complete and len(node.hcas) < expected_hcas]
    if not few:
        return []
    worst = min(few, key=lambda node: len(node.hcas))
    suffix = f", {_format_names(node.node for node in few if node is not worst)} too few" if len(few) > 1 else ""
    problem = f"{worst.node} has {len(worst.hcas)} of {expected_hcas} HCAs ({_format_names(worst.hcas)}){suffix}"
    return [f"{problem}: look at NCCL_IB_HCA, the pod's RDMA resource and `ibv_devinfo` there"]


def _find_missing_gdr(nodes: Sequence[NodeFabric], expected: Expect) -> list[str]:
    node_names = [node.node for node in nodes if node.gdr in ("no", "mixed")]
    remedy = "load nvidia-peermem (AMD: the peer memory of amdgpu), and look at NCCL_NET_GDR_LEVEL"
    return [f"no GPUDirect on {_format_names(node_names)}: {remedy}"] if expected.gdr and node_names else []


def _find_other_links(nodes: Sequence[NodeFabric], expected: Expect) -> list[str]:
    if not (link_layer := _LINK_LAYERS.get(expected.transport)):
        return []
    other_nodes = [node for node in nodes if node.links and link_layer not in node.links]
    link_layers = dict.fromkeys(link for node in other_nodes for link in node.links)
    remedy = "correct NCCL_IB_HCA, or the hardware file"
    node_names = _format_names(node.node for node in other_nodes)
    return (
        [f"the devices of {node_names} are {' and '.join(link_layers)}, no {expected.transport}: {remedy}"]
        if other_nodes
        else []
    )


def _describe_transports(nodes: Sequence[NodeFabric], reading: FabricReading) -> str:
    """What carries the channels."""
    transports = dict.fromkeys(transport for node in nodes for transport in node.transports)
    devices = dict.fromkeys(device for node in nodes for device in node.used)
    suffix = f" over {_format_names(devices)}" if devices else ""
    gdr_texts = {"yes": ", with GPUDirect", "no": ", without GPUDirect", "mixed": ", with GPUDirect in part"}
    gdr_text = "" if set(transports) <= set(_TCP_TRANSPORTS) else gdr_texts.get(reading.gdr, "")
    return f"{_format_transports(transports)}{suffix}{gdr_text} on {_format_node_count(len(nodes))}"


def _format_transports(names: Iterable[str]) -> str:
    return " and ".join(f"NET/{name}" for name in names)


def _format_node_count(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


def _format_names(names: Iterable[str]) -> str:
    """A few names, and how many more."""
    unique_names = list(dict.fromkeys(names))
    suffix = f" and {len(unique_names) - _MAX_NAMES} more" if len(unique_names) > _MAX_NAMES else ""
    return ", ".join(unique_names[:_MAX_NAMES]) + suffix
