"""Checks the objects that the pods refer to, such as ConfigMaps, claims and networks, and the keys they must have."""

import difflib
from http import HTTPStatus
from typing import Any

from torchyard.kube.client import Client
from torchyard.model.errors import ClusterError
from torchyard.model.finding import Finding, failed_check, passed_check, warning_check
from torchyard.model.requirements import ReferencedObject

_API_VERSIONS = {
    "NetworkAttachmentDefinition": "k8s.cni.cncf.io/v1",
    "ComputeDomain": "resource.nvidia.com/v1beta1",
    "ResourceClaim": "resource.k8s.io/v1",
    "ResourceClaimTemplate": "resource.k8s.io/v1",
    "LocalQueue": "kueue.x-k8s.io/v1beta1",
    "PriorityClass": "scheduling.k8s.io/v1",
    "StorageClass": "storage.k8s.io/v1",
}
_CLUSTER_WIDE_KINDS = frozenset({"PriorityClass", "StorageClass"})
_CREATE_REMEDIES = {
    "ConfigMap": "`kubectl create configmap {name} -n {namespace} --from-file=FILE`",
    "Secret": "`kubectl create secret generic {name} -n {namespace} --from-literal=KEY=VALUE`",
    "ServiceAccount": "`kubectl create serviceaccount {name} -n {namespace}`",
    "PersistentVolumeClaim": "create the claim, or name another in `mounts` or the manifest",
    "NetworkAttachmentDefinition": "create it, or name another in `pod.networks`",
    "ComputeDomain": "create it, as docs/hardware.md shows, in namespace {namespace}",
    "ResourceClaim": "create it in namespace {namespace}, or name another in `pod.patch` or the manifest",
    "ResourceClaimTemplate": "create it, as docs/hardware.md shows, in namespace {namespace}",
    "LocalQueue": "ask the administrator of Kueue, or name another in options.local_queue (null for none), or in the "
    "manifest's label kueue.x-k8s.io/queue-name",
    "PriorityClass": "ask the cluster's administrator, or name another in `pod.priority_class` (null for none) or the "
    "manifest",
    "StorageClass": "ask the cluster's administrator, or name another in `mounts` or the manifest",
}


def check_reference(client: Client, reference: ReferencedObject, name: str, pod_count: int) -> Finding:
    """Check that an object exists and has the required entries; a claim must have a volume for `pod_count` pods.

    Raises ClusterError if the object cannot be read.
    """
    namespace = None if reference.object_kind in _CLUSTER_WIDE_KINDS else reference.namespace or client.namespace
    version = _API_VERSIONS.get(reference.object_kind, "v1")
    obj = client.get(version, reference.object_kind, reference.name, namespace=namespace)
    remedy = _CREATE_REMEDIES[reference.object_kind].format(name=reference.name, namespace=namespace)
    if obj is None:
        location = f"in namespace {namespace}" if namespace else "in this cluster"
        similar_names = _describe_similar_names(client, reference, version, namespace)
        return failed_check(name, f"is not {location}; {similar_names}", remedy)
    if reference.object_kind == "PersistentVolumeClaim":
        return _check_claim(client, name, obj, pod_count)
    present = obj.get("data", {}).keys() | obj.get("binaryData", {}).keys()
    missing = [key for key in reference.required_entries if key not in present]
    if missing:
        detail = f"has no key {', '.join(missing)}; there are: {', '.join(sorted(present)) or 'none'}"
        edit_command = f"`kubectl edit {reference.object_kind.lower()} {reference.name} -n {namespace}`"
        return failed_check(name, detail, edit_command)
    if reference.required_entries:
        return passed_check(name, f"has {', '.join(reference.required_entries)}")
    return passed_check(name, "exists")


def _describe_similar_names(client: Client, reference: ReferencedObject, version: str, namespace: str | None) -> str:
    """Up to five existing names, the most similar ones first; or why they cannot be listed."""
    try:
        objects = client.request("GET", client.path(version, reference.object_kind, namespace=namespace))["items"]
    except ClusterError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return f"this cluster does not serve the kind ({version})"
        return f"the existing names cannot be listed: {error.message}"
    names = sorted(obj["metadata"]["name"] for obj in objects)
    visible = (difflib.get_close_matches(reference.name, names, n=5, cutoff=0.5) or names)[:5]
    suffix = f" and {len(names) - len(visible)} more" if len(names) > len(visible) else ""
    return f"there are: {', '.join(visible) or 'none'}{suffix}"


def _check_claim(client: Client, name: str, claim: dict[str, Any], pod_count: int) -> Finding:
    """Check that a claim has a volume, or gets one with its first pod, and that enough nodes may mount it."""
    phase = claim.get("status", {}).get("phase", "Pending")
    spec = claim["spec"]
    remedy = f"see `kubectl -n {claim['metadata']['namespace']} describe pvc {claim['metadata']['name']}`"
    if phase not in ("Bound", "Pending"):
        return failed_check(name, f"is {phase}: its volume is gone", remedy)
    if phase == "Pending" and not _is_binding_delayed(client, spec.get("storageClassName")):
        return warning_check(name, "is Pending: its pods wait until it has a volume", remedy)
    modes = spec.get("accessModes", [])
    can_be_shared = "ReadWriteMany" in modes or "ReadOnlyMany" in modes
    if pod_count > 1 and not can_be_shared:
        detail = f"is {phase} and {', '.join(modes)}: its {pod_count} pods must share one node"
        return warning_check(name, detail, "use a claim that is ReadWriteMany or ReadOnlyMany")
    if phase == "Pending":
        return passed_check(name, "is Pending, until its first pod")
    return passed_check(name, f"is {phase}")


def _is_binding_delayed(client: Client, storage_class: str | None) -> bool:
    """Whether a volume of the class is created only when its first pod mounts it."""
    if not storage_class:
        return False
    obj = client.get("storage.k8s.io/v1", "StorageClass", storage_class, namespace=None) or {}
    return obj.get("volumeBindingMode") == "WaitForFirstConsumer"
