"""The volumes of a pod: devices, shared memory, and what the profile mounts."""

import re
from collections.abc import Iterator
from typing import Any

from torchyard.model.pod import LocalFile, Mount, Pod
from torchyard.model.profile import Profile

Manifest = dict[str, Any]
_FILES_VOLUME = "files"
_MAX_KEY_CHARS = 253  # of a ConfigMap


def build_volumes(profile: Profile, pod: Pod) -> list[tuple[Manifest, Manifest]]:
    """Each volume with its mount."""
    devices = {path: {"hostPath": {"path": path}} for path in pod.devices}
    memory = {"medium": "Memory", "sizeLimit": pod.shm}
    shm: dict[str, Manifest] = {"/dev/shm": {"emptyDir": memory}} if pod.shm else {}
    named = {path: _build_volume_source(mount) for path, mount in merge_mounts(profile).items()}
    read_only = {path for path, mount in merge_mounts(profile).items() if mount.read_only}
    return _name_volumes("volume", {**devices, **shm, **named}, read_only)


def build_init_volumes(pod: Pod, index: int) -> list[tuple[Manifest, Manifest]]:
    """Each volume of the init container with this index, and its mount; no other container has it."""
    mounts = pod.init[index].mounts
    sources = {path: _build_volume_source(mount) for path, mount in mounts.items()}
    return _name_volumes(f"init-{index}", sources, {path for path, mount in mounts.items() if mount.read_only})


def _name_volumes(prefix: str, sources: dict[str, Manifest], read_only: set[str]) -> list[tuple[Manifest, Manifest]]:
    return [
        (
            {"name": f"{prefix}-{index}", **source},
            {"name": f"{prefix}-{index}", "mountPath": path, **({"readOnly": True} if path in read_only else {})},
        )
        for index, (path, source) in enumerate(sources.items())
    ]


def build_files_volume(profile: Profile, config_map: str) -> list[Manifest]:
    """The volume of the profile's files; they can be executed, because a program may be one of them."""
    return [{"name": _FILES_VOLUME, "configMap": {"name": config_map, "defaultMode": 0o555}}] if profile.files else []


def build_file_mounts(profile: Profile) -> list[Manifest]:
    """A mount for each file: one of its folder would hide what the image has there."""
    return [
        {"name": _FILES_VOLUME, "mountPath": path, "subPath": key, "readOnly": True}
        for path, key, _ in name_files(profile)
    ]


def name_files(profile: Profile) -> Iterator[tuple[str, str, LocalFile]]:
    """The path of each file in the pods, its key in the ConfigMap, and the file; two files may have one name."""
    for index, (path, file) in enumerate(profile.files.items()):
        name = re.sub(r"[^A-Za-z0-9._-]", "_", path.rpartition("/")[2])
        yield path, f"{index}-{name}"[:_MAX_KEY_CHARS], file


def merge_mounts(profile: Profile) -> dict[str, Mount]:
    """The mounts of the fabric and the profile; at the same path, the profile's counts."""
    return {**(profile.network.mounts if profile.network else {}), **profile.mounts}


def _build_volume_source(mount: Mount) -> Manifest:
    """A volume's source."""
    sources: dict[str, Manifest] = {
        "persistentVolumeClaim": {"claimName": mount.claim},
        "configMap": {"name": mount.config_map},
        "secret": {"secretName": mount.secret},
        "hostPath": {"path": mount.host},
        "emptyDir": {"sizeLimit": mount.scratch},
        "ephemeral": {"volumeClaimTemplate": _build_claim_template(mount)},
    }
    return {kind: source for kind, source in sources.items() if next(iter(source.values()))}


def _build_claim_template(mount: Mount) -> Manifest | None:
    """The claim template of an ephemeral volume; None for any other mount."""
    if mount.ephemeral is None:
        return None
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": mount.ephemeral}}}
    return {"spec": {**spec, **({"storageClassName": mount.storage_class} if mount.storage_class else {})}}
