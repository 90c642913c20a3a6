"""The verdict on the network that a job has used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.inputs.nccl_lines import format_line, list_rdma_lines, list_socket_lines
from torchyard.diagnosis.nccl.fabric import evaluate_fabric, list_node_rows
from torchyard.diagnosis.nccl.log import NcclLogReader, parse_nccl_log
from torchyard.model.fabric import FabricVerdict
from torchyard.model.hardware import Expect

ROCE = Expect(transport="roce", hcas=2, gdr=True)
TCP = Expect(transport="socket")


def evaluate(lines: list[str], expected: Expect | None = ROCE, node_count: int = 2) -> FabricVerdict:
    return evaluate_fabric(parse_nccl_log(lines), expected, node_count)


def test_promise_is_kept() -> None:
    """Channels of both nodes over all promised devices, with GPUDirect."""
    verdict = evaluate([*list_rdma_lines("a"), *list_rdma_lines("b", 8)])
    assert (verdict.verdict, verdict.sentence) == (
        "as-promised",
        "NET/IB over mlx5_0, mlx5_1, with GPUDirect on 2 nodes",
    )


def test_tcp_is_not_rdma() -> None:
    """A fall-back to TCP names its interface, its node and the likely reason."""
    verdict = evaluate([*list_socket_lines("a"), *list_socket_lines("b", 8)])
    assert verdict.verdict == "not-rdma"
    assert verdict.sentence.startswith("TCP over eth0 on a, b, not roce: NET/IB found no device: see /dev/infiniband")


REASONS = {
    "NCCL_IB_DISABLE is set": [format_line("a", 0, "NCCL_IB_DISABLE set by environment to 1.")],
    "could not load libibverbs": [format_line("a", 0, "Failed to open libibverbs.so[.1]")],
    "NCCL_NET is Socket": [format_line("a", 0, "NCCL_NET set by environment to Socket")],
    "NCCL has found mlx5_0 and did not use it": [
        format_line("a", 0, "NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:1.2.3.4<0>")
    ],
    "no line shows why": [],
}


@pytest.mark.parametrize("phrase", REASONS)
def test_reason_for_tcp_is_named(phrase: str) -> None:
    """The reason is what NCCL logged about its choice, with a remedy."""
    verdict = evaluate([*REASONS[phrase], format_line("a", 0, "Channel 00/0 : 8[0] -> 0[0] [send] via NET/Socket/0")])
    assert (verdict.verdict, phrase in verdict.sentence) == ("not-rdma", True), verdict.sentence


@pytest.mark.parametrize(
    ("setting", "phrase"),
    [
        ("", "not roce: no port is ACTIVE: mlx5_0/1 is 1: DOWN"),
        ("NCCL_IB_DISABLE set by environment to 1.", "remove it"),
    ],
)
def test_missing_rdma_of_the_pod_is_the_reason(setting: str, phrase: str) -> None:
    """What the pod's own probe found missing is the reason, unless a user chose TCP."""
    reader = NcclLogReader()
    for name, first_rank in (("a", 0), ("b", 8)):
        probe = '{"torchyard_rdma": {"lacks": ["no port is ACTIVE: mlx5_0/1 is 1: DOWN"], "ports": []}}'
        lines = [probe, *list_socket_lines(name, first_rank)]
        if setting:
            lines.append(format_line(name, first_rank, setting))
        reader.process_block(name, "".join(f"{line}\n" for line in lines).encode())
    verdict = evaluate_fabric(reader.build_reading(), ROCE, 2)
    assert (verdict.verdict, verdict.sentence.endswith(phrase)) == ("not-rdma", True), verdict.sentence


def test_nodes_with_different_networks_are_named() -> None:
    """Nodes that use TCP over different interfaces are listed separately, and the others are counted."""
    verdict = evaluate(
        [*list_socket_lines("a"), *list_socket_lines("b", 8, nics=("ens3",)), *list_rdma_lines("c", 16)], node_count=3
    )
    assert "TCP over eth0 on a, not roce: " in verdict.sentence
    assert "; TCP over ens3 on b, not roce: " in verdict.sentence
    assert verdict.sentence.endswith("; 1 node uses NET/IB")


