"""The models of a profile, which the user writes, and how their values are read."""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, PrivateAttr, WithJsonSchema, model_validator

from torchyard.model.base import Duration, FrozenModel, Pause, Text
from torchyard.model.finding import FilePosition, Finding
from torchyard.model.hang import OnHang
from torchyard.model.hardware import Fabric, Hardware, OnFabric
from torchyard.model.observe import NotifySetting, Trackers, TrackersSetting
from torchyard.model.pod import EnvValue, Job, LocalFile, Mount, Pod, Resources
from torchyard.model.trend import Trend


def _read_nodes(value: object) -> object:
    """`2` is short for `{min: 2, max: 2}`."""
    if isinstance(value, bool) or not isinstance(value, int | dict | NodeRange):
        raise ValueError("must be one number, or {min: 2, max: 8}")
    if not isinstance(value, int):
        return value
    if value < 1:
        raise ValueError("must be 1 or more")
    return {"min": value, "max": value}


_MAX_COUNT = 10_000  # nodes, or processes per node: a plan holds an entry for each node


class NodeRange(FrozenModel):
    """The number of nodes: fixed if `min` and `max` are equal, else elastic."""

    min: int = Field(ge=1)
    max: int = Field(ge=1, le=_MAX_COUNT)

    @model_validator(mode="after")
    def validate_order(self) -> "NodeRange":
        if self.min > self.max:
            raise ValueError(f"min is {self.min} and max is {self.max}: min must be max or less")
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
    """The time limits of a run. `lease`: how long a job keeps running after its launcher is lost."""

    start: Duration = Field(600.0, description="until every node has joined")
    run: Duration = Field(86400.0, description="until the job has ended")
    silence: Duration = Field(
        1800.0, description="without a single new line in any log, and without a completed collective"
    )
    lease: Duration = Field(1800.0, description="without a running launcher")
    notice: Pause = Field(
        0.0, description="so long before the end of `run` the job is asked to stop (SIGTERM), at most `grace`"
    )
    grace: Duration = Field(
        30.0, description="between SIGTERM and SIGKILL of a process; a few seconds less for the ranks of torchrun"
    )


class Cluster(FrozenModel):
    """The cluster and the namespace; the kubeconfig provides the values that are not set."""

    context: str | None = Field(None, description="default: the current context of the kubeconfig")
    namespace: str | None = Field(None, description="default: that of the context")


NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"
Rendezvous = Literal["c10d", "etcd-v2", "static", "env", "file"]
Agent = Literal["torchrun", "launch", "none"]
WITHOUT_AGENT: frozenset[Rendezvous] = frozenset({"env", "file"})  # torchrun would assign ranks of its own
WITH_AGENT: frozenset[Rendezvous] = frozenset({"c10d", "etcd-v2"})  # the agents meet there, not the program
IMAGE_ENTRYPOINT = "image"  # the program that starts the image's own entrypoint
_ELASTIC_RESTARTS = 100
# `args` may contain these in braces; each process gets its own value.
PLACEHOLDERS = ("nodes", "processes", "world_size", "node_rank", "master_addr", "master_port", "rendezvous", "resume")
MetricsFormat = Literal[  # torchyard's own
    "none",
    "json-lines",
    "step-lines",
    "huggingface",
    "lightning",
    "imagenet",
    "yolov5",
    "mnist",
    "allreduce-bench",
    "nccl-tests",
]
METRICS_FORMATS: tuple[MetricsFormat, ...] = get_args(MetricsFormat)
OnNan = Literal["report", "fail"]
OnLauncherLost = Literal["keep", "stop"]
OnStuckPod = Literal["report", "force"]
OnCompanionData = Literal["keep", "delete"]
ManifestName = Literal["run", "keep"]


class MetricsPattern(FrozenModel):
    """A format of metrics that the profile itself defines; torchyard/metrics/pattern.py checks and reads it."""

    pattern: str = Field(description="a regular expression; each named group is a value: `loss=(?P<loss>[^ ,]+)`")

    def __str__(self) -> str:
        return f"the pattern {self.pattern}"


