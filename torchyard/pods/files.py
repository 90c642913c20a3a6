"""The ConfigMap with files of this machine: the run's Lease owns it, and each attempt has its own."""

import base64
import hashlib
from typing import Any

from torchyard.model.profile import Profile
from torchyard.model.run import Run
from torchyard.pods import template
from torchyard.pods.volumes import name_files

Manifest = dict[str, Any]
_ROLE = "files"


def build_files(profile: Profile, run: Run) -> tuple[Manifest, ...]:
    """The ConfigMap, which is created before the job; nothing if the profile names no files."""
    labels = {**template.attempt_labels(profile, run), template.ROLE_LABEL: _ROLE}
    text = {key: file.text for _, key, file in name_files(profile) if file.text is not None}
    binary = {key: file.binary for _, key, file in name_files(profile) if file.text is None}
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": template.files_name(profile, run), "labels": labels},
        **({"data": text} if text else {}),
        **({"binaryData": binary} if binary else {}),
    }
    return (config_map,) if profile.files else ()


def summarize_files(plan: Manifest) -> Manifest:
    """A plan to be read by a person: each file as its size and digest in place of its content."""
    return {**plan, "objects": [_summarize_object(obj) for obj in plan["objects"]]} if "objects" in plan else plan


def _summarize_object(obj: Manifest) -> Manifest:
    if (obj["metadata"].get("labels") or {}).get(template.ROLE_LABEL) != _ROLE:
        return obj
    text = {key: _summarize_content(content.encode()) for key, content in obj.get("data", {}).items()}
    binary = {key: _summarize_content(base64.b64decode(content)) for key, content in obj.get("binaryData", {}).items()}
    return {**obj, **({"data": text} if text else {}), **({"binaryData": binary} if binary else {})}


def _summarize_content(content: bytes) -> str:
    return f"{len(content):,} bytes, sha256 {hashlib.sha256(content).hexdigest()}"
