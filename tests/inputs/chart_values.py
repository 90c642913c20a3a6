"""Profiles that consist of a Helm chart's values."""

from pathlib import Path
from typing import Any

import yaml

from tests.conftest import load
from torchyard.model.profile import Profile

GUIDE = Path(__file__).parents[1] / "values"
JOB: dict[str, Any] = {"jobName": "train", "containerImage": "train:v1", "mainProgram": "train.py"}
PROFILE = {"about": "a test"}


def write_values(folder: Path, *documents: dict[str, Any], **keys: Any) -> Path:
    """Write a profile with only these values files and the given keys; return its path."""
    names = [f"values-{index}.yaml" for index in range(len(documents))]
    for name, document in zip(names, documents, strict=True):
        (folder / name).write_text(yaml.safe_dump(document, sort_keys=False))
    path = folder / "sample.yaml"
    path.write_text(yaml.safe_dump(PROFILE | {"values": names} | keys))
    return path


def load_values(folder: Path, *documents: dict[str, Any], **keys: Any) -> Profile:
    """The profile of a job with these values."""
    return load(write_values(folder, JOB, *documents, **keys))
