"""The pods of the job in a user's manifest: its sets of pods, where they are in it, and the capacity that they need."""

from collections.abc import Sequence
from typing import NamedTuple

from torchyard.diagnosis.pod_facts import get_mappings
from torchyard.lint.workload import WorkloadKind, list_workloads, yaml_number
from torchyard.model.requirements import Capacity, ManifestFields
from torchyard.pods.job_kind import JobKind, PodSet, describe_object
from torchyard.pods.requirements import build_capacity
from torchyard.pods.volumes import Manifest

# The key of the number of pods, beside their template.
_COUNT_KEYS: dict[WorkloadKind, str] = {
    "volcano": "replicas",
    "pytorchjob": "replicas",
    "jobset": "parallelism",
    "job": "parallelism",
}


def list_pod_sets(job: Manifest, job_kind: JobKind) -> list[PodSet]:
    """The sets of pods of a job.

    Raises KeyError, IndexError, TypeError, AttributeError or ValueError if the job has another shape.
    """
    pod_sets = list(job_kind.list_pod_sets(job))
    for pod_set in pod_sets:
        if not isinstance(pod_set.name, str) or not pod_set.container:
            raise TypeError(f"{pod_set.name!r} is not the name of pods, or they have no named container")
        for obj in (job, pod_set.template):
            if not isinstance(obj.get("metadata") or {}, dict):
                raise TypeError("metadata is not a mapping")
            if not isinstance((obj.get("metadata") or {}).get("labels") or {}, dict):
                raise TypeError("labels are not a mapping")
    return pod_sets


class LocatedPods(NamedTuple):
    """A set of pods of a job.

    location: of the spec of its template in the manifest, as findings name it:
        `Job train, spec.tasks[0].template.spec`.
    count_path: of the number of pods, such as `spec.tasks[0].replicas`; None for a plain Pod.
    """

    pod_set: PodSet
    location: str
    count_path: str | None

    @property
    def container(self) -> Manifest:
        """The main container, which a run follows."""
        return self._list_containers()[self._container_index]

    @property
    def container_location(self) -> str:
        """The location of the main container, as findings name it."""
        return f"{self.location}.containers[{self._container_index}]"

    @property
    def fields(self) -> ManifestFields:
        """The fields that remedies name."""
        container = self.container_location.rpartition(", ")[2]
        return ManifestFields(location=self.location, container=container, pod_count=self.count_path)

    @property
    def _container_index(self) -> int:
        names = [container.get("name") for container in self._list_containers()]
        return names.index(self.pod_set.container)

    def _list_containers(self) -> list[Manifest]:
        containers: list[Manifest] = self.pod_set.template["spec"]["containers"]
        return containers


def locate_pods(main: Manifest, job_kind: JobKind) -> list[LocatedPods]:
    """The sets of pods of a job, each with its location. `main`: the job's main object, as the manifest names it.

    Raises the errors of `list_pod_sets`.
    """
    return [_locate_pod_set(main, pod_set) for pod_set in list_pod_sets(job_kind.find_job(main), job_kind)]


def _locate_pod_set(main: Manifest, pod_set: PodSet) -> LocatedPods:
    for workload in list_workloads(main):
        for group in workload.groups:
            if group.pod is pod_set.template["spec"]:
                count_key = _COUNT_KEYS.get(workload.kind)
                count_path = f"{group.key_path}.{count_key}" if count_key else None
                return LocatedPods(pod_set, f"{workload.location}, {group.pod_path}", count_path)
    raise ValueError(f"the template of {pod_set.name} is in no workload of {describe_object(main)}")


def list_capacities(job: Manifest, located_pods: Sequence[LocatedPods], job_kind: JobKind) -> list[Capacity]:
    """The capacity that the pods need: one requirement for all sets of pods that need the same nodes.

    A Job of which fewer pods run at a time than it has needs room for these, a JobSet whose Jobs wait for each other's
    success for the largest stage, and a job of Volcano with a minAvailable for that many pods of the first set.
    Remedies name the fields of the first set that needs such nodes.
    Raises ValueError or TypeError if an amount is not one of Kubernetes, KeyError if a container has no name.
    """
    capacities: dict[str, Capacity] = {}
    for stage in dict.fromkeys(pods.pod_set.stage for pods in located_pods):
        stage_pods = [pods for pods in located_pods if pods.pod_set.stage == stage]
        for key, capacity in _add_up_capacities(stage_pods, job_kind).items():
            if key not in capacities or capacities[key].pods < capacity.pods:
                capacities[key] = capacity
    needed_pods = _count_gang(job)
    if needed_pods is not None and 0 < needed_pods < sum(pods.pod_set.pod_count for pods in located_pods):
        first = next(iter(capacities.values()))
        return [first.model_copy(update={"pods": min(needed_pods, first.pods)})]
    return list(capacities.values())


def _count_gang(job: Manifest) -> int | None:
    """The pods of a job of Volcano that must start together; None for another kind of job.

    Volcano's webhook replaces a minAvailable of 0 by the sum of those of the tasks, or of their replicas.
    """
    tasks = get_mappings(job, "spec", "tasks")
    if not tasks:
        return None
    minimum = yaml_number(job["spec"].get("minAvailable"))
    if minimum:
        return minimum
    count = 0
    for task in tasks:
        task_minimum = yaml_number(task.get("minAvailable"))
        count += (yaml_number(task.get("replicas")) or 0) if task_minimum is None else task_minimum
    return count


def _add_up_capacities(located_pods: Sequence[LocatedPods], job_kind: JobKind) -> dict[str, Capacity]:
    """The capacity that pods need which run at the same time, by what the nodes must have."""
    capacities: dict[str, Capacity] = {}
    for pods in located_pods:
        capacity = _build_capacity(pods, job_kind)
        if not capacity.pods:
            continue
        key = capacity.model_dump_json(exclude={"pods", "manifest"})
        first = capacities.setdefault(key, capacity)
        if first is not capacity:
            capacities[key] = first.model_copy(update={"pods": first.pods + capacity.pods})
    return capacities


def _build_capacity(pods: LocatedPods, job_kind: JobKind) -> Capacity:
    """The capacity that a set of pods needs. Under the host's network a port allows one pod per node."""
    template = pods.pod_set.template
    containers = get_mappings(template, "spec", "containers")
    for container in get_mappings(template, "spec", "initContainers"):
        if container.get("restartPolicy") == "Always":  # a sidecar
            containers.append(container)
    has_ports = job_kind.has_ports or any(container.get("ports") for container in containers)
    pod_count = pods.pod_set.pod_count if pods.pod_set.parallel_count is None else pods.pod_set.parallel_count
    capacity = build_capacity(template, pod_count, has_ports=has_ports)
    return capacity.model_copy(update={"manifest": pods.fields})
