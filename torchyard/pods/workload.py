"""A manifest that somebody else wrote, as the pods it makes. Nothing is taken for granted about its shape."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

Node = Mapping[str, Any]
Found = tuple[str, str, str]  # a trap: the path of the key, what happens, what to write instead
Kind = Literal["volcano", "pytorchjob", "jobset", "pod"]
KINDS: tuple[tuple[str, str, Kind], ...] = (
    ("batch.volcano.sh/", "Job", "volcano"),
    ("kubeflow.org/", "PyTorchJob", "pytorchjob"),
    ("jobset.x-k8s.io/", "JobSet", "jobset"),
    ("v1", "Pod", "pod"),
)
WRAPPER = "AppWrapper"
ETCD = re.compile(r"(?:.*/)?etcd(?::v?(?P<major>\d{1,3})\.(?P<minor>\d{1,3}).*|[:@].*)?", re.DOTALL)
SHELLS = frozenset({"sh", "dash", "ash", "bash", "ksh", "zsh"})
HIDDEN = "\0"  # stands for what a shell substitutes: nobody knows it before
QUOTED = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|(?<!\S)#[^\n]*""", re.DOTALL)
SUBSTITUTED = re.compile(r"\$\(\([^()]*\)\)|\$\([^()]*\)|`[^`]*`")
FLAGS = {"standalone", "no-python", "run-path", "virtual-local-rank", "use-env", "m", "module"}  # without a value
TORCHRUN = re.compile(r"(?:.*/)?torchrun|torch\.distributed\.(?:run|launch)")


def get(node: object, *keys: str) -> Any:
    """The value under these keys; None where one is missing, or is no mapping."""
    for key in keys:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def text(value: object) -> str:
    return value if isinstance(value, str) else ""


def number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def entries(at: str, value: object) -> Iterator[tuple[str, Node]]:
    """The mappings of a list, each with its path."""
    return ((f"{at}[{place}]", each) for place, each in enumerate(listed(value)) if isinstance(each, Mapping))


class Container(NamedTuple):
    """One container, and the path that leads to it."""

    at: str
    spec: Node

    @property
    def image(self) -> str:
        return text(get(self.spec, "image"))

    @property
    def argv(self) -> list[str]:
        return [str(each) for key in ("command", "args") for each in listed(get(self.spec, key))]

    @property
    def env(self) -> dict[str, Node]:
        named = (each for _, each in entries("", get(self.spec, "env")))
        return {text(each.get("name")): each for each in named}

    @property
    def shell(self) -> str:
        """`sh`, `bash` ..., where the command is a script for one; else nothing."""
        return self._shell[0]

    @property
    def script(self) -> str:
        """The script of the shell."""
        return self._shell[1]

    @property
    def _shell(self) -> tuple[str, str]:
        argv = self.argv
        flag = next((at for at, word in enumerate(argv[:-1]) if re.fullmatch(r"-[a-z]*c", word)), 0)
        names = [word.rpartition("/")[2] for word in argv[:flag]]
        name = next((name for name in names if name in SHELLS), "")
        return (name, argv[flag + 1]) if name else ("", "")

    @property
    def script_at(self) -> str:
        key = "command" if self.script in listed(get(self.spec, "command")) else "args"
        return f"{self.at}.{key if get(self.spec, key) else 'command'}"

    @property
    def calls(self) -> list[list[tuple[str, str]]]:
        """The options of every torchrun that is started, each as name and value."""
        words = split(self.script) if self.shell else self.argv
        if self.shell and '"$@"' in self.script:  # the words that stand after the script
            words += self.argv[self.argv.index(self.script) + 1 :]
        return [read_options(words[at + 1 :]) for at, word in enumerate(words) if TORCHRUN.fullmatch(word)]

    def option(self, name: str) -> str | None:
        """An option of torchrun as the command has it, else as the environment has it."""
        given = [value for call in self.calls for key, value in call if key == name]
        variable = get(self.env.get(f"PET_{name.upper().replace('-', '_')}"), "value")
        return given[-1] if given else variable if isinstance(variable, str) else None


def split(script: str) -> list[str]:
    """The words of a script: a quoted one is whole, a substituted one is HIDDEN, `;` ends every command."""
    hidden, left = "", script.replace("\\\n", " ")
    while left != hidden:
        hidden, left = left, SUBSTITUTED.sub(HIDDEN, left)
    plain = QUOTED.sub(lambda match: re.sub(r"[\s;&|]", "_", match[1] or match[2] or ""), left)
    return re.sub(r"[;&|\n]+", " ; ", plain).split()


def read_options(words: list[str]) -> list[tuple[str, str]]:
    """The options up to the program; `--nproc_per_node` is `nproc-per-node`."""
    found: list[tuple[str, str]] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            break
        name, given, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        found.append((name, value if given or name in FLAGS else next(rest, "")))
    return found


def floats(image: str) -> bool:
    """Whether the image is latest, said or not."""
    tail = image.rpartition("/")[2]
    return "@" not in image and (":" not in tail or tail.endswith(":latest"))


