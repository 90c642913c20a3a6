"""The rendezvous store of a run in a cluster: one etcd that serves the v2 API, for one attempt alone."""

from typing import Any

from torchyard.model.profile import Profile
from torchyard.model.requirements import ClusterNeed, Right
from torchyard.model.run import Run
from torchyard.pods import template

# The newest line that serves the v2 API, which torchrun's etcd-v2 needs; 3.6 dropped it (docs/etcd.md).
IMAGE = "quay.io/coreos/etcd:v3.5.35"
PORT = 2379
# What is lost for good with such an object: the files of a claim, or everything in it.
WITH_DATA = frozenset(
    {
        *("PersistentVolumeClaim", "PersistentVolume", "VolumeSnapshot"),
        *("Namespace", "CustomResourceDefinition"),
    }
)
DISPOSABLE = "disposable"  # the role of a companion whose data the profile lets go
VERBS = ("create", "get", "list", "patch", "delete")  # patch: the job becomes its owner
POLICY = "NetworkPolicy"


def name(profile: Profile, run: Run) -> str:
    return f"{run.job(profile)}-etcd"


def objects(profile: Profile, run: Run, image: str) -> tuple[dict[str, Any], ...]:
    """The Service, the policy that keeps others out, and the pod, in the order of creation."""
    called = name(profile, run)
    labels = {**template.labels(profile, run), template.ROLE: "store"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": called, "labels": labels},
        "spec": {"selector": labels, "ports": [{"name": "client", "port": PORT}]},
    }
    etcd = pod(called, labels, image)
    etcd["spec"] |= where(profile)
    return (service, *policies(profile, run, labels), etcd)


def policies(profile: Profile, run: Run, labels: dict[str, str]) -> tuple[dict[str, Any], ...]:
    """Only the run's own pods reach the store: who writes to it can run code in every agent, which unpickle its values.

    None where the pods use their nodes' network: there they are known by no label, and the policy would keep them out.
    No port is named, because a service mesh may carry the connections through one of its own.
    """
    if template.pod_needs(profile).host_network:
        return ()
    own = {"podSelector": {"matchLabels": template.labels(profile, run)}}
    spec = {"podSelector": {"matchLabels": labels}, "policyTypes": ["Ingress"], "ingress": [{"from": [own]}]}
    metadata = {"name": name(profile, run), "labels": labels}
    return ({"apiVersion": "networking.k8s.io/v1", "kind": POLICY, "metadata": metadata, "spec": spec},)


def is_optional(thing: dict[str, Any]) -> bool:
    """Whether a run does without this object of its store, where its user may not make it."""
    return bool(thing["kind"] == POLICY and role(thing) == "store")


def is_companion(thing: dict[str, Any]) -> bool:
    """Whether an object stands beside the job in a manifest of the user's own, and may be older than the run.

    One that holds data, and outlives the run, has no label of it.
    """
    kept = thing["kind"] in WITH_DATA and template.RUN not in (thing["metadata"].get("labels") or {})
    return kept or role(thing) in ("companion", DISPOSABLE)


def role(thing: dict[str, Any]) -> str:
    return str((thing["metadata"].get("labels") or {}).get(template.ROLE, ""))


def where(profile: Profile) -> dict[str, Any]:
    """Where the profile's pods may go, but not on the shape's nodes alone: the store needs no GPU."""
    needs = template.pod_needs(profile)
    tolerated = [{"key": key, "operator": "Exists"} for key in needs.tolerations]
    made = {"nodeSelector": dict(needs.node_selector), "tolerations": tolerated, **template.identity(needs)}
    return {key: value for key, value in made.items() if value}


def pod(called: str, labels: dict[str, str], image: str) -> dict[str, Any]:
    """etcd, ready when its v2 API answers: /health says true even where that API is off."""
    client = f"http://{called}:{PORT}"
    etcd = {
        "name": "etcd",
        "image": image,
        "command": [
            "/usr/local/bin/etcd",
            "--enable-v2",
            "--data-dir=/data",
            f"--listen-client-urls=http://0.0.0.0:{PORT}",
            f"--advertise-client-urls={client}",
        ],
        "ports": [{"name": "client", "containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/v2/keys", "port": PORT}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": called, "labels": labels},
        "spec": {
            "containers": [etcd],
            "restartPolicy": "Never",  # an etcd that comes back empty would only hide that the nodes lost each other
            "enableServiceLinks": False,  # a Service called etcd would be taken for etcd's own settings
            "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
    }


def requires(profile: Profile) -> tuple[ClusterNeed, ...]:
    if profile.rendezvous != "etcd-v2":
        return ()
    return tuple(Right(verbs=VERBS, resource=kind) for kind in ("pods", "services"))
