"""The ConfigMap with the profile's files and torchyard's own: the run's Lease owns it, and each attempt has its own."""

import base64
import hashlib

from torchyard.agents.job_files import list_job_files, needs_config_map
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import Run
from torchyard.pods import template
from torchyard.pods.optional_objects import OWN_FILES_ROLE
from torchyard.pods.volumes import Manifest, drop_empty, name_files, name_job_file

_ROLE = "files"


def build_files(profile: ResolvedProfile, run: Run) -> tuple[Manifest, ...]:
    """The ConfigMap, which is created before the job; empty if the pods need no files."""
    job_files = list_job_files(profile)
    if not profile.files and not job_files:
        return ()
    text = {}
    binary = {}
    for _, key, file in name_files(profile):
        if file.text is not None:
            text[key] = file.text
        else:
            binary[key] = file.binary
    for path, content in job_files.items():
        text[name_job_file(path)] = content
    role = _ROLE if needs_config_map(profile) else OWN_FILES_ROLE
    labels = template.attempt_labels(profile, run) | {template.ROLE_LABEL: role}
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": template.files_name(profile, run), "labels": labels},
        "data": text,
        "binaryData": binary,
    }
    return (drop_empty(config_map),)


def summarize_files(plan: Manifest) -> Manifest:
    """A plan for a person to read: each file as its size and digest in place of its content."""
    if "objects" not in plan:
        return plan
    return plan | {"objects": [_summarize_object(obj) for obj in plan["objects"]]}


def _summarize_object(obj: Manifest) -> Manifest:
    if (obj["metadata"].get("labels") or {}).get(template.ROLE_LABEL) not in (_ROLE, OWN_FILES_ROLE):
        return obj
    summary = dict(obj)
    if obj.get("data"):
        summary["data"] = {key: _summarize_content(content.encode()) for key, content in obj["data"].items()}
    if obj.get("binaryData"):
        summary["binaryData"] = {
            key: _summarize_content(base64.b64decode(content)) for key, content in obj["binaryData"].items()
        }
    return summary


def _summarize_content(content: bytes) -> str:
    return f"{len(content):,} bytes, sha256 {hashlib.sha256(content).hexdigest()}"
