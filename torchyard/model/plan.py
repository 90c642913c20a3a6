"""What would run, pure and printable: processes on hosts, or objects in a cluster."""

from typing import Annotated, Any, Literal

from pydantic import Field

from torchyard.model.base import FrozenModel
from torchyard.model.profile import Cluster
from torchyard.model.requirements import ClusterRequirement, HostRequirement

THIS_MACHINE = frozenset({"localhost", "127.0.0.1"})


# Who printed a line: torchrun's --tee says the rank; only the agent's log says where rank 0 is; the first node has it.
Ranks = Literal["teed", "logged", "placed"]


class Command(FrozenModel):
    """A program to start on a host; `input` goes to its stdin as JSON."""

    argv: tuple[str, ...]
    input: dict[str, Any] | None = None


class Site(FrozenModel):
    """An attempt's folder on a host that ssh reaches: filled before its first process, brought home and removed after.

    `folder` begins at the home there, if it is not absolute. The other paths are of the launcher's machine.
    """

    host: str
    folder: str
    python: str = Field(description="what runs the keeper there")
    work: str | None = Field(description="the program's file, or the folder it is in, to be copied; None: it is there")
    files: str = Field(description="where to bring what the job leaves")
    before: tuple[str, ...] = Field(
        (), description="folders, or patterns of them, that the attempt before brought: its checkpoints are put back"
    )


class Process(FrozenModel):
    """One kept process on one host. Submit and cancel print one JSON object; status prints one at every change.

    `follow` prints the log itself, and ends with 0 once all of it is printed that there will ever be.
    """

    name: str
    host: str
    log: str = Field(description="the log's path on the launcher's machine")
    submit: Command | None = Field(description="None: another block of the plan starts it")
    status: Command
    follow: Command | None = Field(
        None, description="prints the log from the byte that is added to its words; else it is at `log`"
    )
    cancel: Command | None
    site: Site | None = Field(None, description="what must be there before; blocks may share it")


class CommandPlan(FrozenModel):
    """A job made of processes: one block per host, and the rendezvous store where the run brings its own."""

    kind: Literal["commands"] = "commands"
    launcher: str
    job: str
    label: str = Field(description="what every process of the job carries in its environment")
    on: tuple[Process, ...]
    store: Process | None = None
    probe: str | None = Field(None, description="the URL that answers 200 once the rendezvous store serves the v2 API")
    ranks: Ranks = "teed"
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
        """Every block, the store first: the order of starting. Stopping goes backwards."""
        return (self.store, *self.on) if self.store else self.on

    @property
    def sites(self) -> tuple[Site, ...]:
        """What the run has on hosts that ssh reaches."""
        return tuple(dict.fromkeys(block.site for block in self.blocks if block.site))


class Watched(FrozenModel):
    """A kind of object whose changes tell how the job is."""

    api: str = Field(description="batch.volcano.sh/v1alpha1")
    kind: str
    by_name: bool = Field(False, description="the one that is called like the job; else all with the run's labels")


def get_nested(thing: dict[str, Any], way: tuple[str | int, ...]) -> dict[str, Any]:
    """What stands at the end of a way of keys."""
    found: Any = thing
    for key in way:
        found = found[key]
    here: dict[str, Any] = found
    return here


class ManifestPlan(FrozenModel):
    """A job made of Kubernetes objects, created in order: the rendezvous store where the run brings one, the job."""

    kind: Literal["manifests"] = "manifests"
    launcher: str
    job: str
    labels: dict[str, str] = Field(description="what every object carries, and nothing else in the cluster")
    cluster: Cluster = Field(description="None in it until the run is prepared: then from the kubeconfig")
    lease: dict[str, Any] = Field(description="who looks after the run: the owner of the rest, called like the run")
    store: tuple[dict[str, Any], ...] = ()
    objects: tuple[dict[str, Any], ...] = Field(description="the job is the last one")
    tasks: dict[str, int] = Field(description="pods by task: they are named <job>-<task>-<i>")
    suffixed: bool = Field(False, description="a pod's name has a random word behind that")
    container: str = Field(description="the one in each pod whose log and exit code count")
    template: tuple[str | int, ...] = Field(description="where the job has the template of its first pod")
    inside: tuple[str | int, ...] = Field((), description="where the job has another that makes the pods")
    watch: tuple[Watched, ...]
    ranks: Ranks = "teed"
    force: bool = Field(False, description="teardown ends a pod by force whose dead node does not confirm its end")
    folder: str = Field(description="of this attempt, on the launcher's machine")
    requires: tuple[ClusterRequirement, ...]

    @property
    def run(self) -> str:
        """The name of the run, in all its attempts."""
        return str(self.lease["metadata"]["name"])

    @property
    def main(self) -> dict[str, Any]:
        """The job itself."""
        return self.objects[-1]

    @property
    def parts(self) -> tuple[dict[str, Any], ...]:
        """What the API server must take: the store, the job, and what a controller will make of it."""
        return (*self.store, *self.objects, *((get_nested(self.main, self.inside),) if self.inside else ()))

    @property
    def pod(self) -> dict[str, Any]:
        """The first pod, as a controller will make it of its template."""
        template = get_nested(self.main, self.template)
        name = f"{self.job}-{next(iter(self.tasks))}-0{'-xxxxx' if self.suffixed else ''}"
        return {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": name}}

    def node(self, pod: str) -> str:
        """The node that a pod is, by its name: worker-0."""
        name = pod.removeprefix(f"{self.job}-")
        node = name.rpartition("-")[0]
        return node if self.suffixed and self._is_node(node) else name

    def _is_node(self, name: str) -> bool:
        """Whether `nodes` has it, without naming all of them: this is asked for every change of every pod."""
        task, _, index = name.rpartition("-")
        count = self.tasks.get(task, 0)
        return index.isascii() and index.isdecimal() and int(index[:9]) < count and str(int(index[:9])) == index

    @property
    def probe(self) -> str | None:
        """Where the rendezvous store is asked, if the run brings one."""
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
