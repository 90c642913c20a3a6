"""Log lines as NCCL writes them, for tests of their readers."""

from collections.abc import Sequence


def format_line(host: str, rank: int, text: str) -> str:
    return f"{host}:{4000 + rank}:{4100 + rank} [{rank % 8}] NCCL INFO {text}"


def list_rdma_lines(host: str, first: int = 0, link: str = "RoCE", hcas: int = 2) -> list[str]:
    """The log of one rank whose channels use all RDMA devices of its node."""
    devices = " ".join(f"[{index}]mlx5_{index}:1/{link}" for index in range(hcas))
    channels = (
        format_line(
            host, first, f"Channel {index:02d}/0 : {first}[0] -> {first + 1}[0] [send] via NET/IB/{index}/GDRDMA"
        )
        for index in range(hcas)
    )
    return [
        format_line(host, first, "NCCL version 2.27.3+cuda12.9"),
        format_line(host, first, "Bootstrap: Using eth0:10.1.0.4<0>"),
        format_line(host, first, f"NET/IB : Using {devices} [RO]; OOB eth0:10.1.0.4<0>"),
        format_line(host, first, "Using network IB"),
        format_line(host, first, f"comm 0x5581 rank {first} nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0"),
        *channels,
        format_line(host, first, f"Channel 01/0 : {first}[0] -> {first + 1}[1] via P2P/CUMEM/read"),
    ]


def list_socket_lines(host: str, first: int = 0, nics: Sequence[str] = ("eth0",)) -> list[str]:
    """The log of one rank that has found no RDMA device, and uses sockets."""
    interfaces = " ".join(f"[{index}]{nic}:10.1.{index}.4<0>" for index, nic in enumerate(nics))
    channels = (
        format_line(host, first, f"Channel {index:02d}/0 : {first}[0] -> {first + 8}[0] [send] via NET/Socket/{index}")
        for index in range(len(nics))
    )
    return [
        format_line(host, first, "NET/IB : No device found."),
        format_line(host, first, f"NET/Socket : Using {interfaces}"),
        format_line(host, first, "Using network Socket"),
        *channels,
    ]