@pytest.mark.parametrize("index", range(16))
def test_one_line_over_tcp_is_found(index: int) -> None:
    """A single channel over TCP, on a node that uses RDMA besides, breaks the promise."""
    lines = [line for node_index in range(16) for line in list_rdma_lines(f"n-{node_index:02d}", node_index)]
    verdict = evaluate(
        [*lines, format_line(f"n-{index:02d}", 9, "Channel 03/0 : 9[1] -> 17[1] [send] via NET/Socket/0")],
        node_count=16,
    )
    assert (verdict.verdict, verdict.sentence.partition(",")[0]) == ("not-rdma", f"TCP on n-{index:02d}")
    assert "via NET/Socket/0" in verdict.proof
    assert evaluate(lines, node_count=16).verdict == "as-promised"


@pytest.mark.parametrize("plugin", ["AWS Libfabric", "Libfabric", "OFI"])
def test_libfabric_over_tcp_is_tcp(plugin: str) -> None:
    """libfabric's plugin keeps its name where it found no RDMA device and took its provider tcp."""
    lines = [
        format_line("a", 0, "NET/OFI Selected provider is tcp, fabric is 10.0.0.0/8 (found 1 nics)"),
        format_line("a", 0, f"Channel 00/0 : 8[0] -> 0[0] [send] via NET/{plugin}/0"),
    ]
    verdict = evaluate(lines)
    assert (verdict.verdict, verdict.sentence.partition(" on a")[0]) == ("not-rdma", "TCP by libfabric's provider tcp")
    assert plugin in verdict.proof
    assert evaluate([line.replace("is tcp", "is efa") for line in lines]).verdict != "not-rdma"


@pytest.mark.parametrize("tcp_index", range(16))
def test_one_node_of_many_on_tcp_is_found(tcp_index: int) -> None:
    """One node of sixteen that uses TCP breaks the promise, whichever it is."""
    nodes = [list_socket_lines if index == tcp_index else list_rdma_lines for index in range(16)]
    verdict = evaluate(
        [line for index, node in enumerate(nodes) for line in node(f"n-{index:02d}", index)], node_count=16
    )
    assert (verdict.verdict, f"TCP over eth0 on n-{tcp_index:02d}," in verdict.sentence) == ("not-rdma", True)


UNDIRECTED = [line.replace("/GDRDMA", "") for line in list_rdma_lines("b", 8)]
DEGRADED = {
    "a has 1 of 2 HCAs (mlx5_0): look at NCCL_IB_HCA": [*list_rdma_lines("a", hcas=1), *list_rdma_lines("b", 8)],
    "no GPUDirect on b: load nvidia-peermem": [*list_rdma_lines("a"), *UNDIRECTED],
    "the devices of a, b are IB, not roce": [*list_rdma_lines("a", link="IB"), *list_rdma_lines("b", 8, link="IB")],
}


@pytest.mark.parametrize("phrase", DEGRADED)
def test_less_than_promised_is_degraded(phrase: str) -> None:
    """RDMA with fewer devices, without GPUDirect or over another link layer is less than the promise."""
    verdict = evaluate(DEGRADED[phrase])
    assert (verdict.verdict, phrase in verdict.sentence) == ("degraded", True), verdict.sentence


def test_sockets_may_be_the_promise() -> None:
    """TCP over several interfaces is right where the hardware file promises sockets, and RDMA is not."""
    nics = ("net1-0", "net1-1")
    verdict = evaluate([*list_socket_lines("a", nics=nics), *list_socket_lines("b", 8, nics=nics)], TCP)
    assert (verdict.verdict, verdict.sentence) == ("as-promised", "NET/Socket over net1-0, net1-1 on 2 nodes")
    assert evaluate([*list_rdma_lines("a"), *list_rdma_lines("b", 8)], TCP).verdict == "degraded"


