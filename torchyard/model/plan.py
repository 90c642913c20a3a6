"""What would run, pure and printable: processes on hosts, or objects in a cluster."""

from typing import Annotated, Any, Literal

from pydantic import Field

from torchyard.model.base import FrozenModel
from torchyard.model.hang import OnHang
from torchyard.model.hardware import Expect, OnFabric
from torchyard.model.profile import Cluster
from torchyard.model.requirements import ClusterRequirement, HostRequirement

THIS_MACHINE = frozenset({"localhost", "127.0.0.1"})


# How to find rank 0's lines: torchrun's --tee names the rank; the agent's log names the node; it is the first node.
Ranks = Literal["teed", "logged", "placed"]


class Command(FrozenModel):
    """A program to start on a host; `input` goes to its stdin as JSON."""

    argv: tuple[str, ...]
    input: dict[str, Any] | None = None


class Site(FrozenModel):
    """An attempt's folder on a host behind ssh: filled before its first process, fetched and removed after its last.

    `folder` is relative to the home directory there, unless it is absolute. The other paths are on the launcher's
    machine.
    """

    host: str
    folder: str
    python: str = Field(description="the interpreter that runs the supervisor there")
    work: str | None = Field(description="the program's file, or its folder, to copy; None: it is already there")
    files: str = Field(description="where to put what the job leaves")
    before: tuple[str, ...] = Field(
        (), description="folders, or patterns of them, fetched from the previous attempt: its checkpoints are put back"
    )


class Process(FrozenModel):
    """One supervised process on one host. Submit and cancel print one JSON object; status prints one at every change.

    `follow` prints the log itself, and exits with 0 once the log is complete and printed to its end.
    """

    name: str
    host: str
    log: str = Field(description="the log's path on the launcher's machine")
    submit: Command | None = Field(description="None: another process of the plan starts it")
    status: Command
    follow: Command | None = Field(
        None, description="prints the log from the byte offset appended to its arguments; None: the log is at `log`"
    )
    cancel: Command | None
    site: Site | None = Field(None, description="the folder that it needs on its host; processes may share one")


class CommandPlan(FrozenModel):
    """A job made of processes: one per host entry, and the rendezvous store if the run brings its own."""

    kind: Literal["commands"] = "commands"
    launcher: str
    job: str
    label: str = Field(description="identifies the job in the environment of each of its processes")
    on: tuple[Process, ...]
    store: Process | None = None
    probe: str | None = Field(None, description="the URL that answers 200 once the rendezvous store serves the v2 API")
    ranks: Ranks = "teed"
    expect: Expect | None = Field(None, description="the network that the hardware promises")
    on_fabric: OnFabric = "report"
    on_hang: OnHang = Field("off", description="off: no rank is recorded, as in plans of earlier versions")
    requires: tuple[HostRequirement, ...]

    @property
    def nodes(self) -> dict[str, str]:
        """The path of each node's log."""
        return {block.name: block.log for block in self.on}

    @property
    def logs(self) -> dict[str, str]:
        """The path of each log: every node's, and the store's."""
        return {block.name: block.log for block in self.blocks}

    @property
    def blocks(self) -> tuple[Process, ...]:
        """Every process in start order, the store first. They are stopped in reverse order."""
        return (self.store, *self.on) if self.store else self.on

    @property
    def sites(self) -> tuple[Site, ...]:
        """The attempt's folders on hosts behind ssh."""
        return tuple(dict.fromkeys(block.site for block in self.blocks if block.site))


class Watched(FrozenModel):
    """A kind of object whose changes show the job's state."""

    api: str = Field(description="such as batch.volcano.sh/v1alpha1")
    kind: str
    by_name: bool = Field(False, description="only the object named like the job; else all with the run's labels")


def get_nested(thing: dict[str, Any], way: tuple[str | int, ...]) -> dict[str, Any]:
    """The mapping at the end of a path of keys."""
    found: Any = thing
    for key in way:
        found = found[key]
    here: dict[str, Any] = found
    return here


class ManifestPlan(FrozenModel):
    """A job made of Kubernetes objects, created in order: the rendezvous store if the run brings one, then the job."""

    kind: Literal["manifests"] = "manifests"
    launcher: str
    job: str
    labels: dict[str, str] = Field(description="on every object of the plan, and on nothing else in the cluster")
    cluster: Cluster = Field(description="None in it until the run is prepared, then read from the kubeconfig")
    lease: dict[str, Any] = Field(description="the Lease, named like the run; it owns the other objects")
    store: tuple[dict[str, Any], ...] = ()
    objects: tuple[dict[str, Any], ...] = Field(description="the job, and before it what its pods mount")
    tasks: dict[str, int] = Field(description="number of pods per task; they are named <job>-<task>-<i>")
    suffixed: bool = Field(False, description="pod names end in a random suffix after that")
    container: str = Field(description="the container in each pod whose log and exit code count")
    template: tuple[str | int, ...] = Field(description="path in the job to the template of its first pod")
    inside: tuple[str | int, ...] = Field((), description="path in the job to an inner job that creates the pods")
    watch: tuple[Watched, ...]
    ranks: Ranks = "teed"
    force: bool = Field(False, description="teardown force-deletes a pod whose dead node does not confirm its end")
    folder: str = Field(description="the attempt's folder on the launcher's machine")
    expect: Expect | None = Field(None, description="the network that the hardware promises")
    on_fabric: OnFabric = "report"
    on_hang: OnHang = Field("off", description="off: no rank is recorded, as in plans of earlier versions")
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
    def beside(self) -> tuple[dict[str, Any], ...]:
        """What the job's pods use, and what is deleted once they are gone."""
        return (*self.objects[:-1], *self.store)

    @property
    def parts(self) -> tuple[dict[str, Any], ...]:
        """What the API server must accept: the store, the job, and the inner job that a controller will create."""
        return (*self.store, *self.objects, *((get_nested(self.main, self.inside),) if self.inside else ()))

    @property
    def pod(self) -> dict[str, Any]:
        """The first pod, as a controller will create it from its template."""
        template = get_nested(self.main, self.template)
        name = f"{self.job}-{next(iter(self.tasks))}-0{'-xxxxx' if self.suffixed else ''}"
        return {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": name}}

    def node(self, pod: str) -> str:
        """The node's name for a pod's name: worker-0."""
        name = pod.removeprefix(f"{self.job}-")
        node = name.rpartition("-")[0]
        return node if self.suffixed and self._is_node(node) else name

    def _is_node(self, name: str) -> bool:
        """Whether `nodes` has this name, without listing them all: this runs for every change of every pod."""
        task, _, index = name.rpartition("-")
        count = self.tasks.get(task, 0)
        return index.isascii() and index.isdecimal() and int(index[:9]) < count and str(int(index[:9])) == index

    @property
    def probe(self) -> str | None:
        """The URL at which the rendezvous store is probed, if the run brings one."""
        return f"http://{self.store[0]['metadata']['name']}:2379/v2/keys" if self.store else None

    @property
    def nodes(self) -> dict[str, str]:
        """The path of each node's log."""
        names = (f"{task}-{index}" for task, count in self.tasks.items() for index in range(count))
        return {name: f"{self.folder}/{name}/log" for name in names}

    @property
    def logs(self) -> dict[str, str]:
        """The path of each log: every node's, and the store's."""
        return {**self.nodes, **({"etcd": f"{self.folder}/etcd/log"} if self.store else {})}


Plan = Annotated[CommandPlan | ManifestPlan, Field(discriminator="kind")]
