"""Real trainings on the two real nodes, one per launcher, rendezvous and agent; guide 000's are in test_real.py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.complete_runs import run_to_completion
from tests.cluster.jobs import require_real_nodes
from tests.cluster.provide import build_local_overrides
from tests.cluster.small import build_small_overrides, list_pod_profiles, pick_one_per_kind
from torchyard.kube.client import Client

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]
METRICS = {"digits.py": "accuracy", "pi.py": "pi", "allreduce.py": "busbw"}
RecordProperty = Callable[[str, object], None]
PROFILES = pick_one_per_kind(name for name in list_pod_profiles() if not name.startswith("yolov5"))


@pytest.fixture
def real_overrides(admin_client: Client, user_overrides: dict[str, Any]) -> dict[str, Any]:
    """Overrides for a job on the two real nodes."""
    require_real_nodes(admin_client)
    return user_overrides


@pytest.mark.parametrize("name", PROFILES)
def test_profile_trains_in_real_pods(
    name: str, namespace: str, real_overrides: dict[str, Any], record_property: RecordProperty
) -> None:
    """A profile's pods find each other in the profile's own way, and rank 0 prints the metrics of our program."""
    record_property("cell", (name, "real"))
    overrides = build_small_overrides(name) | real_overrides | build_local_overrides(name, namespace)
    report = run_to_completion(name, overrides)
    assert report.collected
    metric = METRICS.get(Path(str(overrides["program"])).name)
    if metric:
        assert any(metric in row for row in report.collected.metrics.rows)
