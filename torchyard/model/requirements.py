"""The requirements of a plan: launchers and hardware files list them, preflight checks them."""

from typing import Annotated, Any, Literal

from pydantic import Field

from torchyard.model.base import FrozenModel
from torchyard.model.finding import FilePosition, Finding
from torchyard.model.pod import Resources, TolerationItem

_IRREGULAR_PLURALS = {"NetworkAttachmentDefinition": "network-attachment-definitions", "Endpoints": "endpoints"}
# The resources without a namespace that a user's manifest may contain.
_CLUSTER_RESOURCES = frozenset(
    {
        "namespaces",
        "nodes",
        "persistentvolumes",
        "apiservices.apiregistration.k8s.io",
        "customresourcedefinitions.apiextensions.k8s.io",
        "mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "validatingadmissionpolicies.admissionregistration.k8s.io",
        "validatingadmissionpolicybindings.admissionregistration.k8s.io",
        "validatingwebhookconfigurations.admissionregistration.k8s.io",
        "clusterrolebindings.rbac.authorization.k8s.io",
        "clusterroles.rbac.authorization.k8s.io",
        "csidrivers.storage.k8s.io",
        "storageclasses.storage.k8s.io",
        "volumeattributesclasses.storage.k8s.io",
        "volumesnapshotclasses.snapshot.storage.k8s.io",
        "volumesnapshotcontents.snapshot.storage.k8s.io",
        "deviceclasses.resource.k8s.io",
        "ingressclasses.networking.k8s.io",
        "priorityclasses.scheduling.k8s.io",
        "runtimeclasses.node.k8s.io",
        "queues.scheduling.volcano.sh",
        "hypernodes.topology.volcano.sh",
        "admissionchecks.kueue.x-k8s.io",
        "clusterqueues.kueue.x-k8s.io",
        "cohorts.kueue.x-k8s.io",
        "multikueueclusters.kueue.x-k8s.io",
        "multikueueconfigs.kueue.x-k8s.io",
        "provisioningrequestconfigs.kueue.x-k8s.io",
        "resourceflavors.kueue.x-k8s.io",
        "topologies.kueue.x-k8s.io",
        "workloadpriorityclasses.kueue.x-k8s.io",
        "clusterissuers.cert-manager.io",
        "clusterpolicies.nvidia.com",
        "nicclusterpolicies.mellanox.com",
        "queues.scheduling.run.ai",
    }
)


class Advice(FrozenModel):
    """A warning that is always given and needs no check."""

    kind: Literal["advice"] = "advice"
    finding: Finding


# --- on a host

THIS_MACHINE = frozenset({"localhost", "127.0.0.1"})


class _OnHost(FrozenModel):
    """A requirement on a host; torchyard/host/facts.py has the probe of each kind except Clock and ScriptCheck."""

    host: str

    def to_probe(self) -> dict[str, Any]:
        """The argument of its probe: its fields, and whether the host is this machine."""
        return self.model_dump() | {"is_local": self.host in THIS_MACHINE}


class WritableFolder(_OnHost):
    """A folder that exists or can be created, with room for a log."""

    kind: Literal["folder"] = "folder"
    path: str


class ProgramFile(_OnHost):
    """A file that the job reads."""

    kind: Literal["file"] = "file"
    path: str


INTERPRETER = "python"  # the name of a `Package` that is the interpreter itself


class Package(_OnHost):
    """A Python distribution in the job's interpreter, or that interpreter itself; an older one is only a warning."""

    kind: Literal["package"] = "package"
    python: str
    name: str
    minimum_version: str
    reason: str
    recommended_version: str = Field("", description="an older one is a warning with `limitation`; empty: none is")
    limitation: str = Field("", description="what an older one than `recommended_version` cannot do, and the remedy")


class FreePort(_OnHost):
    """A TCP port on which only the attempt itself may listen: another machine may have started it already."""

    kind: Literal["port"] = "port"
    port: int
    option: str = Field(description="the key that sets another port")
    is_derived: bool = Field(
        False, description="whether it is from the run's id: if another process holds it, the run takes another one"
    )
    label: str = Field("", description="label of the processes that may hold the port: those of the attempt itself")


class Processors(_OnHost):
    """Enough processors for the processes of a host; fewer is a warning."""

    kind: Literal["processors"] = "processors"
    count: int


class Gpus(_OnHost):
    """Enough GPUs for the processes of a host."""

    kind: Literal["gpus"] = "gpus"
    count: int


class Reachable(_OnHost):
    """A name or an address of another host that this host can reach."""

    kind: Literal["reachable"] = "reachable"
    address: str


class Clock(_OnHost):
    """A clock that agrees with the launcher's, which compares both; otherwise deadlines and times are wrong."""

    kind: Literal["clock"] = "clock"


class ScriptCheck(_OnHost):
    """A requirement that only one launcher has, which a script of its own checks.

    The script is in torchyard/host, and has the input and output of facts.py. To a host behind ssh only its text is
    sent, so that it cannot import other scripts there.
    """

    kind: Literal["script"] = "script"
    script: str = Field(description="the name of its file: runai_check.py")
    settings: dict[str, str] = Field(description="what it checks")


