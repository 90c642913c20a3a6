"""Creates what a profile's own cluster has and the test cluster lacks, from the plan's requirements."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.jobs import until
from tests.cluster.objects import network
from torchyard.kube.client import Client
from torchyard.loading.profile import load_profile
from torchyard.model.errors import ClusterError
from torchyard.model.plan import ManifestPlan
from torchyard.model.profile import Cluster
from torchyard.model.requirements import ReferencedObject

SHARED = {"accessModes": ["ReadWriteMany"], "storageClassName": "torchyard-shared"}
Thing = dict[str, Any]


def at_home(profile: str, namespace: str) -> Thing:
    """Overrides that run an unchanged profile in a namespace of the test cluster, without Kueue and Run:ai."""
    chosen = load_profile(profile)
    match chosen.launcher:
        case "appwrapper":
            more: Thing = {"options.queue": None}
            if chosen.options.get("api"):  # the group of the dispatcher that can be built
                more["options.api"] = "workload.codeflare.dev/v1beta1"
        case "runai":
            project = namespace.removeprefix("runai-")
            more = {"options.through": "kubernetes", "options.project": project, "pod.scheduler": "volcano"}
        case _:
            more = {}
    return {"cluster.namespace": namespace, **more}


class Home:
    """Every object that pods refer to, in one namespace: claims share a folder of this machine, others are dummies."""

    def __init__(self, namespace: str, folder: Path) -> None:
        self._server, self._folder = Client(Cluster(namespace=namespace)), folder
        self._made: list[Thing] = []

    def provide(self, plan: ManifestPlan) -> None:
        """Create every object that a plan requires, and wait until its claims are bound."""
        for need in plan.requires:
            for thing in make(self._server, need, self._folder) if isinstance(need, ReferencedObject) else ():
                self._create(thing)
        claims = [thing["metadata"]["name"] for thing in self._made if thing["kind"] == "PersistentVolumeClaim"]
        until(lambda: all(is_bound(self._server, name) for name in claims))

    def _create(self, thing: Thing) -> None:
        try:
            self._server.request("POST", path(self._server, thing), body=thing)
            self._made.append(thing)
        except ClusterError as error:
            if error.status != 409:
                raise

    def clear(self) -> None:
        for thing in reversed(self._made):
            self._server.request("DELETE", path(self._server, thing, thing["metadata"]["name"]))


def is_bound(server: Client, claim: str) -> bool:
    found = server.get("v1", "PersistentVolumeClaim", claim)
    return found is not None and found["status"].get("phase") == "Bound"


def path(server: Client, thing: Thing, name: str = "") -> str:
    return server.path(thing["apiVersion"], thing["kind"], name, thing["metadata"].get("namespace"))


def make(server: Client, need: ReferencedObject, folder: Path) -> list[Thing]:
    place = need.namespace or server.namespace
    about: Thing = {"metadata": {"name": need.name, "namespace": place}}
    data = dict.fromkeys(need.required_entries, "torchyard")
    makers: dict[str, Callable[[], list[Thing]]] = {
        "ConfigMap": lambda: [{"apiVersion": "v1", "kind": "ConfigMap", "data": data, **about}],
        "Secret": lambda: [{"apiVersion": "v1", "kind": "Secret", "stringData": data, **about}],
        "ServiceAccount": lambda: [{"apiVersion": "v1", "kind": "ServiceAccount", **about}],
        "NetworkAttachmentDefinition": lambda: [network(place, need.name)],
        "PersistentVolumeClaim": lambda: volume(need.name, place, folder),
        "PriorityClass": lambda: [priority(need.name)],
    }
    return makers[need.object_kind]()


def volume(name: str, place: str, folder: Path) -> list[Thing]:
    """A claim, and the volume that is bound to it."""
    room = {"storage": "1Gi"}
    spec = {**SHARED, "capacity": room, "hostPath": {"path": str(folder), "type": "DirectoryOrCreate"}}
    own = f"{place}-{name}"
    claim = {**SHARED, "volumeName": own, "resources": {"requests": room}}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": own},
            "spec": {**spec, "claimRef": {"namespace": place, "name": name}},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": place},
            "spec": claim,
        },
    ]


def priority(name: str) -> Thing:
    return {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1}
