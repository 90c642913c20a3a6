"""A node shape, as a file in profiles/hardware describes it: labels, GPUs, line rate and fabrics."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from torchyard.model.base import FrozenModel, Text
from torchyard.model.pod import Mount, Pod


class Gpus(FrozenModel):
    """The GPUs of a node."""

    resource: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="the full resource name: nvidia.com/gpu")
    per_node: Annotated[int, Field(ge=1)] | None = Field(
        description="the number of GPUs; null, with a comment, if it differs between clusters"
    )


OnFabric = Literal["report", "fail"]


class Expect(FrozenModel):
    """The network that NCCL's log must show for a fabric to be in use."""

    transport: Literal["roce", "infiniband", "rdma", "plugin", "socket"] = Field(
        description="rdma: RoCE or InfiniBand; plugin: one that does not use NCCL's own verbs"
    )
    plugins: tuple[str, ...] = Field(
        (), description="names of NCCL's network plugins, any of which is accepted; NAME also matches NAME_v8"
    )
    hcas: int | None = Field(None, ge=1, description="the number of HCAs per node")
    gdr: bool | None = Field(None, description="GPUDirect RDMA")
    min_busbw: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="GB/s, 10^9 bytes: the source's floor for the bus bandwidth of all_reduce over 2 nodes. Sources "
        "differ in what they compare with it: OCI's is for nccl-tests' average over 1G to 16G",
    )

    @model_validator(mode="after")
    def validate_plugins(self) -> "Expect":
        if self.transport == "plugin" and not self.plugins:
            raise ValueError(
                "plugins: transport: plugin requires the plugin's name, as NCCL's log prints it after `via NET/`"
            )
        if self.transport == "socket" and (self.plugins or self.min_busbw):
            raise ValueError(
                "plugins, min_busbw: cannot be combined with transport: socket, which is TCP without a plugin"
            )
        return self


class Fabric(FrozenModel):
    """One way to use a shape's network."""

    about: str = Field(description="one line for the list of fabrics")
    pod: Pod = Field(Pod(), description="the settings that the pods need, as in a profile")
    mounts: dict[str, Mount] = Field({}, description="the volumes of the pods, by path")
    env: dict[str, Text] = Field({}, description="environment variables; those of the profile take precedence")
    find_gid: bool = Field(
        False, description="find NCCL_IB_GID_INDEX in each pod, for the ports of NCCL_IB_HCA; if false, NCCL chooses it"
    )
    compute_domain: str | None = Field(
        None, description="a ComputeDomain in the job's namespace: each pod claims the channel of the same name"
    )
    claim_templates: tuple[str, ...] = Field(
        (), description="ResourceClaimTemplates in the job's namespace: each pod claims devices by each of them"
    )
    setup: tuple[Text, ...] = Field((), description="shell commands in each pod, before the profile's own `setup`")
    device_plugin: str | None = Field(None, description="label of the DaemonSet that provides `pod.resources`")
    expect: Expect = Field(description="the values that NCCL's log must show if the fabric is used")

    @model_validator(mode="after")
    def validate_gid(self) -> "Fabric":
        if self.find_gid and ("NCCL_IB_HCA" not in self.env or "NCCL_IB_GID_INDEX" in self.env):
            raise ValueError(
                "find_gid: requires env.NCCL_IB_HCA, which names the ports, and cannot be combined with "
                "env.NCCL_IB_GID_INDEX"
            )
        return self


class Hardware(FrozenModel):
    """One node shape: its labels, GPUs, line rate and fabrics."""

    name: str = Field("", description="the file's path below profiles/hardware, without .yaml")
    about: str = Field(description="one line for the list of shapes")
    source: str = Field(description="the source of the values")
    match: dict[str, Text] = Field(description="the labels of its nodes; {} if they have no specific labels")
    gpus: Gpus = Field(description="the GPUs of a node")
    line_rate: Annotated[float, Field(gt=0)] | None = Field(
        description="GB/s per node, 10^9 bytes; null, with a comment, if it is not published"
    )
    fabrics: dict[str, Fabric] = Field(description="the fabrics, by name: a profile chooses one")
