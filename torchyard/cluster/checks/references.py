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


def check_reference(api: Client, need: ReferencedObject, name: str, pods: int) -> Check:
    place = None if need.object_kind in _CLUSTER_WIDE_KINDS else need.namespace or api.namespace
    version = _API_VERSIONS.get(need.object_kind, "v1")
    found = api.get(version, need.object_kind, need.name, namespace=place)
    remedy = _CREATE_REMEDIES[need.object_kind].format(name=need.name, place=place)
    if found is None:
        where = f"in namespace {place}" if place else "in this cluster"
        return failed_check(name, f"is not {where}; {_list_similar_names(api, need, version, place)}", remedy)
    if need.object_kind == "PersistentVolumeClaim":
        return _check_claim(api, name, found, pods)
    present = sorted({**found.get("data", {}), **found.get("binaryData", {})})
    if missing := [key for key in need.required_entries if key not in present]:
        detail = f"has no key {', '.join(missing)}; there are: {', '.join(present) or 'none'}"
        return failed_check(name, detail, f"`kubectl edit {need.object_kind.lower()} {need.name} -n {place}`")
    return passed_check(name, f"has {', '.join(need.required_entries)}" if need.required_entries else "exists")


def _list_similar_names(api: Client, need: ReferencedObject, version: str, place: str | None) -> str:
    """The names that exist, the most similar ones first."""
    try:
        found = api.request("GET", api.path(version, need.object_kind, namespace=place))["items"]
    except ClusterError as error:
        if error.status == 404:
            return f"this cluster does not know the kind ({version})"
        return f"what exists cannot be listed: {error.message}"
    names = sorted(each["metadata"]["name"] for each in found)
    shown = (difflib.get_close_matches(need.name, names, n=5, cutoff=0.5) or names)[:5]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"there are: {', '.join(shown) or 'none'}{more}"


def _check_claim(api: Client, name: str, claim: dict[str, Any], pods: int) -> Check:
    """Check that a claim has a volume, or gets one with its first pod, and that enough nodes may mount it."""
    phase, spec = claim.get("status", {}).get("phase", "Pending"), claim["spec"]
    see = f"see `kubectl -n {claim['metadata']['namespace']} describe pvc {claim['metadata']['name']}`"
    if phase not in ("Bound", "Pending"):
        return failed_check(name, f"is {phase}: its volume is gone", see)
    if phase == "Pending" and not _is_binding_delayed(api, spec.get("storageClassName")):
        return warning_check(name, "is Pending: its pods wait until it has a volume", see)
    modes = spec.get("accessModes", [])
    if pods > 1 and not {"ReadWriteMany", "ReadOnlyMany"} & set(modes):
        detail = f"is {phase} and {', '.join(modes)}: its {pods} pods must share one node"
        return warning_check(name, detail, "use a claim that is ReadWriteMany or ReadOnlyMany")
    return passed_check(name, f"is {phase}" + (", until its first pod" if phase == "Pending" else ""))


def _is_binding_delayed(api: Client, storage_class: str | None) -> bool:
    """Whether a volume of the class is created only when its first pod mounts it."""
    if not storage_class:
        return False
    found = api.get("storage.k8s.io/v1", "StorageClass", storage_class, namespace=None) or {}
    return found.get("volumeBindingMode") == "WaitForFirstConsumer"