def _read_metrics(value: object) -> object:
    """The name of a format; of a mapping, the pattern in it."""
    if isinstance(value, str | MetricsPattern):
        return value
    if isinstance(value, dict) and value.keys() == {"pattern"} and isinstance(value["pattern"], str):
        return MetricsPattern(pattern=value["pattern"])
    raise ValueError("must be the name of a format, or {pattern: 'loss=(?P<loss>[^ ,]+)'}")


_METRICS_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "object", "properties": {"pattern": {"type": "string"}}, "required": ["pattern"]},
    ]
}
MetricsSetting = Annotated[str | MetricsPattern, BeforeValidator(_read_metrics), WithJsonSchema(_METRICS_SCHEMA)]


class CodeFolder(FrozenModel):
    """A folder of this machine for a job, as a profile names it: `.` is short for {path: .}."""

    path: str = Field(min_length=1, description="the folder, relative to the profile's")
    exclude: tuple[Text, ...] = Field(
        (), description="patterns as in .gitignore, which take precedence over its rules: data/, *.ipynb, !generated.py"
    )
    store: str | None = Field(
        None,
        pattern=r"^[a-z0-9]+://[^\s]*[^\s/]/*$",
        description="an object store, from which pods get what is too large for a ConfigMap: s3://BUCKET/PREFIX",
    )
    claim: str | None = Field(
        None,
        pattern=r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?$",
        description="in place of `store`, a PersistentVolumeClaim that all pods can mount (ReadWriteMany)",
    )


class CodeArchive(FrozenModel):
    """The files of a folder as one tar.gz, by its digest; code/archive.py stores its bytes on this machine."""

    digest: str = Field(pattern=r"^[0-9a-f]{64}$", description="the SHA-256 of the tar.gz")
    file_count: int = Field(ge=1)
    file_bytes: int = Field(ge=0, description="the size of all files together")
    packed_bytes: int = Field(ge=1, description="the size of the tar.gz")

    @property
    def short_digest(self) -> str:
        """The first 12 digits, for names."""
        return self.digest[:12]

    def __str__(self) -> str:
        noun = "file" if self.file_count == 1 else "files"
        return f"{self.file_count:,} {noun}, {math.ceil(self.file_bytes / 1000):,} KB, digest {self.short_digest}"


class Code(CodeFolder):
    """The folder, whose `path` is absolute now, with the files that it had when the profile was loaded."""

    archive: CodeArchive
    syntax_error: str | None = Field(
        None, description="`line 3: invalid syntax`, of the program, if the launcher's Python cannot parse it"
    )


_CODE_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "exclude": {"type": "array", "items": {"type": "string"}},
                "store": {"type": "string"},
                "claim": {"type": "string"},
            },
            "required": ["path"],
            "additionalProperties": False,
        },
    ]
}


