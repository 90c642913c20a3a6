"""The pods of the job in a user's manifest: its sets of pods, where they are in it, and the capacity that they need."""

from collections.abc import Sequence
from typing import NamedTuple

from torchyard.diagnosis.pod_facts import get_mappings
from torchyard.lint.workload import list_workloads
from torchyard.model.requirements import Capacity
from torchyard.pods.job_kind import JobKind, PodSet, describe_object
from torchyard.pods.requirements import build_capacity
from torchyard.pods.volumes import Manifest


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
    """

    pod_set: PodSet
    location: str

    @property
    def container(self) -> Manifest:
        """The main container, which a run follows."""
        return self._list_containers()[self._container_index]

    @property
    def container_location(self) -> str:
        """The location of the main container, as findings name it."""
        return f"{self.location}.containers[{self._container_index}]"

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
    locations: dict[int, str] = {}
    for workload in list_workloads(main):
        for group in workload.groups:
            locations.setdefault(id(group.pod), f"{workload.location}, {group.pod_path}")
    located_pods: list[LocatedPods] = []
    for pod_set in list_pod_sets(job_kind.find_job(main), job_kind):
        location = locations.get(id(pod_set.template["spec"]), describe_object(main))
        located_pods.append(LocatedPods(pod_set, location))
    return located_pods


def list_capacities(job: Manifest, pod_sets: Sequence[PodSet], job_kind: JobKind) -> list[Capacity]:
    """The capacity that the pods need: one requirement for all sets of pods that need the same nodes.

    A job of which fewer pods run at a time than it has, by Volcano's minAvailable or a Job's parallelism, needs room
    for that many pods of the first set.
    Raises ValueError or TypeError if an amount is not one of Kubernetes, KeyError if a container has no name.
    """
    capacities: dict[str, Capacity] = {}
    for pod_set in pod_sets:
        capacity = _build_capacity(pod_set, job_kind)
        key = capacity.model_copy(update={"pods": 0}).model_dump_json()
        earlier_pods = capacities[key].pods if key in capacities else 0
        if capacity.pods:
            capacities[key] = capacity.model_copy(update={"pods": earlier_pods + capacity.pods})
    needed_pods = job["spec"].get("minAvailable") or job["spec"].get("parallelism")
    if isinstance(needed_pods, int) and 0 < needed_pods < sum(pod_set.pod_count for pod_set in pod_sets):
        first = next(iter(capacities.values()))
        return [first.model_copy(update={"pods": needed_pods if len(capacities) == 1 else first.pods})]
    return list(capacities.values())


def _build_capacity(pod_set: PodSet, job_kind: JobKind) -> Capacity:
    """The capacity that a set of pods needs. Under the host's network a port allows one pod per node."""
    containers = get_mappings(pod_set.template, "spec", "containers")
    has_ports = job_kind.has_ports or any(container.get("ports") for container in containers)
    return build_capacity(pod_set.template, pod_set.pod_count, has_ports=has_ports)
