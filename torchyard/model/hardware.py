"""A shape of node, as its file in profiles/hardware says it: labels, GPUs, line rate, ways to use its network."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from torchyard.model.base import FrozenModel, Text
from torchyard.model.pod import Mount, Pod


class Gpus(FrozenModel):
    """The GPUs of a shape."""

    resource: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="by its full name: nvidia.com/gpu")
    per_node: int = Field(ge=1)


class Expect(FrozenModel):
    """What NCCL's log must show for a fabric to be in use."""

    transport: Literal["roce", "infiniband", "socket"]
    hcas: int | None = Field(None, ge=1, description="a node")
    gdr: bool | None = Field(None, description="GPUDirect RDMA")


class Fabric(FrozenModel):
    """One way to use a shape's network."""

    about: str
    pod: Pod = Pod()
    mounts: dict[str, Mount] = Field({}, description="what is mounted in the pods, by path")
    env: dict[str, Text] = Field({})
    find_gid: bool = Field(
        False, description="NCCL_IB_GID_INDEX is found in each pod, for the ports of NCCL_IB_HCA; else NCCL chooses"
    )
    compute_domain: str | None = Field(
        None, description="a ComputeDomain of the job's namespace: each pod claims the channel of the same name"
    )
    device_plugin: str | None = Field(None, description="label of the DaemonSet that offers `pod.resources`")
    expect: Expect

    @model_validator(mode="after")
    def one_gid(self) -> "Fabric":
        if self.find_gid and ("NCCL_IB_HCA" not in self.env or "NCCL_IB_GID_INDEX" in self.env):
            raise ValueError("find_gid: needs env.NCCL_IB_HCA, whose ports are read, and no env.NCCL_IB_GID_INDEX")
        return self


class Hardware(FrozenModel):
    """One shape of node: its labels, its GPUs, its line rate and its fabrics."""

    about: str
    source: str = Field(description="where the values were read")
    match: dict[str, Text] = Field(description="labels of its nodes; {} where they have none of their own")
    gpus: Gpus
    line_rate: Annotated[float, Field(gt=0)] | None = Field(
        description="GB/s a node, 10^9 bytes; null, with the reason beside it, where nobody has published it"
    )
    fabrics: dict[str, Fabric]
