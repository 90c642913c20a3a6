"""Creates the objects that a profile's own cluster has and the test cluster lacks, from the plan's requirements."""

from pathlib import Path
from typing import Any

from tests.cluster.jobs import until
from tests.cluster.objects import build_network, build_priority_class
from torchyard.kube.client import Client
from torchyard.loading.profile import load_profile
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster
from torchyard.model.requirements import ReferencedObject

SHARED_CLAIM = {"accessModes": ["ReadWriteMany"], "storageClassName": "torchyard-shared"}
Manifest = dict[str, Any]


def build_local_overrides(profile: str, namespace: str) -> Manifest:
    """Overrides that run an unchanged profile in a namespace of the test cluster, without Kueue and Run:ai."""
    loaded_profile = load_profile(profile)
    overrides: Manifest = {"cluster.namespace": namespace}
    match loaded_profile.launcher:
        case "appwrapper":
            overrides["options.local_queue"] = None
            if loaded_profile.options.get("api"):  # the group of the dispatcher that can be built
                overrides["options.api"] = "workload.codeflare.dev/v1beta1"
        case "runai":
            overrides["options.through"] = "kubernetes"
            overrides["options.project"] = namespace.removeprefix("runai-")
            overrides["pod.scheduler"] = "volcano"
        case _:
            pass
    return overrides


class ProvidedObjects:
    """Every object that pods refer to, in one namespace: claims share a folder of this machine, others are dummies.

    `provide` can be called for several plans; an object that exists is used as it is. `clear` deletes the others.
    """

    def __init__(self, namespace: str, folder: Path) -> None:
        self._client = Client(Cluster(namespace=namespace))
        self._folder = folder
        self._created: list[Manifest] = []

    def provide(self, plan: ManifestPlan) -> None:
        """Create every object that a plan requires, and wait until its claims are bound."""
        for requirement in plan.requires:
            if isinstance(requirement, ReferencedObject):
                for obj in build_objects(self._client, requirement, self._folder):
                    self._create(obj)
        claims = [obj["metadata"]["name"] for obj in self._created if obj["kind"] == "PersistentVolumeClaim"]
        until(lambda: all(is_bound(self._client, name) for name in claims))

    def _create(self, obj: Manifest) -> None:
        try:
            self._client.request("POST", build_path(self._client, obj), body=obj)
            self._created.append(obj)
        except ClusterError as error:
            if error.status != 409:
                raise

    def clear(self) -> None:
        """Delete the objects that were created here, the newest first."""
        for obj in reversed(self._created):
            self._client.request("DELETE", build_path(self._client, obj, obj["metadata"]["name"]))


def is_bound(client: Client, claim: str) -> bool:
    """Whether a claim is bound to a volume."""
    claim_object = client.get("v1", "PersistentVolumeClaim", claim)
    return claim_object is not None and claim_object["status"].get("phase") == "Bound"


def build_path(client: Client, obj: Manifest, name: str = "") -> str:
    return client.path(obj["apiVersion"], obj["kind"], name, obj["metadata"].get("namespace"))


def build_objects(client: Client, requirement: ReferencedObject, folder: Path) -> list[Manifest]:
    """The objects that satisfy a requirement."""
    name = requirement.name
    namespace = requirement.namespace or client.namespace
    metadata = {"name": name, "namespace": namespace}
    data = dict.fromkeys(requirement.required_entries, "torchyard")
    match requirement.object_kind:
        case "ConfigMap":
            return [{"apiVersion": "v1", "kind": "ConfigMap", "data": data, "metadata": metadata}]
        case "Secret":
            return [{"apiVersion": "v1", "kind": "Secret", "stringData": data, "metadata": metadata}]
        case "ServiceAccount":
            return [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}]
        case "NetworkAttachmentDefinition":
            return [build_network(namespace, name)]
        case "PersistentVolumeClaim":
            return build_volume(name, namespace, folder)
        case "PriorityClass":
            return [build_priority_class(name)]
        case kind:
            raise ValueError(f"no shipped profile refers to a {kind}")


def build_volume(name: str, namespace: str, folder: Path) -> list[Manifest]:
    """A claim, and the volume that is bound to it."""
    storage = {"storage": "1Gi"}
    spec = SHARED_CLAIM | {"capacity": storage, "hostPath": {"path": str(folder), "type": "DirectoryOrCreate"}}
    volume_name = f"{namespace}-{name}"
    claim = SHARED_CLAIM | {"volumeName": volume_name, "resources": {"requests": storage}}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume_name},
            "spec": spec | {"claimRef": {"namespace": namespace, "name": name}},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": claim,
        },
    ]
