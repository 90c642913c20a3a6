"""The ConfigMaps with the profile's files and code: the run's Lease owns them, and each attempt has its own."""

import base64
import hashlib

from torchyard.agents.job_files import list_job_files, needs_config_map
from torchyard.diagnosis.pod_facts import ROLE_LABEL
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import Run
from torchyard.pods import template
from torchyard.pods.code.unpacking import CODE_ROLE, build_code_map
from torchyard.pods.optional_objects import OWN_FILES_ROLE
from torchyard.pods.volumes import Manifest, drop_empty, name_files, name_job_file

_ROLE = "files"


def build_files(profile: ResolvedProfile, run: Run) -> tuple[Manifest, ...]:
    """The ConfigMaps with the files and with the code, which are created before the job; empty if it needs none."""
    labels = template.attempt_labels(profile, run)
    code_labels = labels | {ROLE_LABEL: CODE_ROLE}
    code_map = build_code_map(profile, template.code_name(profile, run), code_labels)
    return (*code_map, *_build_files_map(profile, run, labels))


def _build_files_map(profile: ResolvedProfile, run: Run, labels: dict[str, str]) -> tuple[Manifest, ...]:
    """The ConfigMap with the profile's files and torchyard's own; empty if the pods need none."""
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
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": template.files_name(profile, run), "labels": labels | {ROLE_LABEL: role}},
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
    if (obj["metadata"].get("labels") or {}).get(ROLE_LABEL) not in (_ROLE, OWN_FILES_ROLE, CODE_ROLE):
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
