"""A benchmark: the same job over several fabrics, and the bandwidth that each one reached."""

from pydantic import Field

from torchyard.model.base import FrozenModel
from torchyard.model.fabric import FabricVerdict
from torchyard.model.run import End


class BandwidthPoint(FrozenModel):
    """The bandwidth of one collective at one size, in GB/s of 10^9 bytes, as nccl-tests defines them."""

    collective: str = Field(description="all_reduce, all_gather ...")
    size: int = Field(ge=0, description="bytes")
    algbw: float | None
    busbw: float


class Curve(FrozenModel):
    """The measurements of one run over one fabric."""

    fabric: str = Field(description="its name in the hardware file; `default` for a profile without hardware")
    run: str
    end: End
    sentence: str = Field(description="how the run ended")
    ranks: int = Field(ge=1)
    nodes: int = Field(ge=1, description="machines: two agents on one of them are one node")
    machines: tuple[str, ...] = Field((), description="the nodes or hosts that it ran on")
    points: tuple[BandwidthPoint, ...] = Field((), description="in the order in which they were measured")
    floor: float | None = Field(None, description="the hardware file's min_busbw for this fabric, in GB/s")
    verdict: FabricVerdict = Field(description="whether the fabric was the promised one")
    folder: str = ""


class Benchmark(FrozenModel):
    """The curves of one profile, the first one to be compared with the others."""

    profile: str
    hardware: str = Field("", description="the hardware file's description of the shape; empty without one")
    line_rate: float | None = Field(None, description="GB/s per node, 10^9 bytes")
    statistic: str = Field(description="which number of several trials is compared")
    curves: tuple[Curve, ...]
