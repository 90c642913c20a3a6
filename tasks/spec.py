"""What the user writes: the nouns of a profile, and how their values are read."""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, WithJsonSchema, model_validator

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Noun(BaseModel):
    """A frozen value; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)  # most processes use a few of them


def read_duration(value: object) -> object:
    """`30m`, `1.5h`, `90s` or plain seconds, as seconds."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", value)):
        return float(match[1]) * SECONDS[match[2]]
    if isinstance(value, str):
        raise ValueError("a duration is a number with a unit: 90s, 30m, 12h, 2d")
    return value


Duration = Annotated[
    float,
    BeforeValidator(read_duration),
    Field(gt=0),
    WithJsonSchema({"type": ["string", "number"], "pattern": r"^\s*\d+(\.\d+)?\s*(ms|s|m|h|d)\s*$"}),
]


def read_text(value: object) -> object:
    """A number in YAML stands for its digits; a bare yes, no, on or off does not say which text it means."""
    if isinstance(value, bool):
        raise ValueError(f'{str(value).lower()} is a boolean in YAML: put the text in quotes, such as "1" or "yes"')
    return str(value) if isinstance(value, int | float) else value


Text = Annotated[str, BeforeValidator(read_text), WithJsonSchema({"type": ["string", "number"]})]


def read_nodes(value: object) -> object:
    """`2` is short for `{min: 2, max: 2}`."""
    if isinstance(value, int) and value < 1:
        raise ValueError("a number of nodes is at least 1")
    return {"min": value, "max": value} if isinstance(value, int) and not isinstance(value, bool) else value


class NodeRange(Noun):
    """How many nodes: exactly `min` where both are the same, else elastic."""

    min: int = Field(ge=1)
    max: int = Field(ge=1)

    @model_validator(mode="after")
    def ordered(self) -> "NodeRange":
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, max is {self.max}: min must not be larger than max")
        return self

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}:{self.max}"


COUNT = {"type": "integer", "minimum": 1}
Nodes = Annotated[
    NodeRange,
    BeforeValidator(read_nodes),
    WithJsonSchema(
        {"anyOf": [COUNT, {"type": "object", "properties": {"min": COUNT, "max": COUNT}, "required": ["min", "max"]}]}
    ),
]


class Deadlines(Noun):
    """When a run is given up. `lease`: how long a job lives on when nobody looks after it."""

    start: Duration = Field(600.0, description="until every node has joined")
    run: Duration = Field(86400.0, description="until the job has ended")
    silence: Duration = Field(1800.0, description="without a single new line in any log")
    lease: Duration = Field(1800.0, description="without a living launcher")
    grace: Duration = Field(10.0, description="between asking a process to stop and killing it")


# --- what only jobs in pods have ------------------------------------------------------------------------------------


