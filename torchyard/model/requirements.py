"""What must be true before submitting: launchers and hardware files name it, preflight checks it."""

from typing import Annotated, Literal

from pydantic import Field

from torchyard.model.base import FrozenModel
from torchyard.model.pod import Resources

_IRREGULAR_PLURALS = {"NetworkAttachmentDefinition": "network-attachment-definitions"}

# --- on a host


class WritableFolder(FrozenModel):
    """A folder that exists or can be created, with room for a log."""

    kind: Literal["folder"] = "folder"
    host: str
    path: str


class ProgramFile(FrozenModel):
    """A file that the job reads."""

    kind: Literal["file"] = "file"
    host: str
    path: str


INTERPRETER = "python"  # the name of a `Package` that is the interpreter itself


class Package(FrozenModel):
    """A Python distribution in the job's interpreter, or that interpreter itself."""

    kind: Literal["package"] = "package"
    host: str
    python: str
    name: str
    at_least: str
    why: str


class FreePort(FrozenModel):
    """A TCP port on which only the attempt itself may listen: another machine may have started it already."""

    kind: Literal["port"] = "port"
    host: str
    port: int
    option: str = Field(description="the key that sets another port")
    label: str = Field("", description="label of the processes that may hold the port: those of the attempt itself")


class Processors(FrozenModel):
    """Enough processors for the processes of a host; fewer is a warning."""

    kind: Literal["processors"] = "processors"
    host: str
    count: int


class RunaiCli(FrozenModel):
    """Run:ai's CLI of one generation, with a logged-in user who has access to the project."""

    kind: Literal["runai"] = "runai"
    host: str
    cli: str
    generation: Literal["cli-v1", "cli-v2"]
    project: str


class Reachable(FrozenModel):
    """A name or an address of another host that this host can reach."""

    kind: Literal["reaches"] = "reaches"
    host: str
    address: str


class Clock(FrozenModel):
    """A clock that agrees with the launcher's; else deadlines and times are wrong."""

    kind: Literal["clock"] = "clock"
    host: str


HostRequirement = Annotated[
    WritableFolder | ProgramFile | Package | FreePort | Processors | Reachable | Clock | RunaiCli,
    Field(discriminator="kind"),
]


# --- in a cluster


def plural_kind(kind: str) -> str:
    """How the API server's paths spell a kind: `jobs` for Job, `networkpolicies` for NetworkPolicy."""
    name = kind.lower()
    if kind in _IRREGULAR_PLURALS:
        return _IRREGULAR_PLURALS[kind]
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}es" if name.endswith("s") else f"{name}s"


class Permission(FrozenModel):
    """Something that this user must be allowed to do in the namespace."""

    kind: Literal["right"] = "right"
    verbs: tuple[str, ...]
    resource: str = Field(description="plural.group, followed by /subresource if it has one: pods/log")


class CrdServed(FrozenModel):
    """A kind that the API server must serve in this version."""

    kind: Literal["served"] = "served"
    crd: str = Field(description="its full name: jobs.batch.volcano.sh")
    version: str
    install: str = Field(description="the command that installs it")


class Controller(FrozenModel):
    """A controller that must be running: a Deployment with this label, or else of this name, in any namespace."""

    kind: Literal["controller"] = "controller"
    label: str
    deployment: str | None = Field(None, description="its name, if not every way to install it sets the label")
    gang: str | None = Field(None, description="a flag that it must have been started with")


class OpenQueue(FrozenModel):
    """A Volcano queue that accepts jobs."""

    kind: Literal["queue"] = "queue"
    name: str


class Capacity(FrozenModel):
    """Enough nodes for the gang, by labels, taints and allocatable resources."""

    kind: Literal["room"] = "room"
    pods: int
    labels: dict[str, str]
    tolerations: tuple[str, ...]
    resources: Resources = Field(description="per pod, by their Kubernetes names")
    avoid: dict[str, tuple[str, ...]] = Field({}, description="labels, and the values that keep pods off a node")
    only: dict[str, tuple[str, ...]] = Field({}, description="labels, and the values of which a node must have one")
    alone: bool = Field(description="one pod per node")
    port: bool = Field(False, description="`alone` only because the pod's port is the node's, under the host's network")
    device_plugin: str | None = Field(None, description="label of the DaemonSet that offers the resources")


class Object(FrozenModel):
    """An object in the namespace that the pods refer to."""

    kind: Literal["object"] = "object"
    what: Literal[
        "ConfigMap",
        "Secret",
        "PersistentVolumeClaim",
        "ServiceAccount",
        "NetworkAttachmentDefinition",
        "LocalQueue",
        "ComputeDomain",
        "ResourceClaimTemplate",
        "PriorityClass",
        "StorageClass",
    ]
    name: str
    namespace: str | None = Field(None, description="default: the job's")
    holds: tuple[str, ...] = Field((), description="keys that it must have")


class AdmissionAccepted(FrozenModel):
    """What the API server must accept unchanged, by a dry run with its webhooks, quotas and pod security."""

    kind: Literal["admitted"] = "admitted"
    what: Literal["objects", "pod"]


class Advice(FrozenModel):
    """A warning that is always given and needs no check."""

    kind: Literal["advice"] = "advice"
    about: str
    detail: str


ClusterRequirement = Annotated[
    Permission | CrdServed | Controller | OpenQueue | Capacity | Object | AdmissionAccepted | Advice | WritableFolder,
    Field(discriminator="kind"),
]
Verdict = Literal["ok", "warning", "failed"]


class Check(FrozenModel):
    """What preflight found for one requirement."""

    need: str
    verdict: Verdict
    detail: str
    remedy: str = ""


def passed_check(need: str, detail: str) -> Check:
    return Check(need=need, verdict="ok", detail=detail)


def warning_check(need: str, detail: str, remedy: str = "") -> Check:
    return Check(need=need, verdict="warning", detail=detail, remedy=remedy)


def failed_check(need: str, detail: str, remedy: str) -> Check:
    return Check(need=need, verdict="failed", detail=detail, remedy=remedy)
