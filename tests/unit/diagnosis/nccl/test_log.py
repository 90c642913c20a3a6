"""NCCL's log lines: the network that was found, chosen and used."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.inputs.nccl_lines import format_line, list_rdma_lines, list_socket_lines
from torchyard.diagnosis.nccl.log import NcclLogReader, parse_nccl_log
from torchyard.model.fabric import FabricReading

PROBE = '{"torchyard_rdma": {"lacks": ["the pod has no /dev/infiniband/uverbs*: mount it", "no port"], "ports": []}}'


def test_probe_of_a_pod_belongs_to_its_node() -> None:
    """The probe's findings are part of the node, whether its log is read by lines or by blocks."""
    by_line = NcclLogReader()
    by_block = NcclLogReader()
    assert by_line.process_node_line("worker-1", PROBE)
    assert by_block.process_block("worker-1", f"noise\n{PROBE}\nnoise\n".encode())
    (node,) = by_line.build_reading().nodes
    assert node.missing == ("the pod has no /dev/infiniband/uverbs*: mount it", "no port")
    assert by_block.build_reading() == by_line.build_reading()


def test_channels_name_the_devices() -> None:
    """The devices that carry channels come from the list, by their numbers; so do link layer and version."""
    reading = parse_nccl_log([*list_rdma_lines("a"), *list_rdma_lines("b", 8)])
    assert (reading.transport, reading.gdr, reading.nccl, reading.ranks) == ("roce", "yes", "2.27.3+cuda12.9", 16)
    assert [(node.node, node.used, node.links) for node in reading.nodes] == [
        ("a", ("mlx5_0", "mlx5_1"), ("RoCE",)),
        ("b", ("mlx5_0", "mlx5_1"), ("RoCE",)),
    ]
    assert reading.out_of_band == ("eth0",)
    assert reading.nodes[0].evidence[0].endswith("via NET/IB/0/GDRDMA")


def test_network_that_was_only_loaded_carries_nothing() -> None:
    """Within one node NCCL lists its devices and chooses a network, and uses neither."""
    lines = [line for line in list_rdma_lines("a") if "via NET" not in line and "nNodes" not in line]
    assert parse_nccl_log(lines).transport == "intra-node-only"


def test_nodes_that_are_all_mixed_are_mixed() -> None:
    """If every node uses GPUDirect on some channels only, the job's GPUDirect is mixed."""
    lines: list[str] = []
    for host in ("a", "b"):
        for device, flag in ((0, "/GDRDMA"), (1, "")):
            lines.append(format_line(host, 0, f"Channel 0{device}/0 : 8[0] -> 0[0] [send] via NET/IB/{device}{flag}"))
    reading = parse_nccl_log(lines)
    assert ([node.gdr for node in reading.nodes], reading.gdr) == (["mixed", "mixed"], "mixed")


CHANNELS = {
    "Channel 00 : 31[cb000] -> 0[7000] [receive] via NET/IB/1": ("ib", "no"),
    "Ring 00 : 16 -> 0 [receive] via NET/Socket/0": ("socket", "no"),
    "Channel 00/0 : 8[0] -> 0[0] [receive] via NET/AWS Libfabric/3/GDRDMA": ("plugin:AWS Libfabric", "yes"),
    "Channel 05/0 : 8[0] -> 0[0] [send] via NET/IB/0(1)/GDRDMA/Shared": ("ib", "yes"),
    "Channel 05/0 : 8[0] -> 0[0] [send] via NET/IBext_v8/0/GDRDMA": ("plugin:IBext_v8", "yes"),
    "Channel 05/0 : 8[0] -> 0[0] [send] via NET/FasTrak/0(7)": ("plugin:FasTrak", "no"),
    "Channel 01 : 3[3] -> 4[4] via SHM/direct/direct": ("intra-node-only", "unknown"),
    "Channel 01/0 : 0 [send] via COLLNET/SHARP/0/GDRDMA": ("plugin:SHARP", "yes"),
}
PREFIXES = ("", "[1,0]<stdout>:", "[default0]:", " 3: ", "\x1b[36m(Worker pid=3)\x1b[0m ", "2026-01-01T00:00:00Z ")


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("channel", CHANNELS)
def test_channel_is_read(channel: str, prefix: str) -> None:
    """The forms of many versions and plugins are read behind the prefixes of many launchers, with CRs at line ends."""
    line = format_line("a", 0, channel)
    reading = parse_nccl_log([f"{prefix}{line}\r"])
    assert all(node.evidence in ((), (line,)) for node in reading.nodes)
    assert (reading.transport, reading.gdr) == CHANNELS[channel]