def read_quantity(value: object) -> object:
    """`64`, `500m`, `512Gi`: a number of Kubernetes, as its text."""
    text = str(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else ""
    if not re.fullmatch(r"\d+(\.\d+)?(m|[kMGTPE]i?|Ki)?", text):
        raise ValueError("an amount is a number with or without a unit of Kubernetes: 64, 500m, 512Gi")
    return text


Quantity = Annotated[str, BeforeValidator(read_quantity), WithJsonSchema({"type": ["string", "number"]})]
PLAIN_RESOURCES = ("gpus", "cpu", "memory", "ephemeral-storage")


def read_resources(value: object) -> object:
    """`gpus`, `cpu`, `memory`, `ephemeral-storage`, or a resource by its full name, such as rdma/rdma."""
    for name in value if isinstance(value, dict) else ():
        if name not in PLAIN_RESOURCES and not re.fullmatch(r"hugepages-\w+|[\w.-]+/[\w.-]+", str(name)):
            raise ValueError(f"there is no {name}: {', '.join(PLAIN_RESOURCES)}, or a full name such as rdma/rdma")
    return value


Resources = Annotated[dict[str, Quantity], BeforeValidator(read_resources)]


class Pod(Noun):
    """What a pod needs of its node and its namespace. A hardware file's fabric and a profile both say it."""

    host_network: bool = Field(False, description="the node's own network: its name, its addresses, its ports")
    host_ipc: bool = False
    privileged: bool = False
    capabilities: tuple[str, ...] = Field((), description="without CAP_: IPC_LOCK")
    devices: tuple[str, ...] = Field((), description="folders of the node, at the same place in the pod")
    shm: Quantity | None = Field(None, description="/dev/shm, in memory; without it 64 MiB")
    resources: Resources = Field({}, description="per pod")
    networks: dict[str, int] = Field({}, description="secondary networks (namespace/name) and how many of each")
    node_selector: dict[str, Text] = {}
    tolerations: tuple[str, ...] = Field((), description="keys of taints")
    annotations: dict[str, Text] = {}
    labels: dict[str, Text] = {}
    workdir: str | None = Field(None, description="else the image's own")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    pull_secrets: tuple[str, ...] = ()
    service_account: str | None = None
    priority_class: str | None = None

    def over(self, base: "Pod") -> "Pod":
        """This pod's needs and those of `base`: mappings and lists are joined, else what is said here counts."""
        said = {name: getattr(self, name) for name in self.model_fields_set}
        for name, value in said.items():
            if isinstance(value, dict):
                said[name] = {**getattr(base, name), **value}
            elif isinstance(value, tuple):
                said[name] = tuple(dict.fromkeys((*getattr(base, name), *value)))
        return base.model_copy(update=said)


class Source(Noun):
    """Where the value of a variable comes from: plans and reports show the reference only."""

    secret: str | None = None
    config_map: str | None = None
    key: str

    @model_validator(mode="after")
    def one(self) -> "Source":
        if (self.secret is None) == (self.config_map is None):
            raise ValueError("name a secret or a config_map, and a key of it")
        return self


def read_tag(value: object) -> str:
    return "source" if isinstance(value, dict | Source) else "text"


EnvValue = Annotated[Annotated[Text, Tag("text")] | Annotated[Source, Tag("source")], Discriminator(read_tag)]


class Mount(Noun):
    """What is mounted at a path: exactly one of these."""

    claim: str | None = Field(None, description="a PersistentVolumeClaim")
    config_map: str | None = None
    secret: str | None = None
    host: str | None = Field(None, description="a folder of the node")
    scratch: Quantity | None = Field(None, description="an empty folder of this size, gone with the pod")
    read_only: bool = False

    @model_validator(mode="after")
    def one(self) -> "Mount":
        kinds = ("claim", "config_map", "secret", "host", "scratch")
        if sum(getattr(self, kind) is not None for kind in kinds) != 1:
            raise ValueError(f"exactly one of {', '.join(kinds)}")
        return self


class Cluster(Noun):
    """Which cluster and namespace; what is left out comes from the kubeconfig."""

    context: str | None = None
    namespace: str | None = None


class Gpus(Noun):
    """The GPUs of a shape."""

    resource: str
    per_node: int = Field(ge=1)


class Expect(Noun):
    """What NCCL's log must show for a fabric to be in use."""

    transport: Literal["roce", "infiniband", "socket"]
    hcas: int | None = Field(None, ge=1, description="a node")
    gdr: bool | None = Field(None, description="GPUDirect RDMA")


class Fabric(Noun):
    """One way to use a shape's network."""

    about: str
    pod: Pod = Pod()
    env: dict[str, Text] = {}
    device_plugin: str | None = Field(None, description="label of the DaemonSet that offers `pod.resources`")
    expect: Expect


class Hardware(Noun):
    """One shape of node: its labels, its GPUs, its line rate and its fabrics."""

    about: str
    source: str = Field(description="where the values were read")
    match: dict[str, Text] = Field(description="labels of its nodes")
    gpus: Gpus
    line_rate: float = Field(gt=0, description="GB/s a node, 10^9 bytes")
    fabrics: dict[str, Fabric]


# --- the profile ----------------------------------------------------------------------------------------------------

Rendezvous = Literal["c10d", "etcd-v2", "static"]
MetricsFormat = Literal["none", "json-lines", "yolov5"]
OnLauncherLost = Literal["keep", "stop"]


class Profile(Noun):
    """One job, as its YAML file says it."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$", description="the file's name without .yaml")
    about: str = Field(description="one line for the list of profiles")
    launcher: str = Field(description="where it runs")
    hardware: Annotated[Hardware | None, WithJsonSchema({"type": "string"})] = Field(
        None, description="the shape of the nodes: a file of profiles/hardware, such as oke/bm-gpu-b4-8"
    )
    fabric: str | None = Field(None, description="one of the hardware file's fabrics")
    image: str | None = Field(None, description="of the pods, with a tag; it has torch and the program in it")
    program: str | None = Field(None, description="the Python file that torchrun starts; in pods, of the image")
    args: tuple[Text, ...] = Field((), description="the program's arguments")
    nodes: Nodes = Field(NodeRange(min=1, max=1), description="2, or {min: 2, max: 8}")
    processes: int = Field(1, ge=1, description="per node")
    rendezvous: Rendezvous = Field("c10d", description="how the nodes find each other")
    env: dict[str, EnvValue] = Field({}, description="environment; {secret: NAME, key: KEY} in pods")
    resources: Resources = Field({}, description="per pod: gpus, cpu, memory, ephemeral-storage, or a full name")
    setup: tuple[Text, ...] = Field((), description="shell commands in each pod, before torchrun")
    mounts: dict[str, Mount] = Field({}, description="what is mounted in the pods, by path")
    pod: Pod = Field(Pod(), description="what else the pods need; the fabric says it first")
    cluster: Cluster = Field(Cluster(), description="which cluster and namespace")
    manifest: Annotated[tuple[dict[str, Any], ...], WithJsonSchema({"type": "string"})] = Field(
        (), description="a YAML file with a job of your own, in place of image and program"
    )
    deadlines: Deadlines = Field(Deadlines(), description="when a run is given up")
    attempts: int = Field(1, ge=1, le=20, description="at most, and only for causes worth another try")
    on_launcher_lost: OnLauncherLost = Field("keep", description="keep: the job lives on under its lease")
    metrics: MetricsFormat = Field("none", description="how rank 0 prints its metrics")
    options: dict[str, Any] = Field({}, description="the launcher's own")

    @model_validator(mode="after")
    def whole(self) -> "Profile":
        if bool(self.program) == bool(self.manifest):
            raise ValueError("a profile names a program (with an image, in pods) or a manifest: one of them")
        if self.hardware and self.fabric not in self.hardware.fabrics:
            known = ", ".join(self.hardware.fabrics)
            raise ValueError(f"fabric: {self.fabric or 'none'} is not one of this hardware: {known}")
        if self.fabric and not self.hardware:
            raise ValueError("fabric: is one of a hardware file's, and no hardware is named")
        return self

    @property
    def network(self) -> Fabric | None:
        """The fabric that was chosen."""
        return self.hardware.fabrics[self.fabric] if self.hardware and self.fabric else None
