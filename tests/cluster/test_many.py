"""Many runs of one process: the flow that docs/kubernetes.md shows."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.cluster.jobs import Jobs
from torchyard.cluster.listing import list_kinds, list_labelled_objects
from torchyard.common.project_root import ROOT
from torchyard.kube.client import Client
from torchyard.model.profile import Cluster
from torchyard.pods import lease_record

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]


@pytest.fixture
def documented_flow(tmp_path: Path) -> ModuleType:
    """The documented flow, as a module."""
    section = (ROOT / "docs" / "kubernetes.md").read_text().partition("## Many runs from one process")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert code
    (tmp_path / "search.py").write_text(code[1])
    spec = importlib.util.spec_from_file_location("search", tmp_path / "search.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run_overrides(namespace: str, fake_overrides: dict[str, Any]) -> list[dict[str, Any]]:
    """The overrides of three runs; the second one fails."""
    annotations = [{"torchyard.test/end-after": "1", "torchyard.test/exit": code} for code in ("0", "7", "0")]
    return [
        fake_overrides | {"cluster.namespace": namespace, "pod.annotations": pod_annotations, "args": [str(index)]}
        for index, pod_annotations in enumerate(annotations)
    ]


def test_runs_of_one_flow_do_not_disturb_each_other(
    documented_flow: ModuleType, run_overrides: list[dict[str, Any]]
) -> None:
    """Prefect's task threads wait for three jobs at once, and the end of each is reported."""
    outcomes = documented_flow.search("yolov5-volcano", run_overrides)
    assert ["exit code 7" in outcome for outcome in outcomes] == [False, True, False]
    assert all("succeeded" in outcomes[index] for index in (0, 2))


def test_many_runs_leave_no_objects(
    documented_flow: ModuleType, run_overrides: list[dict[str, Any]], jobs: Jobs
) -> None:
    """After the last step no job and no Lease exists."""
    documented_flow.search("yolov5-volcano", run_overrides)
    client = Client(Cluster(namespace=jobs.namespace))
    kinds = [*list_kinds(client), (lease_record.LEASE_API, lease_record.LEASE_KIND)]
    assert list_labelled_objects(client, kinds, {"torchyard/run": ""}).objects == []