def test_sockets_over_infiniband_are_sockets() -> None:
    """An interface named like an InfiniBand device carries TCP."""
    reading = parse_nccl_log(
        [*list_socket_lines("a", nics=("ib1", "ib4")), *list_socket_lines("b", 8, nics=("ib1", "ib4"))]
    )
    assert (reading.transport, reading.nodes[0].used, reading.nodes[0].hcas) == ("socket", ("ib1", "ib4"), ())


def test_spliced_lines_add_no_host() -> None:
    """Two lines that were written over each other are read as far as they are whole, and add no host."""
    complete_lines = list_rdma_lines("gpu-1")
    spliced_line = format_line("gpu-1", 0, "comm 0x1 rank 0 nra") + format_line(
        "gpu-1", 1, "Channel 00/0 : 1[1] -> 9[1] [send] via NET/IB/0"
    )
    assert {node.node for node in parse_nccl_log([*complete_lines, spliced_line, f"12{complete_lines[3]}"]).nodes} == {
        "gpu-1"
    }


@pytest.mark.parametrize(("end", "gdr"), [("", "unknown"), (" ", "no"), ("/GDRDMA", "yes")])
def test_channel_whose_end_is_overwritten_proves_no_lack(end: str, gdr: str) -> None:
    """If the next message starts immediately after a channel's device, it may have overwritten the GPUDirect flag."""
    channel = format_line("<gpu-1>", 0, f"Channel 00/0 : 8[0] -> 0[0] [send] via NET/IB/0{end}")
    next_message = format_line("<gpu-1>", 1, "comm 0x1 rank 1 nRanks 16 nNodes 2")
    reading = parse_nccl_log([channel + next_message])
    assert (reading.transport, reading.gdr, reading.ranks) == ("ib", gdr, 16)


def test_blocks_and_lines_give_the_same_reading() -> None:
    """A node's log read in blocks gives the same reading as its lines, however often they repeat."""
    lines = list_rdma_lines("worker-0")
    reader = NcclLogReader()
    for _ in range(3):
        reader.process_block("worker-0", "\n".join([*lines * 5, ""]).encode())
    assert reader.build_reading() == parse_nccl_log(lines)


def test_proof_is_a_line_of_the_log() -> None:
    """A phrase may be the beginning of a longer one: the evidence is the line that ends with it."""
    first, second = (
        format_line("a", 0, f"Channel 0{channel} : 0[0] -> 8[0] [send] via NET/IB/{channel}") for channel in (12, 1)
    )
    reader = NcclLogReader()
    reader.process_block("a", f"{first}\n{second}\n".encode())
    assert reader.build_reading().nodes[0].evidence[0] in (first, second)
    reader = NcclLogReader()
    reader.process_block("a", f"{first}5\n{first}\n".encode())
    assert set(reader.build_reading().nodes[0].evidence) <= {f"{first}5", first}


def test_log_without_nccl_gives_an_empty_reading() -> None:
    """A program that does not use NCCL leaves everything unknown."""
    reader = NcclLogReader()
    reader.process_block("worker-0", b"Using network drive\nepoch 1 of 3\n")
    assert reader.build_reading() == FabricReading()