class Profile(FrozenModel):
    """One job, as its YAML file describes it. model/rules.py has the rules between its keys, which loading checks."""

    name: str = Field(pattern=NAME_PATTERN, description="the file's name without .yaml")
    about: str = Field(description="one line for the list of profiles")
    launcher: str = Field(description="the scheduler, or plain machines; `torchyard profiles --launchers` lists them")
    values: tuple[str, ...] = Field(
        (),
        description="user files of the FMS / mlbatch helm chart: later files override earlier ones, and the profile "
        "overrides all",
    )
    hardware: Annotated[Hardware | None, WithJsonSchema({"type": "string"})] = Field(
        None, description="the shape of the nodes: a file in profiles/hardware, such as oke/bm-gpu-b4-8"
    )
    fabric: str | None = Field(None, description="one of the hardware file's fabrics")
    image: str | None = Field(None, description="the pods' image, with a tag; it contains torch and the program")
    code: Annotated[Code | None, WithJsonSchema(_CODE_SCHEMA)] = Field(
        None,
        description="a folder of this machine to bring into the job: `.`, or {path: ., exclude: [...], store: URL, "
        "claim: NAME}. The job gets its files as they are now, without those that git ignores, and starts in it",
    )
    program: str | None = Field(
        None,
        description="the Python file to start: with `code` a path in that folder; else in pods a file of the image. "
        "With agent none, any program, or `image` for the entrypoint of the pods' image",
    )
    module: str | None = Field(
        None,
        description="a Python module to start in place of a file, as `python -m` does: my.train. On plain machines it "
        "is installed there, or in the folder options.source",
    )
    args: tuple[Text, ...] = Field((), description="the program's arguments")
    nodes: Nodes = Field(NodeRange(min=1, max=1), description="the number of nodes: 2, or {min: 2, max: 8}")
    processes: int = Field(1, ge=1, le=_MAX_COUNT, description="the number of processes per node")
    rendezvous: Rendezvous = Field("c10d", description="how the nodes find each other")
    shared_file: str | None = Field(None, description="for rendezvous file: a path on a disk that all nodes share")
    agent: Agent | None = Field(
        None,
        description="the program that starts a node's processes: torchrun; launch, which passes --local-rank; or none, "
        "if the job's program starts them (default: none for env and file, torchrun for the others)",
    )
    env: dict[str, EnvValue] = Field(
        {}, description="environment variables; in pods also {secret: NAME, key: KEY} or {field: FIELD}"
    )
    resources: Resources = Field({}, description="per pod: gpus, cpu, memory, ephemeral-storage, or a full name")
    setup: tuple[Text, ...] = Field((), description="shell commands in each pod, before torchrun")
    mounts: dict[str, Mount] = Field({}, description="the volumes of the pods, by path")
    files: Annotated[
        dict[str, LocalFile],
        WithJsonSchema({"type": "object", "additionalProperties": {"type": "string"}}),
    ] = Field(
        {}, description="files of this machine to add to the pods, by their path in the pods: at most 832 KiB together"
    )
    pod: Pod = Field(Pod(), description="further settings of the pods, merged over those of the fabric")
    job: Job = Field(Job(), description="further settings of the object that creates the pods, such as a JobSet")
    cluster: Cluster = Field(Cluster(), description="the cluster and the namespace")
    manifest: Annotated[tuple[dict[str, Any], ...], WithJsonSchema({"type": "string"})] = Field(
        (), description="a YAML file with your own job, in place of image and program"
    )
    manifest_name: ManifestName = Field(
        "run",
        description="the name of a manifest's job: that of the run, which the references to it follow; keep: its own, "
        "so that only one run of it can exist at a time",
    )
    deadlines: Deadlines = Field(Deadlines(), description="the time limits of a run")
    attempts: int = Field(
        1, ge=1, le=20, description="the maximum number of attempts; a new one starts only for causes that are worth it"
    )
    requeues: int = Field(
        20,
        ge=0,
        le=1000,
        description="how often the run starts again after a preemption or a drain took its nodes; these starts are not "
        "attempts",
    )
    checkpoints: str | None = Field(
        None,
        pattern=r"^/",
        description="the folder for checkpoints, on a disk that all nodes share; TORCHYARD_CHECKPOINTS is a folder of "
        "the run in it (default: on plain machines a folder of the run's, in pods none)",
    )
    resume: Text | None = Field(
        None,
        description="the name of an earlier run, or the path of a checkpoint, from which this run continues: "
        "TORCHYARD_RESUME and {resume} are the run's last complete checkpoint",
    )
    restarts: int | None = Field(
        None,
        ge=0,
        le=1000,
        description="how often torchrun itself restarts the processes, in each attempt (default: 0, or 100 if "
        "nodes is a range: the remaining nodes continue when one is lost)",
    )
    avoid_failed: bool = Field(False, description="a new attempt avoids the node or host that failed in the last one")
    on_launcher_lost: OnLauncherLost = Field("keep", description="keep: the job keeps running under its lease")
    on_fabric: OnFabric = Field(
        "report", description="if the job does not use the expected network: report it, or fail the attempt immediately"
    )
    on_hang: Annotated[OnHang, BeforeValidator(lambda value: "off" if value is False else value)] = Field(
        "report",
        description="if a rank hangs: report it, restart (end the attempt; attempts may start another one), or fail "
        "the run; off starts no recorder",
    )
    check_fabric: Duration | None = Field(
        None, description="run an all-reduce before the program, at most this long; the attempt fails if it is too slow"
    )
    min_busbw: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="GB/s that check_fabric must reach; default: the value of the hardware file's fabric",
    )
    on_stuck_pod: OnStuckPod = Field(
        "report",
        description="for a pod whose dead node does not confirm its end: report it, or force its deletion, which needs "
        "the right to read nodes",
    )
    on_companion_data: OnCompanionData = Field(
        "keep",
        description="companion objects of a manifest that hold data, such as a PersistentVolumeClaim, at the end of an "
        "attempt",
    )
    metrics: MetricsSetting = Field(
        "none",
        description="the format in which rank 0 prints its metrics: its name, to which other packages may add, or "
        "{pattern: 'loss=(?P<loss>[^ ,]+)'}",
    )
    on_nan: OnNan = Field(
        "report", description="if a loss in rank 0's metrics is nan or infinite: report it, or fail the run"
    )
    trend: Trend | None = Field(None, description="the number that is compared with the last runs; all are recorded")
    metrics_to: TrackersSetting = Field(
        Trackers(),
        description="trackers that also record the metrics: tensorboard, mlflow, wandb, {mlflow: {uri: …}}, or one of "
        "another package",
    )
    notify: NotifySetting = Field(
        None,
        description="receivers of messages if a run fails, recovers, becomes worse, waits or hangs: apprise addresses",
    )
    options: dict[str, Any] = Field({}, description="options of the launcher")

    _positions: dict[str, FilePosition] = PrivateAttr(default_factory=dict)

    _manifest_warnings: tuple[Finding, ...] = PrivateAttr(default=())

    @property
    def manifest_warnings(self) -> tuple[Finding, ...]:
        """What is unusual in the manifest's file, each with its line; empty for a stored profile."""
        return self._manifest_warnings

    def with_manifest_warnings(self, warnings: tuple[Finding, ...]) -> Self:
        """A copy with these warnings."""
        copy = self.model_copy()
        copy._manifest_warnings = warnings
        return copy

    @property
    def positions(self) -> Mapping[str, FilePosition]:
        """The lines of what can be found wrong after loading, by the location that the finding or requirement names.

        They are that of `resume`, and those of the manifest's objects in its own file. Empty unless the profile was
        loaded from a file: a stored profile does not have them.
        """
        return self._positions

    def with_positions(self, positions: Mapping[str, FilePosition]) -> Self:
        """A copy with these positions besides its own."""
        copy = self.model_copy()
        copy._positions = self._positions | dict(positions)
        return copy

    @property
    def resolved_agent(self) -> Agent:
        """What starts a node's processes: `agent`, or its default."""
        return self.agent or ("none" if self.rendezvous in WITHOUT_AGENT else "torchrun")

    @property
    def has_image_entrypoint(self) -> bool:
        """Whether the pods run the entrypoint of their image, and not a command of torchyard's."""
        return self.program == IMAGE_ENTRYPOINT

    @property
    def max_restarts(self) -> int:
        """`restarts`, or its default: an elastic job survives a lost node only if it may restart its processes."""
        if self.restarts is not None:
            return self.restarts
        is_elastic = self.nodes.min != self.nodes.max
        return _ELASTIC_RESTARTS if is_elastic else 0

    @property
    def required_busbw(self) -> float | None:
        """The GB/s that `check_fabric` must reach: `min_busbw`, or that of the fabric; None if neither is set."""
        return self.min_busbw or (self.network.expect.min_busbw if self.network else None)

    @property
    def world_size(self) -> int:
        """The number of processes in the job; of an elastic job, the maximum."""
        return self.nodes.max * self.processes

    @property
    def network(self) -> Fabric | None:
        """The chosen fabric; None without a hardware file, or if the file has no fabric of this name."""
        return self.hardware.fabrics.get(self.fabric) if self.hardware and self.fabric else None
