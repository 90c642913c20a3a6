"""A plan: everything that a job will run, pure and printable. Processes on hosts, or objects in a cluster."""

import re
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field

from torchyard.model.base import FrozenModel
from torchyard.model.hang import OnHang
from torchyard.model.hardware import Expect, OnFabric
from torchyard.model.profile import Cluster, CodeArchive, MetricsSetting, OnNan
from torchyard.model.requirements import ClusterRequirement, CommandRequirement

# How to find rank 0's lines. teed: torchrun's --tee prefixes each line with its rank; logged: the agent's log names the
# node of rank 0; placed: rank 0 runs on the first node, unless the agent's log names another one.
Ranks = Literal["teed", "logged", "placed"]
_UID_PATTERN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class CodeClaim(FrozenModel):
    """A volume claim from which pods get the archive of their code."""

    name: str
    folder: str = Field(description="in the volume, relative: the archive is code.tar.gz in it; named by its digest")


class StagedCode(FrozenModel):
    """The code of a job for one run. Its archive is linked to `path` before an attempt's plan is saved."""

    archive: CodeArchive
    path: str = Field(
        pattern=r"\.tar\.gz$", description="the archive's path in the run's folder, on the launcher's machine"
    )

    url: str | None = Field(None, description="where pods get the archive from, if that is an object store")
    claim: CodeClaim | None = Field(
        None, description="where pods get the archive from, if that is a volume; else from a ConfigMap of the attempt"
    )

    @property
    def folder(self) -> str:
        """The folder in which processes on the launcher's machine find the unpacked archive."""
        return self.path.removesuffix(".tar.gz")


class Site(FrozenModel):
    """An attempt's folder on a host behind ssh: filled before its first process, fetched and removed after its last.

    `folder` is relative to the home directory on that host, unless it is absolute. The other paths are on the machine
    of the launcher.
    """

    host: str
    folder: str
    python: str = Field(description="the interpreter that runs the supervisor on the host")
    work: str | None = Field(description="the program's file, or its folder, to copy; None: the host already has it")
    code: StagedCode | None = Field(None, description="the code, which is unpacked in place of copying `work`")
    files: str = Field(description="the folder for the files that the job leaves behind")
    port_try: int = Field(0, description="of the run, for a machine that continues the run without its plan")
    previous_folders: tuple[str, ...] = Field(
        (), description="folders, or patterns of them, fetched from the previous attempt: its checkpoints are put back"
    )

    @property
    def checkpoints(self) -> str:
        """The folder of the checkpoints, which are copied back, and to the hosts of the next attempt."""
        return f"{self.folder}/checkpoints"


class HostScript(FrozenModel):
    """A host with processes of an attempt, and the script there that serves all of them through one command."""

    host: str
    argv: tuple[str, ...] = Field(description="the script's command line, to which a verb is appended")
    site: Site | None = Field(None, description="the folder that the processes need on the host; None on this machine")


class Process(FrozenModel):
    """One supervised process on one host."""

    name: str
    script: HostScript
    folder: str = Field(description="the folder of its supervisor's records, on its host")
    log: str = Field(description="the log's path on the launcher's machine")
    copies_log: bool = Field(description="the log is copied from its host to `log`; False: it is written there")
    spec: dict[str, Any] | None = Field(description="what the script starts; None: another process starts it too")
    grace: float = Field(description="seconds between SIGTERM and SIGKILL when it is stopped")

    @property
    def host(self) -> str:
        return self.script.host

    @property
    def site(self) -> Site | None:
        """The folder that it needs on its host, which processes may share; None if it needs none."""
        return self.script.site


class CommandPlan(FrozenModel):
    """A job made of processes: one per host entry, and the rendezvous store if the run brings its own."""

    kind: Literal["commands"] = "commands"
    launcher: str
    job: str
    label: str = Field(description="identifies the job in the environment of each of its processes")
    processes: tuple[Process, ...]
    code: StagedCode | None = Field(None, description="the code of the profile; None without `code`")
    store: Process | None = None
    probe: str | None = Field(None, description="the URL that answers 200 once the rendezvous store serves the v2 API")
    ranks: Ranks = "teed"
    expect: Expect | None = Field(None, description="the network that the hardware promises")
    on_fabric: OnFabric = "report"
    on_hang: OnHang = Field(description="off: no rank is recorded")
    metrics: MetricsSetting = Field("none", description="the format in which rank 0 prints its metrics")
    on_nan: OnNan = "report"
    requires: tuple[CommandRequirement, ...]

    @property
    def has_store(self) -> bool:
        """Whether a store is started or probed before the job."""
        return self.probe is not None

    @property
    def nodes(self) -> dict[str, str]:
        """The path of each node's log."""
        return {process.name: process.log for process in self.processes}

    @property
    def logs(self) -> dict[str, str]:
        """The path of each log: every node's, and the store's."""
        return {process.name: process.log for process in self.all_processes}

    @property
    def all_processes(self) -> tuple[Process, ...]:
        """Every process in start order, the store first. They are stopped in reverse order."""
        return (self.store, *self.processes) if self.store else self.processes

    @property
    def scripts(self) -> tuple[HostScript, ...]:
        """The hosts of the processes, in the order of their first process."""
        return tuple(dict.fromkeys(process.script for process in self.all_processes))

    @property
    def sites(self) -> tuple[Site, ...]:
        """The attempt's folders on hosts behind ssh."""
        return tuple(script.site for script in self.scripts if script.site)


