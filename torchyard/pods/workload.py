"""A user's manifest, read as the pods that it creates. Nothing is assumed about its shape."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

YamlNode = Mapping[str, Any]
LintFinding = tuple[str, str, str]  # a trap: the path of the key, what happens, what to write instead
WorkloadKind = Literal["volcano", "pytorchjob", "jobset", "pod"]
_WORKLOAD_KINDS: tuple[tuple[str, str, WorkloadKind], ...] = (
    ("batch.volcano.sh/", "Job", "volcano"),
    ("kubeflow.org/", "PyTorchJob", "pytorchjob"),
    ("jobset.x-k8s.io/", "JobSet", "jobset"),
    ("v1", "Pod", "pod"),
)
APPWRAPPER_KIND = "AppWrapper"
ETCD_IMAGE_PATTERN = re.compile(r"(?:.*/)?etcd(?::v?(?P<major>\d{1,3})\.(?P<minor>\d{1,3}).*|[:@].*)?", re.DOTALL)
_SHELLS = frozenset({"sh", "dash", "ash", "bash", "ksh", "zsh"})
SUBSTITUTED_TEXT = "\0"  # stands for what a shell substitutes, which is not known before
_QUOTED_PATTERN = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|(?<!\S)#[^\n]*""", re.DOTALL)
_SUBSTITUTION_PATTERN = re.compile(r"\$\(\([^()]*\)\)|\$\([^()]*\)|`[^`]*`")
_VALUELESS_OPTIONS = {
    "standalone",
    "no-python",
    "run-path",
    "virtual-local-rank",
    "use-env",
    "m",
    "module",
}  # without a value
_TORCHRUN_PATTERN = re.compile(r"(?:.*/)?torchrun|torch\.distributed\.(?:run|launch)")


def yaml_value(node: object, *keys: str) -> Any:
    """The value under these keys; None if one is missing or is not a mapping."""
    for key in keys:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def yaml_text(value: object) -> str:
    return value if isinstance(value, str) else ""


def yaml_number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def yaml_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def yaml_entries(at: str, value: object) -> Iterator[tuple[str, YamlNode]]:
    """The mappings of a list, each with its path."""
    return ((f"{at}[{place}]", each) for place, each in enumerate(yaml_list(value)) if isinstance(each, Mapping))


class ManifestContainer(NamedTuple):
    """One container, and its path in the manifest."""

    at: str
    spec: YamlNode

    @property
    def image(self) -> str:
        return yaml_text(yaml_value(self.spec, "image"))

    @property
    def argv(self) -> list[str]:
        return [str(each) for key in ("command", "args") for each in yaml_list(yaml_value(self.spec, key))]

    @property
    def env(self) -> dict[str, YamlNode]:
        named = (each for _, each in yaml_entries("", yaml_value(self.spec, "env")))
        return {yaml_text(each.get("name")): each for each in named}

    @property
    def shell(self) -> str:
        """The shell, such as `sh` or `bash`, if the command is a script for one; else empty."""
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
        name = next((name for name in names if name in _SHELLS), "")
        return (name, argv[flag + 1]) if name else ("", "")

    @property
    def script_at(self) -> str:
        key = "command" if self.script in yaml_list(yaml_value(self.spec, "command")) else "args"
        return f"{self.at}.{key if yaml_value(self.spec, key) else 'command'}"

    @property
    def calls(self) -> list[list[tuple[str, str]]]:
        """The options of every torchrun that is started, each as name and value."""
        words = _split_script(self.script) if self.shell else self.argv
        if self.shell and '"$@"' in self.script:  # the words after the script
            words += self.argv[self.argv.index(self.script) + 1 :]
        return [_read_options(words[at + 1 :]) for at, word in enumerate(words) if _TORCHRUN_PATTERN.fullmatch(word)]

    def option(self, name: str) -> str | None:
        """An option of torchrun from the command, or else from the environment; `$NAME` if a field is its source."""
        given = [value for call in self.calls for key, value in call if key == name]
        variable = f"PET_{name.upper().replace('-', '_')}"
        value = yaml_value(self.env.get(variable), "value")
        if yaml_value(self.env.get(variable), "valueFrom"):
            value = f"${variable}"
        return given[-1] if given else value if isinstance(value, str) else None


def _split_script(script: str) -> list[str]:
    """The words of a script: a quoted one is whole, a substituted one is SUBSTITUTED_TEXT, `;` ends every command."""
    hidden, left = "", script.replace("\\\n", " ")
    while left != hidden:
        hidden, left = left, _SUBSTITUTION_PATTERN.sub(SUBSTITUTED_TEXT, left)
    plain = _QUOTED_PATTERN.sub(lambda match: re.sub(r"[\s;&|]", "_", match[1] or match[2] or ""), left)
    return re.sub(r"[;&|\n]+", " ; ", plain).split()


def _read_options(words: list[str]) -> list[tuple[str, str]]:
    """The options up to the program; `--nproc_per_node` is `nproc-per-node`."""
    found: list[tuple[str, str]] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            break
        name, given, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        found.append((name, value if given or name in _VALUELESS_OPTIONS else next(rest, "")))
    return found


def is_floating_image(image: str) -> bool:
    """Whether the image's tag is latest, explicitly or by default."""
    tail = image.rpartition("/")[2]
    return "@" not in image and (":" not in tail or tail.endswith(":latest"))


