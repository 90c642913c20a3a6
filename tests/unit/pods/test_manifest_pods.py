"""The capacity that the pods of a manifest's job need."""

from typing import Any

from tests.inputs.user_manifests import JOB, Launched, change_spec
from torchyard.model.requirements import Capacity


def build_task(name: str, replicas: int, **limits: str) -> dict[str, Any]:
    container = {"name": "main", "image": "a:1", "resources": {"limits": limits}}
    return {"name": name, "replicas": replicas, "template": {"spec": {"containers": [container]}}}


def list_capacities(
    launched: Launched, tasks: list[dict[str, Any]], min_available: int
) -> list[tuple[int, dict[str, str]]]:
    plan = launched(change_spec(JOB, tasks=tasks, minAvailable=min_available))
    capacities = [requirement for requirement in plan.requires if isinstance(requirement, Capacity)]
    return [(capacity.pods, capacity.resources) for capacity in capacities]


def test_each_role_needs_its_own_room(launched: Launched) -> None:
    """Roles with the same resources need room together; one with others needs its own."""
    tasks = [build_task("lead", 1, cpu="1"), build_task("rest", 3, cpu="8"), build_task("more", 2, cpu="8")]
    assert list_capacities(launched, tasks, 6) == [(1, {"cpu": "1"}), (5, {"cpu": "8"})]


def test_smaller_gang_needs_less_room(launched: Launched) -> None:
    """A gang of fewer pods than the job has needs room for as many as it starts with."""
    assert list_capacities(launched, [build_task("rest", 5, cpu="8")], 3) == [(3, {"cpu": "8"})]