def plugin_node(host: str, transport: str, first_rank: int = 0, flags: str = "") -> list[str]:
    """The channel line of a node that uses a plugin, which lists no devices."""
    return [
        format_line(
            host,
            first_rank,
            f"Channel 00/0 : {first_rank}[0] -> {first_rank + 8}[0] [send] via NET/{transport}/0{flags}",
        )
    ]


EFA = Expect(transport="plugin", plugins=("Libfabric", "AWS Libfabric"), gdr=True)
TCPX = Expect(transport="plugin", plugins=("GPUDirectTCPX",))
SHARP = Expect(transport="infiniband", plugins=("SHARP",))
VERBS = Expect(transport="rdma")


@pytest.mark.parametrize(
    ("expected", "transport", "flags", "verdict"),
    [
        (EFA, "Libfabric", "/GDRDMA", "as-promised"),
        (EFA, "AWS Libfabric", "/GDRDMA/Shared", "as-promised"),
        (EFA, "Libfabric", "", "degraded"),
        (EFA, "IB", "/GDRDMA", "degraded"),
        (EFA, "Socket", "", "not-rdma"),
        (TCPX, "GPUDirectTCPX_v7", "", "as-promised"),
        (TCPX, "GPUDirectTCPX", "", "as-promised"),
        (TCPX, "FasTrak", "", "degraded"),
        (TCPX, "FastSocket", "", "not-rdma"),
        (SHARP, "IBext_v8", "/GDRDMA", "as-promised"),
        (SHARP, "SHARP", "", "as-promised"),
        (SHARP, "Libfabric", "", "degraded"),
        (VERBS, "IB", "", "as-promised"),
        (VERBS, "IBext", "", "as-promised"),
        (VERBS, "SHARP", "", "as-promised"),
        (VERBS, "Socket", "", "not-rdma"),
        (ROCE, "Libfabric", "/GDRDMA", "degraded"),
        (TCP, "GPUDirectTCPX", "", "degraded"),
    ],
)
def test_plugin_is_the_promised_one(expected: Expect, transport: str, flags: str, verdict: str) -> None:
    """A promised plugin has one of its names, with any version; NVIDIA's plugin for the same devices keeps RDMA's."""
    actual = evaluate([*plugin_node("a", transport, flags=flags), *plugin_node("b", transport, 8, flags)], expected)
    assert actual.verdict == verdict, actual.sentence


def test_either_link_layer_is_rdma() -> None:
    """Where RDMA is promised and no more, RoCE and InfiniBand are both right."""
    for link in ("IB", "RoCE"):
        assert (
            evaluate([*list_rdma_lines("a", link=link), *list_rdma_lines("b", 8, link=link)], VERBS).verdict
            == "as-promised"
        )


def test_missing_plugin_is_named() -> None:
    """TCP in place of a plugin names the plugin, and where NCCL looks for it."""
    verdict = evaluate([*list_socket_lines("a"), *list_socket_lines("b", 8)], EFA)
    assert (
        "on a, b, not Libfabric or AWS Libfabric: NCCL does not use the plugin: see LD_LIBRARY_PATH" in verdict.sentence
    )
    assert (
        "NET/Libfabric is not roce"
        in evaluate([*plugin_node("a", "Libfabric"), *plugin_node("b", "Libfabric")]).sentence
    )


UNKNOWN = {
    "no line of NCCL in any log": [],
    "NCCL_DEBUG=INFO makes it name its network": ["NCCL version 2.19.3+cuda12.3"],
    "go over NVLink (MNNVL)": [format_line("a", 0, "Channel 00/0 : 4[0] -> 3[3] via P2P/MNNVL")],
    "all of NCCL's channels are inside one node": [format_line("a", 0, "Channel 00 : 0[0] -> 1[1] via P2P/IPC")],
    "NCCL chose ib, but may have used any network": [format_line("a", 0, "Using network IB")],
    "the logs of 1 node have no line about a channel": list_rdma_lines("a"),
}


