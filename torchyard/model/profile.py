"""What the user writes: the nouns of a profile, and how their values are read."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from torchyard.model.base import Duration, FrozenModel, Text
from torchyard.model.hardware import Fabric, Hardware
from torchyard.model.pod import EnvValue, Mount, Pod, Resources


def _read_nodes(value: object) -> object:
    """`2` is short for `{min: 2, max: 2}`."""
    if isinstance(value, int) and value < 1:
        raise ValueError("a number of nodes is at least 1")
    return {"min": value, "max": value} if isinstance(value, int) and not isinstance(value, bool) else value


_MAX_COUNT = 10_000  # nodes: a plan has something for each of them


class NodeRange(FrozenModel):
    """How many nodes: exactly `min` where both are the same, else elastic."""

    min: int = Field(ge=1)
    max: int = Field(ge=1, le=_MAX_COUNT)

    @model_validator(mode="after")
    def ordered(self) -> "NodeRange":
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, max is {self.max}: min must not be larger than max")
        return self

    def __str__(self) -> str:
        return str(self.min) if self.min == self.max else f"{self.min}:{self.max}"


_COUNT_SCHEMA = {"type": "integer", "minimum": 1}
Nodes = Annotated[
    NodeRange,
    BeforeValidator(_read_nodes),
    WithJsonSchema(
        {
            "anyOf": [
                _COUNT_SCHEMA,
                {
                    "type": "object",
                    "properties": {"min": _COUNT_SCHEMA, "max": _COUNT_SCHEMA},
                    "required": ["min", "max"],
                },
            ]
        }
    ),
]


class Deadlines(FrozenModel):
    """When a run is given up. `lease`: how long a job lives on when nobody looks after it."""

    start: Duration = Field(600.0, description="until every node has joined")
    run: Duration = Field(86400.0, description="until the job has ended")
    silence: Duration = Field(1800.0, description="without a single new line in any log")
    lease: Duration = Field(1800.0, description="without a living launcher")
    grace: Duration = Field(10.0, description="between asking a process to stop and killing it")


class Cluster(FrozenModel):
    """Which cluster and namespace; what is left out comes from the kubeconfig."""

    context: str | None = None
    namespace: str | None = None


Rendezvous = Literal["c10d", "etcd-v2", "static", "env", "file"]
Agent = Literal["torchrun", "launch", "none"]
_WITHOUT_AGENT: frozenset[Rendezvous] = frozenset({"env", "file"})  # torchrun would hand out ranks of its own
WITH_AGENT: frozenset[Rendezvous] = frozenset({"c10d", "etcd-v2"})  # the agents meet there, not the program
MetricsFormat = Literal["none", "json-lines", "yolov5", "mnist", "allreduce-bench", "nccl-tests"]
OnLauncherLost = Literal["keep", "stop"]
OnStuckPod = Literal["report", "force"]
OnCompanionData = Literal["keep", "delete"]


class Profile(FrozenModel):
    """One job, as its YAML file says it."""

    name: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$", description="the file's name without .yaml")
    about: str = Field(description="one line for the list of profiles")
    launcher: str = Field(description="where it runs")
    values: tuple[str, ...] = Field(
        (),
        description="user files of the FMS / mlbatch helm chart, the later over the earlier; the profile over them",
    )
    hardware: Annotated[Hardware | None, WithJsonSchema({"type": "string"})] = Field(
        None, description="the shape of the nodes: a file of profiles/hardware, such as oke/bm-gpu-b4-8"
    )
    fabric: str | None = Field(None, description="one of the hardware file's fabrics")
    image: str | None = Field(None, description="of the pods, with a tag; it has torch and the program in it")
    program: str | None = Field(
        None, description="the Python file to start; in pods, of the image. With agent none also any other program"
    )
    args: tuple[Text, ...] = Field((), description="the program's arguments")
    nodes: Nodes = Field(NodeRange(min=1, max=1), description="2, or {min: 2, max: 8}")
    processes: int = Field(1, ge=1, le=_MAX_COUNT, description="per node")
    rendezvous: Rendezvous = Field("c10d", description="how the nodes find each other")
    shared_file: str | None = Field(None, description="for rendezvous file: a path that every node has, on one disk")
    agent: Agent | None = Field(
        None,
        description="what starts a node's processes: torchrun; launch, which gives them --local-rank; or none, where "
        "the program starts them itself (else: none for env and file, torchrun for the rest)",
    )
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
    avoid_failed: bool = Field(False, description="a new attempt keeps off the node or host that failed in the last")
    on_launcher_lost: OnLauncherLost = Field("keep", description="keep: the job lives on under its lease")
    on_stuck_pod: OnStuckPod = Field(
        "report", description="a pod whose dead node does not confirm its end; force deletes it nevertheless"
    )
    on_companion_data: OnCompanionData = Field(
        "keep",
        description="what a manifest's companions hold, such as a PersistentVolumeClaim, at the end of an attempt",
    )
    metrics: MetricsFormat = Field("none", description="how rank 0 prints its metrics")
    options: dict[str, Any] = Field({}, description="the launcher's own")

    @model_validator(mode="after")
    def whole(self) -> "Profile":
        if bool(self.program) == bool(self.manifest):
            raise ValueError("a profile names a program (with an image, in pods) or a manifest: one of them")
        if self.starter == "none" and self.rendezvous in WITH_AGENT:
            raise ValueError(f"agent: none cannot meet by {self.rendezvous}, which agents do: static, env or file can")
        if self.starter != "none" and self.rendezvous in _WITHOUT_AGENT:
            raise ValueError(f"agent: {self.starter} cannot meet by {self.rendezvous}: c10d, etcd-v2 or static can")
        if self.rendezvous not in WITH_AGENT and self.nodes.min != self.nodes.max:
            raise ValueError(f"nodes: {self.rendezvous} has a place for each node: one number, not {self.nodes}")
        if (self.rendezvous == "file") != bool(self.shared_file):
            raise ValueError("shared_file: is where the nodes of rendezvous file meet: name both, or neither")
        if self.hardware and self.fabric not in self.hardware.fabrics:
            known = ", ".join(self.hardware.fabrics)
            raise ValueError(f"fabric: {self.fabric or 'none'} is not one of this hardware: {known}")
        if self.on_companion_data == "delete" and not self.manifest:
            raise ValueError("on_companion_data: is about what stands beside the job in a manifest, and there is none")
        if self.avoid_failed and self.manifest:
            raise ValueError("avoid_failed: a manifest says itself where its pods may go")
        if self.fabric and not self.hardware:
            raise ValueError("fabric: is one of a hardware file's, and no hardware is named")
        return self

    @property
    def starter(self) -> Agent:
        """What starts a node's processes, said or not."""
        return self.agent or ("none" if self.rendezvous in _WITHOUT_AGENT else "torchrun")

    @property
    def world_size(self) -> int:
        """Processes of the job, where it is not elastic."""
        return self.nodes.max * self.processes

    @property
    def network(self) -> Fabric | None:
        """The fabric that was chosen."""
        return self.hardware.fabrics[self.fabric] if self.hardware and self.fabric else None