def test_processes_may_list_different_devices() -> None:
    """Each process of a node may have been given an HCA of its own: together they have all."""
    lines = [
        line
        for rank in (0, 1)
        for line in (
            format_line("a", rank, f"NET/IB : Using [0]mlx5_{rank}:1/IB [RO]; OOB eth0:10.0.0.1<0>"),
            format_line("a", rank, f"Channel 00/0 : {rank}[{rank}] -> 8[0] [send] via NET/IB/0"),
        )
    ]
    (node,) = parse_nccl_log(lines).nodes
    assert (node.used, node.hcas, node.is_hca_list_complete) == (("mlx5_0", "mlx5_1"), ("mlx5_0", "mlx5_1"), True)


def test_link_layer_is_that_of_the_devices_in_use() -> None:
    """A RoCE port beside InfiniBand that carries nothing does not name the network."""
    device_list = format_line("a", 0, "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_9:1/RoCE ; OOB ib0:10.0.0.1<0>")
    reading = parse_nccl_log([device_list, format_line("a", 0, "Channel 00 : 1[0] -> 0[0] [receive] via NET/IB/0")])
    assert (reading.transport, reading.nodes[0].links) == ("ib", ("IB",))


def test_interfaces_of_sockets_are_not_hcas() -> None:
    """NCCL logs interfaces as HCAs too."""
    (node,) = parse_nccl_log([format_line("a", 0, "NET/Socket : GPU Direct RDMA Disabled for HCA 0 'eth0'")]).nodes
    assert (node.hcas, node.nics) == ((), ("eth0",))


def test_merged_devices_are_named_one_by_one() -> None:
    """A device that NCCL has merged from two is both of them."""
    lines = [
        format_line("a", 0, "NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=400000 ndevs=2"),
        format_line("a", 0, "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/2/GDRDMA"),
    ]
    assert parse_nccl_log(lines).nodes[0].used == ("mlx5_0", "mlx5_1")


def test_link_layer_of_a_virtual_device_is_that_of_its_physical_ones() -> None:
    """NCCL 2.26 makes a virtual device of each physical one, without a link layer: RoCE stays RoCE."""
    lines = [
        format_line("a", 0, "NET/IB: [0] mlx5_0:uverbs0:1/RoCE provider=Mlx5 speed=400000 pciPath=/sys/devices ar=0"),
        format_line("a", 0, "NET/IB : Made virtual device [0] name=mlx5_0 speed=400000 ndevs=1"),
        format_line("a", 0, "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'"),
        format_line("a", 0, "Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA"),
    ]
    reading = parse_nccl_log(lines)
    assert (reading.transport, reading.nodes[0].links) == ("roce", ("RoCE",))
    reader = NcclLogReader()
    reader.process_block("a", "".join(f"{line}\n" for line in lines).encode())
    assert reader.build_reading().transport == "roce"


NETWORKS = {
    "mnnvl": ["Channel 00/0 : 4[0] -> 3[3] via P2P/MNNVL"],
    "intra-node-only": ["comm 0x1 rank 0 nRanks 8 nNodes 1 localRanks 8", "Using network IB"],
    "plugin:IBext_v8": [
        "CollNet 00/0 : 0 [receive] via COLLNET/SHARP/0/GDRDMA",
        "Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IBext_v8/0/GDRDMA",
    ],
    "roce": ["NET/IB : Using [0]ionic_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>", "Initialized NET plugin IB"],
    "unknown": ["Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", "comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8"],
}


@pytest.mark.parametrize("network", NETWORKS)
def test_network_is_named(network: str) -> None:
    """Channels name the network; NVLink between nodes is neither RDMA nor TCP."""
    assert parse_nccl_log([format_line("a", 0, text) for text in NETWORKS[network]]).transport == network


def test_provider_of_libfabric_is_read() -> None:
    """The plugin's name is the same whatever libfabric uses below it."""
    lines = [
        format_line("a", 0, f"NET/OFI Selected {letter}rovider is tcp, fabric is 10.0.0.0/8") for letter in ("P", "p")
    ]
    assert [parse_nccl_log([line]).nodes[0].provider for line in lines] == ["tcp", "tcp"]