def is_new_etcd(image: str) -> bool:
    """Whether the image is etcd 3.6 or newer."""
    match = ETCD_IMAGE_PATTERN.fullmatch(image)
    version = (int(match["major"]), int(match["minor"])) if match and match["major"] else None
    return bool(match) and (version >= (3, 6) if version else is_floating_image(image))


class ReplicaGroup(NamedTuple):
    """The pods of one template: a Volcano task, a replica type of a PyTorchJob, or one bare Pod."""

    name: str
    replicas: int
    at: str
    spec: YamlNode
    pod_at: str
    pod: YamlNode

    @property
    def containers(self) -> list[ManifestContainer]:
        return [
            ManifestContainer(*each) for each in yaml_entries(f"{self.pod_at}.containers", self.pod.get("containers"))
        ]

    @property
    def all_containers(self) -> list[ManifestContainer]:
        first = yaml_entries(f"{self.pod_at}.initContainers", self.pod.get("initContainers"))
        return [*(ManifestContainer(*each) for each in first), *self.containers]

    @property
    def host_network(self) -> bool:
        return self.pod.get("hostNetwork") is True


class Workload(NamedTuple):
    """One object that makes pods."""

    kind: WorkloadKind
    where: str
    name: str
    namespace: str
    spec: YamlNode
    groups: tuple[ReplicaGroup, ...]

    @property
    def total(self) -> int:
        return sum(group.replicas for group in self.groups)

    @property
    def containers(self) -> list[ManifestContainer]:
        return [container for group in self.groups for container in group.containers]

    @property
    def elastic(self) -> YamlNode | None:
        """The elasticPolicy of a PyTorchJob."""
        policy = yaml_value(self.spec, "elasticPolicy")
        return policy if self.kind == "pytorchjob" and isinstance(policy, Mapping) else None

    def option(self, name: str, elastic: str = "") -> str | None:
        """An option of torchrun: on its command line, in its environment, or a key of the elasticPolicy."""
        given = (container.option(name) for container in self.containers)
        value = yaml_value(self.elastic, elastic) if elastic else None
        return next((each for each in given if each is not None), value if isinstance(value, str) else None)

    @property
    def meets_in_etcd(self) -> bool:
        return self.option("rdzv-backend", "rdzvBackend") in ("etcd", "etcd-v2")

    @property
    def pods(self) -> Iterator[str]:
        """The names of the pods; of an absurdly large group only the first 1000."""
        for group in self.groups:
            for place in range(min(group.replicas, 1000)):
                yield self.name if self.kind == "pod" else f"{self.name}-{group.name.lower()}-{place}"


def read_workloads(item: object, where: str = "") -> Iterator[Workload]:
    """The workload that an object is, or those wrapped in it; none for kinds that are not known here."""
    api, said = yaml_text(yaml_value(item, "apiVersion")), yaml_text(yaml_value(item, "kind"))
    name, namespace = (
        yaml_text(yaml_value(item, "metadata", "name")),
        yaml_text(yaml_value(item, "metadata", "namespace")),
    )
    where = f"{where}{said} {name}".strip()
    if said == APPWRAPPER_KIND:
        for each in list_wrapped_objects(item):
            yield from read_workloads(each, f"{where}, ")
    kind = next((kind for start, known, kind in _WORKLOAD_KINDS if api.startswith(start) and said == known), None)
    if kind:
        spec = yaml_value(item, "spec")
        spec = spec if isinstance(spec, Mapping) else {}
        yield Workload(kind, where, name, namespace, spec, tuple(_read_groups(kind, spec)))


def list_wrapped_objects(wrapper: object) -> Iterator[YamlNode]:
    """The objects in an AppWrapper of either version, without other AppWrappers, which no controller accepts."""
    items = [
        *yaml_list(yaml_value(wrapper, "spec", "components")),
        *yaml_list(yaml_value(wrapper, "spec", "resources", "GenericItems")),
    ]
    found = (yaml_value(each, key) for each in items for key in ("template", "generictemplate"))
    return (each for each in found if isinstance(each, Mapping) and yaml_value(each, "kind") != APPWRAPPER_KIND)


def _read_groups(kind: WorkloadKind, spec: YamlNode) -> Iterator[ReplicaGroup]:
    if kind == "pod":
        yield ReplicaGroup("", 1, "spec", spec, "spec", spec)
    elif kind == "volcano":
        for at, task in yaml_entries("spec.tasks", spec.get("tasks")):
            yield _read_group(yaml_text(task.get("name")), at, task, 0)
    elif kind == "jobset":
        for at, job in yaml_entries("spec.replicatedJobs", spec.get("replicatedJobs")):
            inner = yaml_value(job, "template", "spec")
            pods = {
                "replicas": (yaml_number(yaml_value(job, "replicas")) or 1)
                * (yaml_number(yaml_value(inner, "parallelism")) or 1)
            }
            each = {**inner, **pods} if isinstance(inner, Mapping) else {}
            yield _read_group(yaml_text(job.get("name")), f"{at}.template.spec", each, 1)
    else:
        types = spec.get("pytorchReplicaSpecs")
        for name, each in types.items() if isinstance(types, Mapping) else ():
            if isinstance(each, Mapping):
                yield _read_group(str(name), f"spec.pytorchReplicaSpecs.{name}", each, 1)


def _read_group(name: str, at: str, spec: YamlNode, default: int) -> ReplicaGroup:
    replicas, pod = yaml_number(spec.get("replicas")), yaml_value(spec, "template", "spec")
    pod = pod if isinstance(pod, Mapping) else {}
    return ReplicaGroup(name, max(default if replicas is None else replicas, 0), at, spec, f"{at}.template.spec", pod)
