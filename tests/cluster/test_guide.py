"""The guide's four manifests, launched unchanged except for their pods' node selector and end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.carried import completed
from torchyard.common.project_root import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]
ROWS = {
    "volcano-c10d": "volcano",
    "volcano-etcd": "volcano",
    "pytorchjob-c10d": "pytorchjob",
    "pytorchjob-etcd": "pytorchjob",
}


def steer(thing: Any) -> Any:
    """The document with a node selector and an `end-after` annotation for each of its pods."""
    if isinstance(thing, list):
        return [steer(each) for each in thing]
    if not isinstance(thing, dict):
        return thing
    if "containers" in thing:
        return {**thing, "nodeSelector": {"type": "kwok"}}
    made = {key: steer(value) for key, value in thing.items()}
    if "containers" in (thing.get("spec") or {}) and thing.get("kind") != "Pod":
        made["metadata"] = {**(thing.get("metadata") or {}), "annotations": {"torchyard.test/end-after": "1"}}
    return made


@pytest.fixture
def place(fake: dict[str, Any], namespace: str) -> dict[str, Any]:
    """The overrides that a manifest allows: cluster and namespace."""
    context = {key: value for key, value in fake.items() if key == "cluster.context"}
    return {**context, "cluster.namespace": namespace}


@pytest.mark.parametrize("row", ROWS)
def test_guide_manifest_runs(
    row: str, place: dict[str, Any], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A manifest of the guide is launched, waited for, reported and removed, with all objects in it."""
    record_property("cell", (f"manifest {row}", "success"))
    documents = [steer(each) for each in yaml.safe_load_all((ROOT / "tests" / "manifests" / f"{row}.yaml").read_text())]
    (tmp_path / "job.yaml").write_text(yaml.safe_dump_all(documents))
    profile = tmp_path / f"guide-{row}.yaml"
    profile.write_text(yaml.safe_dump({"about": "the guide's", "launcher": ROWS[row], "manifest": "job.yaml"}))
    completed(str(profile), place)
