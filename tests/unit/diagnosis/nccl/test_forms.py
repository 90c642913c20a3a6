"""The forms of NCCL's log lines, as its printf formats make them over many versions and plugins."""

import pytest

from torchyard.diagnosis.nccl import forms

CHANNELS = {
    "Ring 00 : 16 -> 0 [receive] via NET/Socket/0": ("Socket", "0", "", False),
    "Ring 03 : 15[41000] -> 0[1b000] [receive] via NET/IB/0/GDRDMA": ("IB", "0", "/GDRDMA", False),
    "Channel 00 : 31[cb000] -> 0[7000] [receive] via NET/IB/1": ("IB", "1", "", False),
    "Channel 05/0 : 8[0] -> 0[0] [send] via NET/IB/0(12)/GDRDMA/Shared": ("IB", "0", "/GDRDMA/Shared", False),
    "Channel 05/1 : 8[0] -> 0[0] [send] via NET/IB/3/GDRDMA(PCI)/Shared": ("IB", "3", "/GDRDMA(PCI)/Shared", False),
    "Channel 00/0 : 8[0] -> 0[0] [receive] via NET/AWS Libfabric/3/GDRDMA": ("AWS Libfabric", "3", "/GDRDMA", False),
    "Channel 00/0 : 1[0] -> 0[0] [send] via NET/NCCL RDMA Plugin v10/0": ("NCCL RDMA Plugin v10", "0", "", False),
    "Channel 02/0 : 1[c6] -> 4[c1] [send] via NET/Socket/1 comm 0x9e4d nRanks 08": ("Socket", "1", "", False),
    "CollNet 00/0 : 3 [receive] via COLLNET/SHARP/0/GDRDMA(PCI)": ("SHARP", "0", "/GDRDMA(PCI)", False),
    "Coll 00 : 3 [send] via COLLNET/SHARP/0": ("SHARP", "0", "", False),
    "Channel 00/0 : 8[0] -> 0[0] [send] via NET/IB/0/GDR": ("IB", "0", "/GDR", False),
    "Channel 00/0 : 8[0] -> 0[0] [send] via NET/IB/0host-1:5:6": ("IB", "0", "", True),
    "Channel 00/0 : 8[0] -> 0[0] [send] via NET/IB/0 and more": ("IB", "0", "", True),
}
LOCAL = (
    "Ring 00 : 0[1b000] -> 7[41000] via direct shared memory",
    "Channel 00 : 0[0] -> 1[1] via P2P/direct pointer/read",
    "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/CE",
    "Channel 01 : 3[3] -> 4[4] via SHM/direct/direct",
)


@pytest.mark.parametrize("line", CHANNELS)
def test_channel_to_another_node_is_read(line: str) -> None:
    """Transport, device and what follows it, and whether the end of the line is another's."""
    match = forms.CHANNEL.search(line)
    assert match
    assert (match["transport"], match["device"], match["flags"], bool(match["spliced"])) == CHANNELS[line]


@pytest.mark.parametrize("line", LOCAL)
def test_channel_within_a_node_is_read(line: str) -> None:
    """Peer access and shared memory stay within a node."""
    match = forms.CHANNEL.search(line)
    assert match
    assert (match["transport"], bool(match["local"])) == (None, True)


@pytest.mark.parametrize("end", range(len("Channel 00/0 : 8[0] -> 0[0] [send] via NET/IB/")))
def test_channel_without_its_device_does_not_match(end: int) -> None:
    """A line that is cut before the device proves nothing, least of all that the channel stays within its node."""
    assert not forms.CHANNEL.search("Channel 00/0 : 8[0] -> 0[0] [send] via NET/IB/"[:end])


PREFIXES = {
    "gpu-1:42:43 [0] NCCL INFO x": "gpu-1",
    "gpu-1:42 [0] NCCL INFO x": "gpu-1",
    "<cluster_name>:42:43 [7] NCCL INFO x": "<cluster_name>",
    "gpu-1:42:43 [-1] NCCL INFO x": "gpu-1",
    "[2026-01-01 12:08:32] gpu-1:42:43 [0] transport/net_ib.cc:93 NCCL WARN x": "gpu-1",
    "gpu-1:42:43 [0] net_ib/p2p.cc:100 (ncclIbTest) NCCL WARN x": "gpu-1",
    "gpu-1:42:43 [0] int handle(nccl_net_ofi_context_t*, fid_cq*):46 NCCL WARN x": "gpu-1",
    "gpu-1:42:43 [0] 12.345678 ncclInit:7 NCCL TRACE x": "gpu-1",
    "12:30:45 [0] NCCL INFO x": None,
    "[2026-01-15 02:30:52] NCCL INFO x": None,
}


@pytest.mark.parametrize("line", PREFIXES)
def test_prefix_names_the_host(line: str) -> None:
    """The prefixes of many versions name the host; a time of day is not a host."""
    match = forms.LINE_PREFIX.search(line)
    assert match
    assert match["host"] == PREFIXES[line]


VERSIONS = {
    "NCCL version 2.27.3+cuda12.9": "2.27.3+cuda12.9",
    "RCCL version 2.13.4+hip5.4 HEAD:2f6d59e+": "2.13.4+hip5.4",
    "RCCL version : 2.26.6-HEAD:f224e2c": "2.26.6",
    "NCCL version 2.8.3+cudaCUDA_MAJOR.CUDA_MINOR": "2.8.3",
}


@pytest.mark.parametrize("line", VERSIONS)
def test_version_is_read(line: str) -> None:
    """NCCL's and RCCL's own version, without the commit it was built from."""
    assert forms.VERSION.findall(line) == [VERSIONS[line]]


def test_merged_devices_are_listed() -> None:
    """NCCL 2.22 and 2.23 list merged devices as groups."""
    line = "NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [RO]; OOB eth0:10.0.0.1<0>"
    assert forms.HCA.findall(line) == [("0", "mlx5_0", "RoCE"), ("1", "mlx5_1", "RoCE")]
    assert [number for number, _ in forms.MERGED_DEVICE.findall(line)] == ["0"]


@pytest.mark.parametrize("name", forms.HINTS)
def test_hint_is_a_startup_phrase(name: str) -> None:
    """Lines with a reason for TCP are found in a block, too."""
    line = {
        "libibverbs": "Failed to open libibverbs.so[.1]",
        "IB_DISABLE": "NCCL_IB_DISABLE set by environment to 1.",
        "NCCL_NET": "NCCL_NET set by environment to Socket",
        "no device": "NET/IB : No device found.",
        "no provider": "NET/OFI No eligible providers were found",
    }[name]
    assert forms.HINTS[name].search(line)
    assert any(
        needle in line.encode() and pattern.search(line.encode()) for needle, pattern in forms.STARTUP_PHRASES.items()
    )
    assert not forms.HINTS["IB_DISABLE"].search("NCCL_IB_DISABLE set by environment to 0.")
