"""Manifests as users provide them."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from torchyard.model.plan import ManifestPlan

MANIFESTS = Path(__file__).parents[1] / "manifests"
Launched = Callable[..., ManifestPlan]
JOB = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {"name": "train"},
    "spec": {
        "minAvailable": 3,
        "queue": "research",
        "tasks": [
            {"name": "lead", "replicas": 1, "template": {"spec": {"containers": [{"name": "main", "image": "a:1"}]}}},
            {"name": "rest", "replicas": 3, "template": {"spec": {"containers": [{"name": "main", "image": "a:1"}]}}},
        ],
    },
}
PYTORCHJOB = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "metadata": {"name": "train"},
    "spec": {
        "pytorchReplicaSpecs": {
            "Worker": {
                "template": {
                    "spec": {
                        "hostNetwork": True,
                        "containers": [{"name": "logs", "image": "b:1"}, {"name": "pytorch", "image": "a:1"}],
                    }
                }
            }
        }
    },
}
KINDS = {"PyTorchJob": "pytorchjob", "JobSet": "jobset", "AppWrapper": "appwrapper"}


def read_manifest(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / f"{name}.yaml").read_text()))


def change_spec(job: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return job | {"spec": copy.deepcopy(job["spec"]) | spec}
