"""The volumes of a pod: devices, shared memory, and what the profile mounts."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torchyard.agents import job_files
from torchyard.model.pod import LocalFile, Mount, Pod
from torchyard.model.profile import Profile
from torchyard.model.resolved import ResolvedProfile

Manifest = dict[str, Any]
_FILES_VOLUME = "files"
_JOB_FILES_VOLUME = "torchyard"
_RECORDS_VOLUME = "torchyard-records"
CODE_VOLUME = "torchyard-code"
CODE_SOURCE_VOLUME = "torchyard-code-source"
CODE_CLAIM_VOLUME = "torchyard-code-claim"
OWN_VOLUMES = frozenset(
    {_FILES_VOLUME, _JOB_FILES_VOLUME, _RECORDS_VOLUME, CODE_VOLUME, CODE_SOURCE_VOLUME, CODE_CLAIM_VOLUME}
)
_MAX_RECORDS_SIZE = "16Mi"  # of memory: a rank writes 16 KiB
_MAX_KEY_CHARS = 253  # of a ConfigMap


class MountedVolume(NamedTuple):
    """A volume of a pod, and its mount in one container."""

    volume: Manifest
    mount: Manifest


class MountedFile(NamedTuple):
    """A file of the profile: its path in the pods, its key in the ConfigMap, and its content."""

    path: str
    key: str
    file: LocalFile


def drop_empty(fields: Manifest) -> Manifest:
    """The fields that have a value: Kubernetes sets defaults for the others. False and 0 are values."""
    return {key: value for key, value in fields.items() if value not in (None, "", [], {})}


def build_volumes(profile: ResolvedProfile) -> list[MountedVolume]:
    """The volumes of the job's container: devices, shared memory, and the mounts of the fabric and the profile."""
    sources: dict[str, Manifest] = {path: {"hostPath": {"path": path}} for path in profile.pod.devices}
    for path, size in profile.pod.memory_volumes.items():
        sources[path] = {"emptyDir": {"medium": "Memory", "sizeLimit": size}}
    for path, mount in profile.mounts.items():
        sources[path] = _build_volume_source(mount)
    return _name_volumes("volume", sources, _list_read_only_paths(profile.mounts))


def build_init_volumes(pod: Pod, index: int) -> list[MountedVolume]:
    """The volumes of the init container with this index; no other container has them."""
    mounts = pod.init[index].mounts
    sources = {path: _build_volume_source(mount) for path, mount in mounts.items()}
    return _name_volumes(f"init-{index}", sources, _list_read_only_paths(mounts))


def _list_read_only_paths(mounts: Mapping[str, Mount]) -> set[str]:
    return {path for path, mount in mounts.items() if mount.read_only}


def _name_volumes(prefix: str, sources: Mapping[str, Manifest], read_only_paths: set[str]) -> list[MountedVolume]:
    """Number the volumes in the order of `sources`, which has a volume's source for each path of a mount."""
    volumes = []
    for index, (path, source) in enumerate(sources.items()):
        name = f"{prefix}-{index}"
        mount: Manifest = {"name": name, "mountPath": path}
        if path in read_only_paths:
            mount["readOnly"] = True
        volumes.append(MountedVolume({"name": name} | source, mount))
    return volumes


def build_files_volume(profile: Profile, config_map: str) -> list[Manifest]:
    """The volume of the profile's files; empty if it has none. The files can be executed, as one may be a program."""
    if not profile.files:
        return []
    return [{"name": _FILES_VOLUME, "configMap": {"name": config_map, "defaultMode": 0o555}}]


def build_file_mounts(profile: Profile) -> list[Manifest]:
    """A mount for each file: a mount of its folder would hide what the image has there."""
    return [
        {"name": _FILES_VOLUME, "mountPath": path, "subPath": key, "readOnly": True}
        for path, key, _ in name_files(profile)
    ]


def name_files(profile: Profile) -> Iterator[MountedFile]:
    """Yield the profile's files with their keys, which are numbered because two files may have the same name."""
    for index, (path, file) in enumerate(profile.files.items()):
        name = re.sub(r"[^A-Za-z0-9._-]", "_", path.rpartition("/")[2])
        yield MountedFile(path, f"{index}-{name}"[:_MAX_KEY_CHARS], file)


def build_job_file_volumes(profile: ResolvedProfile, config_map: str) -> list[MountedVolume]:
    """The volumes of torchyard's own files, and of what the recorder writes; empty if the job needs no such files.

    The records are in memory that belongs to the pod: a full disk does not prevent them, and a folder of the node, such
    as a /tmp that the pod mounts, does not keep them.
    """
    paths = job_files.list_job_files(profile)
    if not paths:
        return []
    items = [{"key": name_job_file(path), "path": path} for path in paths]
    source = {"name": config_map, "items": items, "defaultMode": 0o444}
    if not job_files.needs_config_map(profile):
        source["optional"] = True
    mount = {"name": _JOB_FILES_VOLUME, "mountPath": job_files.MOUNTED.files, "readOnly": True}
    volumes = [MountedVolume({"name": _JOB_FILES_VOLUME, "configMap": source}, mount)]
    if profile.on_hang != "off":
        memory = {"medium": "Memory", "sizeLimit": _MAX_RECORDS_SIZE}
        mount = {"name": _RECORDS_VOLUME, "mountPath": job_files.MOUNTED.records}
        volumes.append(MountedVolume({"name": _RECORDS_VOLUME, "emptyDir": memory}, mount))
    return volumes


def name_job_file(path: str) -> str:
    """The key of one of torchyard's own files in the ConfigMap; those of the profile's files start with a digit."""
    return f"torchyard-{path.replace('/', '-')}"


def _build_volume_source(mount: Mount) -> Manifest:
    """A volume's source, under the key that its kind has in Kubernetes; the model allows one kind per mount."""
    if mount.ephemeral:
        return {"ephemeral": {"volumeClaimTemplate": _build_claim_template(mount)}}
    for kind, key, name in (
        ("persistentVolumeClaim", "claimName", mount.claim),
        ("configMap", "name", mount.config_map),
        ("secret", "secretName", mount.secret),
        ("hostPath", "path", mount.host),
        ("emptyDir", "sizeLimit", mount.scratch),
    ):
        if name:
            return {kind: {key: name}}
    return {}


def _build_claim_template(mount: Mount) -> Manifest:
    """The claim template of an ephemeral volume."""
    spec: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": mount.ephemeral}},
    }
    if mount.storage_class:
        spec["storageClassName"] = mount.storage_class
    return {"spec": spec}
