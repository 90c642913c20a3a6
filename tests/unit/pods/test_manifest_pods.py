"""The capacity that the pods of a manifest's job need."""

from typing import Any

import pytest

from tests.inputs.user_manifests import JOB, PYTORCHJOB, Launched, change_spec
from torchyard.model.requirements import Capacity

POD = {"spec": {"containers": [{"name": "main", "image": "a:1"}]}}
JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "train"},
    "spec": {"replicatedJobs": [{"name": "a", "replicas": 2, "template": {"spec": {"template": POD}}}]},
}
WRAPPED_POD = {
    "apiVersion": "workload.codeflare.dev/v1beta2",
    "kind": "AppWrapper",
    "metadata": {"name": "outer"},
    "spec": {"components": [{"template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}} | POD}]},
}


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


def test_room_names_the_fields_of_the_first_role(launched: Launched) -> None:
    """Capacity has the fields of the first role that needs it, and the line of its pods in the manifest."""
    tasks = [build_task("none", 0, cpu="8"), build_task("lead", 1, cpu="8"), build_task("rest", 3, cpu="8")]
    plan = launched(change_spec(JOB, tasks=tasks))
    (capacity,) = [requirement for requirement in plan.requires if isinstance(requirement, Capacity)]
    fields = capacity.manifest
    assert fields is not None
    assert fields.location == "Job train, spec.tasks[1].template.spec"
    assert fields.container == "spec.tasks[1].template.spec.containers[0]"
    assert fields.pod_count == "spec.tasks[1].replicas"
    assert fields.position is not None
    assert fields.position.file.endswith("job.yaml")
    assert fields.position.line


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (PYTORCHJOB, "spec.pytorchReplicaSpecs.Worker.replicas"),
        (JOBSET, "spec.replicatedJobs[0].template.spec.parallelism"),
        (WRAPPED_POD, None),
    ],
)
def test_number_of_pods_has_its_field(launched: Launched, document: dict[str, Any], path: str | None) -> None:
    """Each kind of job has another field for the number of pods; a plain Pod has none."""
    capacities = [requirement for requirement in launched(document).requires if isinstance(requirement, Capacity)]
    assert [capacity.manifest.pod_count for capacity in capacities if capacity.manifest] == [path]


def test_smaller_gang_needs_less_room(launched: Launched) -> None:
    """A gang of fewer pods than the job has needs room for as many as it starts with."""
    rest = build_task("rest", 5, cpu="8")
    assert list_capacities(launched, [rest], 3) == [(3, {"cpu": "8"})]
    assert list_capacities(launched, [rest, build_task("more", 2, cpu="1")], 3) == [(3, {"cpu": "8"})]
    assert list_capacities(launched, [build_task("lead", 1, cpu="1"), rest], 3) == [(1, {"cpu": "1"})]


def test_gang_without_a_minimum_is_that_of_its_tasks(launched: Launched) -> None:
    """Volcano's webhook replaces a minAvailable of 0 by the sum of those of the tasks, or of their replicas."""
    lead = build_task("lead", 1, cpu="8")
    rest = build_task("rest", 5, cpu="8")
    assert list_capacities(launched, [lead, rest], 0) == [(6, {"cpu": "8"})]
    assert list_capacities(launched, [lead, rest | {"minAvailable": 2}], 0) == [(3, {"cpu": "8"})]


def test_every_container_needs_room(launched: Launched) -> None:
    """A pod needs room for all containers and sidecars, and with a port of a sidecar a node of its own."""
    task = build_task("lead", 2, cpu="4")
    spec = task["template"]["spec"]
    spec["containers"].append({"name": "more", "image": "a:1", "resources": {"limits": {"cpu": "2"}}})
    sidecar = {"name": "proxy", "image": "a:1", "restartPolicy": "Always", "ports": [{"containerPort": 29000}]}
    spec["initContainers"] = [sidecar | {"resources": {"requests": {"cpu": "1"}}}]
    spec["hostNetwork"] = True
    plan = launched(change_spec(JOB, tasks=[task]))
    (capacity,) = [requirement for requirement in plan.requires if isinstance(requirement, Capacity)]
    assert (capacity.resources, capacity.one_per_node) == ({"cpu": "7"}, True)