HostRequirement = Annotated[
    WritableFolder | ProgramFile | Package | FreePort | Processors | Gpus | Reachable | Clock | ScriptCheck,
    Field(discriminator="kind"),
]
CommandRequirement = Annotated[HostRequirement | Advice, Field(discriminator="kind")]


# --- in a cluster


def plural_kind(kind: str) -> str:
    """The name of a kind in the API server's paths: `jobs` for Job, `networkpolicies` for NetworkPolicy."""
    if kind in _IRREGULAR_PLURALS:
        return _IRREGULAR_PLURALS[kind]
    name = kind.lower()
    if name.endswith("y") and not name.endswith(("ay", "ey", "oy")):
        return f"{name[:-1]}ies"
    if name.endswith("s"):
        return f"{name}es"
    return f"{name}s"


def get_resource(api_version: str, kind: str) -> str:
    """The full name of a kind: `pods`, or `networkpolicies.networking.k8s.io`."""
    group = api_version.rpartition("/")[0]
    plural = plural_kind(kind)
    return f"{plural}.{group}" if group else plural


def is_cluster_scoped(resource: str) -> bool:
    """Whether a known resource has no namespace. `resource`: its full name, as of `get_resource`."""
    return resource in _CLUSTER_RESOURCES


class Permission(FrozenModel):
    """Requests that the user must be allowed to make in the namespace, or in the cluster if the resource has none."""

    kind: Literal["permission"] = "permission"
    verbs: tuple[str, ...]
    resource: str = Field(description="plural.group, followed by /subresource if it has one: pods/log")


class CrdServed(FrozenModel):
    """A kind that the API server must serve in this version."""

    kind: Literal["crd"] = "crd"
    crd: str = Field(description="its full name: jobs.batch.volcano.sh")
    version: str
    install: str = Field(description="the command that installs it")


class Controller(FrozenModel):
    """A controller that must be running: a Deployment with this label, or else of this name, in any namespace."""

    kind: Literal["controller"] = "controller"
    label: str
    deployment: str | None = Field(None, description="its name, if some ways to install it do not set the label")
    gang: str | None = Field(None, description="a flag that it must have been started with")


class OpenQueue(FrozenModel):
    """A Volcano queue that accepts jobs."""

    kind: Literal["queue"] = "queue"
    name: str


class ManifestFields(FrozenModel):
    """Where a user's manifest describes pods: remedies name its fields in place of the profile's keys."""

    location: str = Field(description="of the pods' spec, as findings name it: Job a, spec.tasks[0].template.spec")
    container: str = Field(description="the path of the main container: spec.tasks[0].template.spec.containers[0]")
    pod_count: str | None = Field(description="the path of the number of pods; None for a plain Pod")
    position: FilePosition | None = Field(None, description="of `location`; None if the file is not known")

    @property
    def pod_spec(self) -> str:
        """The path of the pods' spec."""
        return self.location.rpartition(", ")[2]


class Capacity(FrozenModel):
    """Enough nodes for the gang, by labels, taints and allocatable resources."""

    kind: Literal["capacity"] = "capacity"
    pods: int
    labels: dict[str, str]
    tolerations: tuple[TolerationItem, ...] = Field(description="keys, whose taints are all tolerated, or conditions")
    resources: Resources = Field(description="per pod, by their Kubernetes names")
    avoid: dict[str, tuple[str, ...]] = Field({}, description="labels, and the values that keep pods off a node")
    only: dict[str, tuple[str, ...]] = Field({}, description="labels, and the values of which a node must have one")
    one_per_node: bool = Field(description="one pod per node")
    uses_host_ports: bool = Field(
        False, description="`one_per_node` only because the pod's port is the node's, under the host's network"
    )
    device_plugin: str | None = Field(None, description="label of the DaemonSet that offers the resources")
    manifest: ManifestFields | None = Field(None, description="the pods' fields in a manifest; None without one")


ReferencedKind = Literal[
    "ConfigMap",
    "Secret",
    "PersistentVolumeClaim",
    "ServiceAccount",
    "NetworkAttachmentDefinition",
    "LocalQueue",
    "ComputeDomain",
    "ResourceClaim",
    "ResourceClaimTemplate",
    "PriorityClass",
    "StorageClass",
]


class ReferencedObject(FrozenModel):
    """An object in the namespace that the pods refer to."""

    kind: Literal["object"] = "object"
    object_kind: ReferencedKind
    name: str
    namespace: str | None = Field(None, description="default: the job's")
    required_entries: tuple[str, ...] = Field((), description="keys that it must have")


class AdmissionAccepted(FrozenModel):
    """Objects that the API server must accept unchanged in a dry run, with its webhooks, quotas and pod security."""

    kind: Literal["admission"] = "admission"
    target: Literal["objects", "pod"]


ClusterRequirement = Annotated[
    Permission
    | CrdServed
    | Controller
    | OpenQueue
    | Capacity
    | ReferencedObject
    | AdmissionAccepted
    | Advice
    | WritableFolder,
    Field(discriminator="kind"),
]


def get_manifest_location(requirement: ClusterRequirement | CommandRequirement) -> str:
    """What a requirement is about in a user's manifest, as the `where` of a finding; empty if it is not about one."""
    if isinstance(requirement, Advice):
        return requirement.finding.where
    if isinstance(requirement, Capacity) and requirement.manifest:
        return requirement.manifest.location
    return ""
