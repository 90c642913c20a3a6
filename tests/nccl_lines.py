"""Log lines as NCCL writes them, for tests of their readers."""

from collections.abc import Sequence


def say(host: str, rank: int, text: str) -> str:
    return f"{host}:{4000 + rank}:{4100 + rank} [{rank % 8}] NCCL INFO {text}"


def verbs_node(host: str, first: int = 0, link: str = "RoCE", hcas: int = 2) -> list[str]:
    """What one rank of a node logs whose channels go over all of its RDMA devices."""
    listed = " ".join(f"[{at}]mlx5_{at}:1/{link}" for at in range(hcas))
    channels = (
        say(host, first, f"Channel {at:02d}/0 : {first}[0] -> {first + 1}[0] [send] via NET/IB/{at}/GDRDMA")
        for at in range(hcas)
    )
    return [
        say(host, first, "NCCL version 2.27.3+cuda12.9"),
        say(host, first, "Bootstrap: Using eth0:10.1.0.4<0>"),
        say(host, first, f"NET/IB : Using {listed} [RO]; OOB eth0:10.1.0.4<0>"),
        say(host, first, "Using network IB"),
        say(host, first, f"comm 0x5581 rank {first} nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0"),
        *channels,
        say(host, first, f"Channel 01/0 : {first}[0] -> {first + 1}[1] via P2P/CUMEM/read"),
    ]


def socket_node(host: str, first: int = 0, nics: Sequence[str] = ("eth0",)) -> list[str]:
    """What one rank of a node logs that has found no RDMA device."""
    listed = " ".join(f"[{at}]{nic}:10.1.{at}.4<0>" for at, nic in enumerate(nics))
    channels = (
        say(host, first, f"Channel {at:02d}/0 : {first}[0] -> {first + 8}[0] [send] via NET/Socket/{at}")
        for at in range(len(nics))
    )
    return [
        say(host, first, "NET/IB : No device found."),
        say(host, first, f"NET/Socket : Using {listed}"),
        say(host, first, "Using network Socket"),
        *channels,
    ]
