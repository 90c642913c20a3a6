"""Real trainings on the two real nodes, one per launcher, rendezvous and agent; guide 000's are in test_real.py."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.carried import completed
from tests.cluster.provide import at_home
from tests.cluster.small import in_pods, one_a_way, small
from torchyard.kube.client import Client

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("api")]
SEEN = {"digits.py": "accuracy", "pi.py": "pi", "allreduce.py": "busbw"}
Record = Callable[[str, object], None]
PROFILES = one_a_way(name for name in in_pods() if not name.startswith("yolov5"))


@pytest.fixture
def real(plane: Client, user: dict[str, Any]) -> dict[str, Any]:
    """Overrides for a job on the two real nodes."""
    if len(plane.list("v1", "Node", {"labelSelector": "torchyard/node=real"}, everywhere=True)) < 2:
        pytest.skip("this cluster has no two real nodes (label torchyard/node=real)")
    return user


@pytest.mark.parametrize("name", PROFILES)
def test_real_pods_carry_every_way(name: str, namespace: str, real: dict[str, Any], record_property: Record) -> None:
    """A profile's pods find each other as it says, and rank 0 prints the metrics of our program."""
    record_property("cell", (name, "real"))
    overrides = {**small(name), **real, **at_home(name, namespace)}
    report = completed(name, overrides)
    assert report.collected
    if wanted := SEEN.get(Path(str(overrides["program"])).name):
        assert any(wanted in row for row in report.collected.metrics.rows)
