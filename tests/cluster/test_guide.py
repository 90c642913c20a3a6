"""The guide's four manifests, launched unchanged except for their pods' node selector and end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.complete_runs import run_to_completion
from torchyard.common.project_root import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]
LAUNCHERS = {
    "volcano-c10d": "volcano",
    "volcano-etcd": "volcano",
    "pytorchjob-c10d": "pytorchjob",
    "pytorchjob-etcd": "pytorchjob",
}


def adapt_pods(node: Any) -> Any:
    """The document with a node selector and an `end-after` annotation for each of its pods."""
    if isinstance(node, list):
        return [adapt_pods(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "containers" in node:
        return node | {"nodeSelector": {"type": "kwok"}}
    adapted = {key: adapt_pods(item) for key, item in node.items()}
    if "containers" in (node.get("spec") or {}) and node.get("kind") != "Pod":
        metadata = dict(node.get("metadata") or {})
        metadata["annotations"] = {"torchyard.test/end-after": "1"}
        adapted["metadata"] = metadata
    return adapted


@pytest.fixture
def namespace_overrides(fake_overrides: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The overrides that a manifest allows: cluster and namespace."""
    context = {key: value for key, value in fake_overrides.items() if key == "cluster.context"}
    return context | {"cluster.namespace": namespace}


@pytest.mark.parametrize("row", LAUNCHERS)
def test_guide_manifest_runs(
    row: str, namespace_overrides: dict[str, Any], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A manifest of the guide is launched, waited for, reported and removed, with all objects in it."""
    record_property("cell", (f"manifest {row}", "success"))
    documents = [
        adapt_pods(document)
        for document in yaml.safe_load_all((ROOT / "tests" / "manifests" / f"{row}.yaml").read_text())
    ]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump_all(documents))
    profile = tmp_path / f"guide-{row}.yaml"
    profile.write_text(yaml.safe_dump({"about": "the guide's", "launcher": LAUNCHERS[row], "manifest": "job.yaml"}))
    run_to_completion(str(profile), namespace_overrides)
