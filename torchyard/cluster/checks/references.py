"""Checks what the pods refer to: ConfigMaps, Secrets, claims, accounts and networks, and the keys they must have."""

import difflib
from typing import Any

from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.requirements import Check, ReferencedObject, failed_check, passed_check, warning_check

_API_VERSIONS = {
    "NetworkAttachmentDefinition": "k8s.cni.cncf.io/v1",
    "ComputeDomain": "resource.nvidia.com/v1beta1",
    "ResourceClaimTemplate": "resource.k8s.io/v1",
    "LocalQueue": "kueue.x-k8s.io/v1beta1",
    "PriorityClass": "scheduling.k8s.io/v1",
    "StorageClass": "storage.k8s.io/v1",
}
_CLUSTER_WIDE_KINDS = frozenset({"PriorityClass", "StorageClass"})
_CREATE_REMEDIES = {
    "ConfigMap": "`kubectl create configmap {name} -n {place} --from-file=FILE`",
    "Secret": "`kubectl create secret generic {name} -n {place} --from-literal=KEY=VALUE`",
    "ServiceAccount": "`kubectl create serviceaccount {name} -n {place}`",
    "PersistentVolumeClaim": "create the claim, or name another in `mounts`",
    "NetworkAttachmentDefinition": "create it, or name another in `pod.networks`",
    "ComputeDomain": "create it, as docs/hardware.md shows, in namespace {place}",
    "ResourceClaimTemplate": "create it, as docs/hardware.md shows, in namespace {place}",
    "LocalQueue": "ask who runs Kueue here, or name another in options.queue (null for none)",
    "PriorityClass": "ask who runs the cluster, or name another in `pod.priority_class` (null for none)",
    "StorageClass": "ask who runs the cluster, or name another in `mounts`",
}


def check_reference(client: Client, reference: ReferencedObject, name: str, pod_count: int) -> Check:
    namespace = None if reference.object_kind in _CLUSTER_WIDE_KINDS else reference.namespace or client.namespace
    version = _API_VERSIONS.get(reference.object_kind, "v1")
    obj = client.get(version, reference.object_kind, reference.name, namespace=namespace)
    remedy = _CREATE_REMEDIES[reference.object_kind].format(name=reference.name, place=namespace)
    if obj is None:
        location = f"in namespace {namespace}" if namespace else "in this cluster"
        return failed_check(
            name, f"is not {location}; {_list_similar_names(client, reference, version, namespace)}", remedy
        )
    if reference.object_kind == "PersistentVolumeClaim":
        return _check_claim(client, name, obj, pod_count)
    present = sorted({**obj.get("data", {}), **obj.get("binaryData", {})})
    if missing := [key for key in reference.required_entries if key not in present]:
        detail = f"has no key {', '.join(missing)}; there are: {', '.join(present) or 'none'}"
        return failed_check(
            name, detail, f"`kubectl edit {reference.object_kind.lower()} {reference.name} -n {namespace}`"
        )
    return passed_check(
        name, f"has {', '.join(reference.required_entries)}" if reference.required_entries else "exists"
    )


def _list_similar_names(client: Client, reference: ReferencedObject, version: str, namespace: str | None) -> str:
    """The names that exist, the most similar ones first."""
    try:
        objects = client.request("GET", client.path(version, reference.object_kind, namespace=namespace))["items"]
    except ClusterError as error:
        if error.status == 404:
            return f"this cluster does not know the kind ({version})"
        return f"what exists cannot be listed: {error.message}"
    names = sorted(obj["metadata"]["name"] for obj in objects)
    visible = (difflib.get_close_matches(reference.name, names, n=5, cutoff=0.5) or names)[:5]
    suffix = f" and {len(names) - len(visible)} more" if len(names) > len(visible) else ""
    return f"there are: {', '.join(visible) or 'none'}{suffix}"


def _check_claim(client: Client, name: str, claim: dict[str, Any], pod_count: int) -> Check:
    """Check that a claim has a volume, or gets one with its first pod, and that enough nodes may mount it."""
    phase, spec = claim.get("status", {}).get("phase", "Pending"), claim["spec"]
    remedy = f"see `kubectl -n {claim['metadata']['namespace']} describe pvc {claim['metadata']['name']}`"
    if phase not in ("Bound", "Pending"):
        return failed_check(name, f"is {phase}: its volume is gone", remedy)
    if phase == "Pending" and not _is_binding_delayed(client, spec.get("storageClassName")):
        return warning_check(name, "is Pending: its pods wait until it has a volume", remedy)
    modes = spec.get("accessModes", [])
    if pod_count > 1 and not {"ReadWriteMany", "ReadOnlyMany"} & set(modes):
        detail = f"is {phase} and {', '.join(modes)}: its {pod_count} pods must share one node"
        return warning_check(name, detail, "use a claim that is ReadWriteMany or ReadOnlyMany")
    return passed_check(name, f"is {phase}" + (", until its first pod" if phase == "Pending" else ""))


def _is_binding_delayed(client: Client, storage_class: str | None) -> bool:
    """Whether a volume of the class is created only when its first pod mounts it."""
    if not storage_class:
        return False
    obj = client.get("storage.k8s.io/v1", "StorageClass", storage_class, namespace=None) or {}
    return obj.get("volumeBindingMode") == "WaitForFirstConsumer"
