"""The rendezvous store of a run in a cluster: one etcd with the v2 API, used by one attempt only."""

from typing import Any

from torchyard.diagnosis.pod_facts import ROLE_LABEL, RUN_LABEL
from torchyard.model.profile import Profile
from torchyard.model.requirements import ClusterRequirement, Permission, get_resource, is_cluster_scoped
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import Run
from torchyard.pods import template
from torchyard.pods.volumes import drop_empty

# The newest line that serves the v2 API, which torchrun's etcd-v2 needs; 3.6 dropped it (docs/etcd.md).
DEFAULT_IMAGE = "quay.io/coreos/etcd:v3.5.35"
CLIENT_PORT = 2379
# Deleting one of these loses data: the files of a claim, or everything in the object.
DATA_KINDS = frozenset(
    {"PersistentVolumeClaim", "PersistentVolume", "VolumeSnapshot", "Namespace", "CustomResourceDefinition"}
)
DISPOSABLE_ROLE = "disposable"  # the role of a companion whose data the profile allows to be deleted
PERMISSION_VERBS = ("create", "get", "list", "patch", "delete")  # patch: the job becomes its owner


def etcd_name(profile: Profile, run: Run) -> str:
    """The name of the store's objects."""
    return f"{run.job(profile)}-etcd"


def build_etcd(profile: ResolvedProfile, run: Run, image: str) -> tuple[dict[str, Any], ...]:
    """The Service, the policy that keeps others out, and the pod, in the order of creation."""
    name = etcd_name(profile, run)
    labels = template.attempt_labels(profile, run) | {ROLE_LABEL: "store"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"selector": labels, "ports": [{"name": "client", "port": CLIENT_PORT}]},
    }
    etcd = _build_pod(name, labels, image)
    etcd["spec"] |= _build_placement(profile)
    return (service, *_build_policies(profile, run, labels), etcd)


def _build_policies(profile: ResolvedProfile, run: Run, labels: dict[str, str]) -> tuple[dict[str, Any], ...]:
    """The policy that lets only the run's own pods reach the store.

    Agents unpickle its values, so a process that writes to it can run code in every agent. There is no policy if the
    pods use their nodes' network: no label identifies them there, and it would block them. It names no port, because a
    service mesh may route the connections through one of its own.
    """
    if profile.pod.host_network:
        return ()
    run_pods = {"podSelector": {"matchLabels": template.attempt_labels(profile, run)}}
    spec = {"podSelector": {"matchLabels": labels}, "policyTypes": ["Ingress"], "ingress": [{"from": [run_pods]}]}
    metadata = {"name": etcd_name(profile, run), "labels": labels}
    return ({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec},)


def is_companion_object(obj: dict[str, Any]) -> bool:
    """Whether an object accompanies the job in a user's manifest, and may be older than the run.

    One that outlives the run, because it holds data or has no namespace, does not have the run's label.
    """
    may_outlive_run = obj["kind"] in DATA_KINDS or is_cluster_scoped(get_resource(obj["apiVersion"], obj["kind"]))
    outlives_run = may_outlive_run and RUN_LABEL not in (obj["metadata"].get("labels") or {})
    return outlives_run or _get_role(obj) in ("companion", DISPOSABLE_ROLE)


def _get_role(obj: dict[str, Any]) -> str:
    """The role that an object's label gives it; empty for the job itself."""
    return str((obj["metadata"].get("labels") or {}).get(ROLE_LABEL, ""))


def _build_placement(profile: ResolvedProfile) -> dict[str, Any]:
    """The placement of the profile's pods, but on nodes of any shape: the store needs no GPU."""
    pod = profile.pod
    placement = {
        "nodeSelector": dict(pod.node_selector),
        "tolerations": template.build_tolerations(pod.tolerations),
    }
    return drop_empty(placement) | template.build_pod_identity(pod)


def _build_pod(name: str, labels: dict[str, str], image: str) -> dict[str, Any]:
    """The etcd pod, ready when the v2 API answers: /health returns true even if that API is off."""
    client_url = f"http://{name}:{CLIENT_PORT}"
    etcd = {
        "name": "etcd",
        "image": image,
        "command": [
            "/usr/local/bin/etcd",
            "--enable-v2",
            "--data-dir=/data",
            f"--listen-client-urls=http://0.0.0.0:{CLIENT_PORT}",
            f"--advertise-client-urls={client_url}",
        ],
        "ports": [{"name": "client", "containerPort": CLIENT_PORT}],
        "readinessProbe": {"httpGet": {"path": "/v2/keys", "port": CLIENT_PORT}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "containers": [etcd],
            "restartPolicy": "Never",  # an etcd restarted empty would only hide that the nodes lost each other
            "enableServiceLinks": False,  # variables of a Service called etcd would be read as etcd's settings
            "terminationGracePeriodSeconds": 1,
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
    }


def list_etcd_requirements(profile: Profile) -> tuple[ClusterRequirement, ...]:
    """The permissions that the store needs; none if the rendezvous needs no store."""
    if profile.rendezvous != "etcd-v2":
        return ()
    return tuple(Permission(verbs=PERMISSION_VERBS, resource=kind) for kind in ("pods", "services"))