def test_rank_count_of_rccl_is_read() -> None:
    """RCCL adds the communicator to each channel line."""
    line = format_line("a", 0, "Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0/GDRDMA comm 0x95cdeb0 nRanks 08")
    reader = NcclLogReader()
    assert [reader.process_node_line("a", line), reader.process_node_line("a", line.replace("0x95", "0x96"))] == [
        True,
        False,
    ]
    assert (reader.build_reading().ranks, reader.build_reading().gdr) == (8, "yes")


def test_cut_line_proves_no_missing_feature() -> None:
    """A log that ends within a line proves neither that GPUDirect was off nor which HCAs were missing."""
    lines = ("Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0", "NET/IB : Using [0]mlx5_0:1/RoCE [1]ml")
    readers = [NcclLogReader(), NcclLogReader()]
    for reader, text in zip(readers, lines, strict=True):
        reader.process_block("a", format_line("a", 0, text).encode())
    assert (readers[0].build_reading().gdr, readers[1].build_reading().nodes[0].is_hca_list_complete) == (
        "unknown",
        False,
    )


def test_phrase_in_a_long_line_is_found() -> None:
    """A progress bar may have written a megabyte before NCCL's message, without a line end."""
    reader = NcclLogReader()
    reader.process_block(
        "a", b"\r 50%|####" * 100_000 + format_line("a", 0, "Ring 00 : 8 -> 0 [send] via NET/Socket/0").encode()
    )
    assert reader.build_reading().transport == "socket"


@given(st.data())
def test_any_cut_is_read(data: st.DataObject) -> None:
    """A log that is cut at any byte is read, and proves no channel that is not in it."""
    text = "\n".join([*list_rdma_lines("a"), *list_socket_lines("b", 8)]).encode()
    start = data.draw(st.integers(0, len(text)))
    text_cut = text[start : data.draw(st.integers(start, len(text)))]
    reading = parse_nccl_log(text_cut.decode().split("\n"))
    assert any(node.transports for node in reading.nodes) <= (b"via NET/" in text_cut)
    reader = NcclLogReader()
    reader.process_block("a", text_cut)
    assert (reader.build_reading().gdr == "no") <= (b"via NET/Socket/" in text_cut)


@given(st.data())
def test_line_within_a_line_changes_nothing(data: st.DataObject) -> None:
    """Where another process writes into the middle of a line, neither a host nor a lack of GPUDirect is made up."""
    lines = [*list_rdma_lines("gpu-a") * 2, *list_rdma_lines("gpu-b", 8) * 2]
    index = data.draw(st.integers(0, len(lines) - 1))
    offset = data.draw(st.integers(0, len(lines[index])))
    spliced_lines = [lines[index][:offset] + data.draw(st.sampled_from(lines)), lines[index][offset:]]
    reading = parse_nccl_log([*lines[:index], *spliced_lines, *lines[index + 1 :]])
    assert (reading.transport, reading.gdr, {node.node for node in reading.nodes}) == (
        "roce",
        "yes",
        {"gpu-a", "gpu-b"},
    )


@given(st.permutations(range(4)), st.sampled_from(PREFIXES), st.booleans())
def test_order_and_prefix_change_nothing(order: list[int], prefix: str, colour: bool) -> None:
    """Neither the order of the nodes nor prefixes, colours and CRs change what is read."""
    lines_by_node = [list_rdma_lines(f"n-{index}", 8 * index) for index in range(4)]
    lines = [f"{prefix}{line}\r" for index in order for line in lines_by_node[index]]
    if colour:
        lines = [line.replace("NCCL INFO", "\x1b[01;31m\x1b[KNCCL\x1b[m INFO") for line in lines]
    reading = parse_nccl_log(lines)
    unprefixed = parse_nccl_log([line for log in lines_by_node for line in log])
    assert sorted(reading.nodes, key=lambda node: node.node) == list(unprefixed.nodes)
    assert reading.model_copy(update={"nodes": ()}) == unprefixed.model_copy(update={"nodes": ()})
