"""The network between the nodes, as NCCL's own log lines show it."""

from typing import Literal

from pydantic import Field

from torchyard.model.base import FrozenModel

Verdict = Literal["as-promised", "degraded", "not-rdma", "not-applicable", "unknown"]


class NodeFabric(FrozenModel):
    """The network of one node, as its processes logged it."""

    node: str
    transports: tuple[str, ...] = Field(
        (), description="of the channels to other nodes: IB, Socket, or a plugin's name"
    )
    gdr: Literal["yes", "no", "mixed", "unknown"] = Field("unknown", description="GPUDirect RDMA on those channels")
    used: tuple[str, ...] = Field((), description="devices and interfaces that carry channels")
    hcas: tuple[str, ...] = Field((), description="RDMA devices that NCCL has found")
    is_hca_list_complete: bool = Field(False, description="whether `hcas` is NCCL's complete list")
    links: tuple[str, ...] = Field((), description="link layers of those that carry channels, if known, else of all")
    provider: str = Field("", description="libfabric's, where that carries channels: efa, cxi, tcp")
    hints: tuple[str, ...] = Field((), description="why NCCL may use TCP there: libibverbs, IB_DISABLE, NCCL_NET, ...")
    missing: tuple[str, ...] = Field(
        (), description="what the pod lacks for RDMA, as checked before the program started"
    )
    nics: tuple[str, ...] = Field((), description="interfaces that NCCL has found for sockets")
    evidence: tuple[str, ...] = Field((), description="the lines that prove it, one for each transport")


class FabricReading(FrozenModel):
    """The network of a job, as far as its logs show it; without a verdict."""

    nccl: str = Field("", description="NCCL's version; empty if no line contains it")
    transport: str = Field(
        "unknown",
        description="between the nodes: roce, ib, socket, plugin:NAME, mnnvl, mixed, intra-node-only, or unknown",
    )
    gdr: Literal["yes", "no", "mixed", "unknown"] = "unknown"
    out_of_band: tuple[str, ...] = Field((), description="interfaces over which the ranks find each other")
    ranks: int | None = None
    node_count: int | None = Field(None, description="as NCCL counts them")
    nodes: tuple[NodeFabric, ...] = ()


class FabricVerdict(FrozenModel):
    """Whether the network was the promised one, with the evidence."""

    verdict: Verdict
    sentence: str
    proof: str = Field("", description="a log line about a channel; if the promise is broken by TCP, one over TCP")
    reading: FabricReading
    hcas: int | None = Field(
        None, description="the promised number of HCAs per node; None if the hardware file promises none"
    )
