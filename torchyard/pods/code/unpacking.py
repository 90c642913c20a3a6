"""The code of a job in its pods: an init container unpacks it into an empty volume, where the job's container starts.

The init container has the job's own image, which the node needs anyway. A ConfigMap of the attempt has the archive or,
if that is too large, a signed URL of it. It gets them when it is created: the plan has only the digest. A large archive
may also be on a volume, to which a pod of its own brings it before the job is created (upload.py).
"""

import base64
from pathlib import Path
from typing import NamedTuple

from torchyard.agents.job_code import MAX_PACKED_BYTES, find_claim, get_pod_folder
from torchyard.host import code as host_code
from torchyard.model.finding import Finding
from torchyard.model.profile import Profile
from torchyard.model.resolved import ResolvedProfile
from torchyard.pods.volumes import CODE_CLAIM_VOLUME, CODE_SOURCE_VOLUME, CODE_VOLUME, Manifest, drop_empty

CONTAINER_NAME = "torchyard-code"
CODE_ROLE = "code"
SOURCE_FOLDER = "/run/torchyard-code"
_ARCHIVE_FOLDER = "/run/torchyard-code-claim"  # of the init container: the folder of the archive on a claim
ARCHIVE_KEY = "code.tar.gz"
_URL_KEY = "url"
_PROGRAM_KEY = "unpack.py"
_DIGEST_ANNOTATION = "torchyard/code"
# -I: Python imports nothing from the image's work folder. tar is for an image without Python, which downloads nothing.
_UNPACK_LINES = f"""\
if command -v python3 >/dev/null; then
exec python3 -I {SOURCE_FOLDER}/{_PROGRAM_KEY} "$3" "$1" "$2"
fi
exec tar -xzf "$3/{ARCHIVE_KEY}" -C "$1"
"""
PROXY_VARIABLES = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"})  # in upper or lower case
_PLAIN_RESOURCES = ("cpu", "memory", "ephemeral-storage")


def find_code_faults(profile: Profile) -> list[Finding]:
    """A finding for each setting of the profile with which its code cannot be brought into pods."""
    folder = get_pod_folder(profile)
    if profile.code is None or folder is None:
        return []
    findings: list[Finding] = []
    if folder in profile.mounts:
        problem = "the code is there; choose another path, or name another folder for the code as pod.workdir"
        findings.append(Finding(f"mounts.{folder}", problem))
    if folder == "/":
        findings.append(Finding("pod.workdir", "the code would hide the whole image; name another folder than /"))
    packed_bytes = profile.code.archive.packed_bytes
    if profile.code.store and profile.code.claim:
        findings.append(Finding("code", "store and claim are two places for the same archive; name one of them"))
    if packed_bytes > MAX_PACKED_BYTES and not (profile.code.store or profile.code.claim):
        problem = (
            f"{profile.code.path} has {packed_bytes:,} bytes when packed, the limit in pods is {MAX_PACKED_BYTES:,}"
        )
        remedy = (
            "exclude what is not code (code.exclude), mount data as a volume, or name an object store (code.store) or "
            "a volume claim (code.claim)"
        )
        findings.append(Finding("code", problem, remedy))
    return findings


def build_code_volumes(profile: ResolvedProfile, config_map: str) -> list[Manifest]:
    """The volumes of the pod: the unpacked code, and its archive; empty without code."""
    if profile.code is None:
        return []
    volumes: list[Manifest] = [
        {"name": CODE_VOLUME, "emptyDir": {}},
        {"name": CODE_SOURCE_VOLUME, "configMap": {"name": config_map, "defaultMode": 0o444}},
    ]
    claim = find_claim(profile)
    if claim:
        volumes.append({"name": CODE_CLAIM_VOLUME, "persistentVolumeClaim": {"claimName": claim.name}})
    return volumes


class ContainerParts(NamedTuple):
    """What the init container takes over from the job's container.

    proxy_env: the variables that name the proxies to the outside, in PROXY_VARIABLES.
    """

    security_context: Manifest
    resources: Manifest
    proxy_env: list[Manifest]


def build_code_mounts(profile: ResolvedProfile) -> list[Manifest]:
    """The mount of the unpacked code; empty without code."""
    folder = get_pod_folder(profile)
    return [{"name": CODE_VOLUME, "mountPath": folder}] if folder else []


def build_code_container(profile: ResolvedProfile, parts: ContainerParts) -> list[Manifest]:
    """The init container that unpacks the code; empty without code.

    It has the rights of the job's container, so that a namespace that accepts the one accepts the other, and requests
    as much CPU and memory: it has ended before that one starts, and the pod keeps its quality of service.
    """
    folder = get_pod_folder(profile)
    if profile.code is None or folder is None:
        return []
    own_resources = {
        key: {name: amount for name, amount in parts.resources.get(key, {}).items() if name in _PLAIN_RESOURCES}
        for key in ("requests", "limits")
    }
    digest = profile.code.archive.digest
    archive_folder = SOURCE_FOLDER
    mounts = build_code_mounts(profile)
    mounts.append({"name": CODE_SOURCE_VOLUME, "mountPath": SOURCE_FOLDER, "readOnly": True})
    claim = find_claim(profile)
    if claim:
        archive_folder = _ARCHIVE_FOLDER
        claim_mount = {"name": CODE_CLAIM_VOLUME, "mountPath": _ARCHIVE_FOLDER, "subPath": claim.folder}
        mounts.append(claim_mount | {"readOnly": True})
    fields = {
        "name": CONTAINER_NAME,
        "image": profile.image,
        "command": ["/bin/sh", "-c", f"set -e\n{_UNPACK_LINES}", "torchyard", folder, digest, archive_folder],
        "env": parts.proxy_env,
        "resources": drop_empty(own_resources),
        "volumeMounts": mounts,
        "securityContext": parts.security_context,
        "imagePullPolicy": profile.pod.pull_policy,
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the report quotes its last lines
    }
    return [drop_empty(fields)]


def build_code_map(profile: ResolvedProfile, name: str, labels: dict[str, str]) -> list[Manifest]:
    """The ConfigMap of the attempt, whose archive is added when it is created; empty without code."""
    if profile.code is None:
        return []
    metadata = {"name": name, "labels": labels, "annotations": {_DIGEST_ANNOTATION: str(profile.code.archive)}}
    program = Path(host_code.__file__).with_name(_PROGRAM_KEY).read_text("utf-8")
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {_PROGRAM_KEY: program}}]


def is_code_map(obj: Manifest) -> bool:
    """Whether an object of a plan is the ConfigMap for code."""
    return obj["kind"] == "ConfigMap" and _DIGEST_ANNOTATION in (obj["metadata"].get("annotations") or {})


def add_archive(code_map: Manifest, content: bytes) -> Manifest:
    """The ConfigMap for code with the bytes of the archive."""
    return code_map | {"binaryData": {ARCHIVE_KEY: base64.b64encode(content).decode()}}


def add_url(code_map: Manifest, url: str) -> Manifest:
    """The ConfigMap for code with the signed URL of the archive."""
    return code_map | {"data": code_map["data"] | {_URL_KEY: url}}