class ObjectKind(FrozenModel):
    """A kind of Kubernetes object."""

    api: str = Field(description="such as batch.volcano.sh/v1alpha1")
    kind: str


class WatchedKind(ObjectKind):
    """A kind of object whose changes show the job's state."""

    by_name: bool = Field(False, description="only the object named like the job; else all with the run's labels")
    owner_label: str | None = Field(
        None, description="the label with the job's uid, of objects that a controller creates without the run's labels"
    )


class ManifestPlan(FrozenModel):
    """A job made of Kubernetes objects, created in order: what must serve before the job (`store`), then the job."""

    kind: Literal["manifests"] = "manifests"
    launcher: str
    job: str
    labels: dict[str, str] = Field(description="on every object of the plan, and on nothing else in the cluster")
    cluster: Cluster = Field(description="its fields are None until the run is prepared, then read from the kubeconfig")
    lease: dict[str, Any] = Field(description="the Lease, named like the run; it owns the other objects")
    code: StagedCode | None = Field(None, description="the content of the ConfigMap for code; None without `code`")
    store: tuple[dict[str, Any], ...] = Field(
        (), description="the rendezvous store, the pod that receives the code, and the companions of a manifest"
    )
    objects: tuple[dict[str, Any], ...] = Field(
        description="what the job's pods use, then the job itself, which is the last one"
    )
    wrapped: dict[str, Any] | None = Field(
        None, description="the job inside the main object that creates the pods; None if the main object does so itself"
    )
    pods: dict[str, str] = Field(description="the name of each node's pod, by the node's name")
    pod: dict[str, Any] = Field(description="the first pod, as a controller will create it")
    has_random_suffix: bool = Field(False, description="pod names end in a random suffix after that")
    watch: tuple[WatchedKind, ...]
    made: tuple[ObjectKind, ...] = Field((), description="what controllers make for the job besides the watched kinds")
    ranks: Ranks = "teed"
    force_delete: bool = Field(
        False, description="teardown force-deletes a pod whose dead node does not confirm its end"
    )
    folder: str = Field(description="the attempt's folder on the launcher's machine")
    expect: Expect | None = Field(None, description="the network that the hardware promises")
    on_fabric: OnFabric = "report"
    on_hang: OnHang = Field(description="off: no rank is recorded")
    metrics: MetricsSetting = Field("none", description="the format in which rank 0 prints its metrics")
    on_nan: OnNan = "report"
    requires: tuple[ClusterRequirement, ...]

    @property
    def run(self) -> str:
        """The name of the run, the same in all its attempts."""
        return str(self.lease["metadata"]["name"])

    @property
    def main(self) -> dict[str, Any]:
        """The job itself."""
        return self.objects[-1]

    @property
    def dependencies(self) -> tuple[dict[str, Any], ...]:
        """The objects that the job's pods use; they are deleted once the pods are gone."""
        return (*self.objects[:-1], *self.store)

    @property
    def admitted_objects(self) -> tuple[dict[str, Any], ...]:
        """The objects that the API server must accept: the store, the job, and a job that a controller will unwrap."""
        wrapped = () if self.wrapped is None else (self.wrapped,)
        return (*self.store, *self.objects, *wrapped)

    @cached_property
    def _nodes_by_pod(self) -> dict[str, str]:
        return {pod: node for node, pod in self.pods.items()}

    def node(self, pod: str) -> str:
        """The node's name for a pod's name: worker-0. For a pod that is not one of the plan's, a part of its name."""
        name = pod.rpartition("-")[0] if self.has_random_suffix else pod
        return self._nodes_by_pod.get(name) or pod.removeprefix(f"{self.job}-")

    def is_job_object(self, kind: str, name: str) -> bool:
        """Whether a name is that of the job, or of what a controller creates between the job and its pods.

        A common prefix is not enough: `train-1` may be another job than `train`. Volcano appends the job's uid to the
        name of its PodGroup; a Job of a JobSet has the first part of its pods' names.
        """
        if name == self.job:
            return True
        suffix = name.removeprefix(f"{self.job}-")
        if suffix == name:
            return False
        return bool(kind == "PodGroup" and _UID_PATTERN.fullmatch(suffix)) or name in self._pod_owner_names

    @cached_property
    def _pod_owner_names(self) -> frozenset[str]:
        """What the owner of a pod may be called: each part of the pod's name that ends before a hyphen."""
        names = set()
        for pod in self.pods.values():
            name = f"{pod}-" if self.has_random_suffix else pod
            while "-" in name:
                name = name.rpartition("-")[0]
                names.add(name)
        return frozenset(names)

    @property
    def has_store(self) -> bool:
        """Whether something is created and awaited before the job: its store, or the companions of a manifest."""
        return bool(self.store)

    @property
    def probe(self) -> str | None:
        """The URL of the rendezvous store; None if the run does not bring a store."""
        store_name = f"{self.job}-etcd"
        has_own_store = any(obj["metadata"].get("name") == store_name for obj in self.store)
        return f"http://{store_name}:2379/v2/keys" if has_own_store else None

    @cached_property
    def nodes(self) -> dict[str, str]:
        """The path of each node's log."""
        return {node: f"{self.folder}/{node}/log" for node in self.pods}

    @cached_property
    def logs(self) -> dict[str, str]:
        """The path of each log: every node's, and the store's."""
        logs = dict(self.nodes)
        if self.probe:
            logs["etcd"] = f"{self.folder}/etcd/log"
        return logs


Plan = Annotated[CommandPlan | ManifestPlan, Field(discriminator="kind")]
