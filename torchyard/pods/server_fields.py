"""What an API server has added to an object that `kubectl get -o yaml` prints, and what a new object must not have."""

import copy
from typing import Any

from torchyard.pods.volumes import Manifest

_READ_FIELDS = (
    "uid",
    "resourceVersion",
    "managedFields",
    "generation",
    "selfLink",
)  # of metadata: only a server has them
_METADATA_FIELDS = (
    *_READ_FIELDS,
    "clusterName",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "ownerReferences",
)
_ANNOTATION_PREFIXES = ("kubectl.kubernetes.io/last-applied-configuration", "pv.kubernetes.io/", "batch.kubernetes.io/")
_JOB_LABELS = ("batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name", "controller-uid", "job-name")
_SERVICE_FIELDS = ("clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy")
_CLAIM_FIELDS = ("volumeName",)


def drop_server_fields(document: Manifest) -> tuple[Manifest, list[str]]:
    """A copy of an object without what a server has added, and the paths of what is left out.

    Of an object that no server has returned only the empty times of creation are left out, which kubectl prints for
    every object that it generates, and which the API server refuses in a pod template.
    """
    document = copy.deepcopy(document)
    metadata = document.get("metadata")
    dropped: list[str] = []
    if isinstance(metadata, dict) and any(key in metadata for key in _READ_FIELDS):
        # A server returns the final name as well as the one that it was generated from.
        dropped = _drop_keys(document, ("status",), "") + _drop_keys(metadata, _METADATA_FIELDS, "metadata.")
        annotations = metadata.get("annotations")
        if isinstance(annotations, dict):
            added = tuple(key for key in annotations if str(key).startswith(_ANNOTATION_PREFIXES))
            dropped += _drop_keys(annotations, added, "metadata.annotations.")
        spec = document.get("spec")
        if isinstance(spec, dict):
            dropped += _drop_spec_fields(str(document.get("apiVersion")), str(document.get("kind")), spec)
    return document, dropped + _drop_empty_times(document, "")


def _drop_empty_times(node: Any, prefix: str) -> list[str]:
    """Remove each `creationTimestamp: null` of the metadata in an object; return their paths."""
    dropped = []
    if isinstance(node, list):
        for index, item in enumerate(node):
            dropped += _drop_empty_times(item, f"{prefix.removesuffix('.')}[{index}].")
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "metadata" and isinstance(value, dict) and value.get("creationTimestamp", "") is None:
                dropped += _drop_keys(value, ("creationTimestamp",), f"{prefix}metadata.")
            dropped += _drop_empty_times(value, f"{prefix}{key}.")
    return dropped


def _drop_spec_fields(api: str, kind: str, spec: dict[str, Any]) -> list[str]:
    """Leave out what a server has chosen for one object, and refuses in another one."""
    if kind == "Service" and spec.get("clusterIP") not in (None, "None"):
        return _drop_keys(spec, ("clusterIP", *_SERVICE_FIELDS), "spec.")
    if kind == "PersistentVolumeClaim":
        return _drop_keys(spec, _CLAIM_FIELDS, "spec.")
    if (api, kind) != ("batch/v1", "Job") or spec.get("manualSelector"):
        return []
    dropped = _drop_keys(spec, ("selector",), "spec.")
    template = spec.get("template")
    pod_metadata = template.get("metadata") if isinstance(template, dict) else None
    labels = pod_metadata.get("labels") if isinstance(pod_metadata, dict) else None
    if isinstance(labels, dict):
        dropped += _drop_keys(labels, _JOB_LABELS, "spec.template.metadata.labels.")
    return dropped


def _drop_keys(mapping: dict[str, Any], keys: tuple[str, ...], prefix: str) -> list[str]:
    """Remove keys; return the paths of those that it had."""
    present = [key for key in keys if key in mapping]
    for key in present:
        del mapping[key]
    return [f"{prefix}{key}" for key in present]