@pytest.mark.parametrize("phrase", UNKNOWN)
def test_what_was_not_logged_is_unknown(phrase: str) -> None:
    """Logs that prove nothing give no verdict, never a no."""
    verdict = evaluate(UNKNOWN[phrase])
    assert (verdict.verdict, phrase in verdict.sentence) == ("unknown", True), verdict.sentence


def test_one_node_needs_no_network() -> None:
    """The verdict does not apply to a job of one node."""
    assert evaluate(list_rdma_lines("a"), node_count=1).verdict == "not-applicable"


WARNINGS = (
    "Got completion from peer 10.0.0.5<4> with status=12 opcode=129",
    "No IP interface found.",
    "Using network Socket?",
    "Call to ibv_modify_qp failed with error Invalid argument",
    "NET/IB : mlx5_0:1 Got async event : port error",
    "NET/OFI Request 0x7f completed with error. RC: 103",
    "Connect to 10.0.0.5<4> failed : Connection refused",
)


@given(st.lists(st.sampled_from(WARNINGS), min_size=1), st.sampled_from(("", " (ncclTest)")))
def test_warnings_alone_give_no_verdict(texts: list[str], function: str) -> None:
    """NCCL_DEBUG=WARN shows that something failed, and nothing about which network was used."""
    lines = [f"a:1:2 [0] transport/net_ib.cc:100{function} NCCL WARN {text}" for text in texts]
    assert evaluate(lines).verdict == "unknown"


def test_incomplete_device_list_proves_no_missing_devices() -> None:
    """While a job starts, its log has named some of its devices only: that none more were found is not known yet."""
    lines = [format_line("a", 0, "NET/gIB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'"), *list_rdma_lines("a")[-3:]]
    assert "HCAs" not in evaluate(lines).sentence


def test_table_has_the_worst_nodes_first() -> None:
    """TCP comes first, then the nodes without a channel line, with few devices, and without GPUDirect."""
    lines = [
        *list_rdma_lines("good", 0),
        *(line.replace("/GDRDMA", "") for line in list_rdma_lines("slow", 8)),
        *list_rdma_lines("half", 16, hcas=1),
        format_line("silent", 24, "Using network IB"),
        *list_socket_lines("tcp", 32),
    ]
    rows = list_node_rows(evaluate(lines, node_count=5))
    assert rows == [
        ("node", "transport", "GPUDirect", "devices"),
        ("tcp", "NET/Socket", "no", "eth0"),
        ("silent", "no channel seen", "", ""),
        ("half", "NET/IB", "yes", "mlx5_0 (1 found of 2)"),
        ("slow", "NET/IB", "no", "mlx5_0, mlx5_1 (2 found of 2)"),
        ("good", "NET/IB", "yes", "mlx5_0, mlx5_1 (2 found of 2)"),
    ]


def test_table_is_bounded() -> None:
    """Of many nodes the table has twenty; of a promise that was kept it has none."""
    lines = [line for index in range(50) for line in list_socket_lines(f"n-{index}", index)]
    rows = list_node_rows(evaluate(lines, node_count=50))
    assert (len(rows), rows[-1][0]) == (22, "30 more")
    assert list_node_rows(evaluate([*list_rdma_lines("a"), *list_rdma_lines("b", 8)])) == []
    assert list_node_rows(evaluate([])) == []


@given(st.data())
def test_nothing_is_as_promised_without_a_channel(data: st.DataObject) -> None:
    """Whichever lines are missing, the promise is kept only if each node has a line about a channel to another one."""
    lines = [*list_rdma_lines("a"), *list_rdma_lines("b", 8)]
    kept_lines = data.draw(st.lists(st.sampled_from(lines), unique=True))
    has_channels = all(
        any(line.startswith(f"{host}:") and "via NET/IB" in line for line in kept_lines) for host in "ab"
    )
    assert (evaluate(kept_lines).verdict == "as-promised") <= has_channels