def is_new_etcd(image: str) -> bool:
    """etcd 3.6 or newer."""
    match = ETCD.fullmatch(image)
    version = (int(match["major"]), int(match["minor"])) if match and match["major"] else None
    return bool(match) and (version >= (3, 6) if version else floats(image))


class Group(NamedTuple):
    """The pods of one template: a Volcano task, a replica type of a PyTorchJob, or one bare Pod."""

    name: str
    replicas: int
    at: str
    spec: Node
    pod_at: str
    pod: Node

    @property
    def containers(self) -> list[Container]:
        return [Container(*each) for each in entries(f"{self.pod_at}.containers", self.pod.get("containers"))]

    @property
    def all_containers(self) -> list[Container]:
        first = entries(f"{self.pod_at}.initContainers", self.pod.get("initContainers"))
        return [*(Container(*each) for each in first), *self.containers]

    @property
    def host_network(self) -> bool:
        return self.pod.get("hostNetwork") is True


class Workload(NamedTuple):
    """One object that makes pods."""

    kind: Kind
    where: str
    name: str
    namespace: str
    spec: Node
    groups: tuple[Group, ...]

    @property
    def total(self) -> int:
        return sum(group.replicas for group in self.groups)

    @property
    def containers(self) -> list[Container]:
        return [container for group in self.groups for container in group.containers]

    @property
    def elastic(self) -> Node | None:
        """The elasticPolicy of a PyTorchJob."""
        policy = get(self.spec, "elasticPolicy")
        return policy if self.kind == "pytorchjob" and isinstance(policy, Mapping) else None

    def option(self, name: str, elastic: str = "") -> str | None:
        """An option of torchrun: on its command line, in its environment, or a key of the elasticPolicy."""
        given = (container.option(name) for container in self.containers)
        value = get(self.elastic, elastic) if elastic else None
        return next((each for each in given if each is not None), value if isinstance(value, str) else None)

    @property
    def meets_in_etcd(self) -> bool:
        return self.option("rdzv-backend", "rdzvBackend") in ("etcd", "etcd-v2")

    @property
    def pods(self) -> Iterator[str]:
        """The names of the pods, of a job without end its first ones."""
        for group in self.groups:
            for place in range(min(group.replicas, 1000)):
                yield self.name if self.kind == "pod" else f"{self.name}-{group.name.lower()}-{place}"


def read_workloads(item: object, where: str = "") -> Iterator[Workload]:
    """The pods that an object makes, or the objects wrapped in it; none of kinds that nobody reads here."""
    api, said = text(get(item, "apiVersion")), text(get(item, "kind"))
    name, namespace = text(get(item, "metadata", "name")), text(get(item, "metadata", "namespace"))
    where = f"{where}{said} {name}".strip()
    if said == WRAPPER:
        for each in wrapped(item):
            yield from read_workloads(each, f"{where}, ")
    kind = next((kind for start, known, kind in KINDS if api.startswith(start) and said == known), None)
    if kind:
        spec = get(item, "spec")
        spec = spec if isinstance(spec, Mapping) else {}
        yield Workload(kind, where, name, namespace, spec, tuple(read_groups(kind, spec)))


def wrapped(wrapper: object) -> Iterator[Node]:
    """What an AppWrapper holds, of either kind; not another AppWrapper, which no controller takes."""
    items = [*listed(get(wrapper, "spec", "components")), *listed(get(wrapper, "spec", "resources", "GenericItems"))]
    found = (get(each, key) for each in items for key in ("template", "generictemplate"))
    return (each for each in found if isinstance(each, Mapping) and get(each, "kind") != WRAPPER)


def read_groups(kind: Kind, spec: Node) -> Iterator[Group]:
    if kind == "pod":
        yield Group("", 1, "spec", spec, "spec", spec)
    elif kind == "volcano":
        for at, task in entries("spec.tasks", spec.get("tasks")):
            yield read_group(text(task.get("name")), at, task, 0)
    elif kind == "jobset":
        for at, job in entries("spec.replicatedJobs", spec.get("replicatedJobs")):
            inner = get(job, "template", "spec")
            pods = {"replicas": (number(get(job, "replicas")) or 1) * (number(get(inner, "parallelism")) or 1)}
            each = {**inner, **pods} if isinstance(inner, Mapping) else {}
            yield read_group(text(job.get("name")), f"{at}.template.spec", each, 1)
    else:
        types = spec.get("pytorchReplicaSpecs")
        for name, each in types.items() if isinstance(types, Mapping) else ():
            if isinstance(each, Mapping):
                yield read_group(str(name), f"spec.pytorchReplicaSpecs.{name}", each, 1)


def read_group(name: str, at: str, spec: Node, default: int) -> Group:
    replicas, pod = number(spec.get("replicas")), get(spec, "template", "spec")
    pod = pod if isinstance(pod, Mapping) else {}
    return Group(name, max(default if replicas is None else replicas, 0), at, spec, f"{at}.template.spec", pod)
