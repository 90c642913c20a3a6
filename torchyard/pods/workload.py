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


def yaml_entries(key_path: str, value: object) -> Iterator[tuple[str, YamlNode]]:
    """The mappings of a list, each with its path."""
    return (
        (f"{key_path}[{index}]", entry) for index, entry in enumerate(yaml_list(value)) if isinstance(entry, Mapping)
    )


class ManifestContainer(NamedTuple):
    """One container, and its path in the manifest."""

    key_path: str
    spec: YamlNode

    @property
    def image(self) -> str:
        return yaml_text(yaml_value(self.spec, "image"))

    @property
    def argv(self) -> list[str]:
        return [str(arg) for key in ("command", "args") for arg in yaml_list(yaml_value(self.spec, key))]

    @property
    def env(self) -> dict[str, YamlNode]:
        variables = (variable for _, variable in yaml_entries("", yaml_value(self.spec, "env")))
        return {yaml_text(variable.get("name")): variable for variable in variables}

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
        flag = next((index for index, arg in enumerate(argv[:-1]) if re.fullmatch(r"-[a-z]*c", arg)), 0)
        names = [arg.rpartition("/")[2] for arg in argv[:flag]]
        name = next((name for name in names if name in _SHELLS), "")
        return (name, argv[flag + 1]) if name else ("", "")

    @property
    def script_path(self) -> str:
        key = "command" if self.script in yaml_list(yaml_value(self.spec, "command")) else "args"
        return f"{self.key_path}.{key if yaml_value(self.spec, key) else 'command'}"

    @property
    def torchrun_calls(self) -> list[list[tuple[str, str]]]:
        """The options of every torchrun that is started, each as name and value."""
        argv = _split_script(self.script) if self.shell else self.argv
        if self.shell and '"$@"' in self.script:  # the words after the script
            argv += self.argv[self.argv.index(self.script) + 1 :]
        return [_parse_options(argv[index + 1 :]) for index, arg in enumerate(argv) if _TORCHRUN_PATTERN.fullmatch(arg)]

    def find_option(self, name: str) -> str | None:
        """An option of torchrun from the command, or else from the environment; `$NAME` if a field is its source."""
        values = [value for call in self.torchrun_calls for key, value in call if key == name]
        variable = f"PET_{name.upper().replace('-', '_')}"
        value = yaml_value(self.env.get(variable), "value")
        if yaml_value(self.env.get(variable), "valueFrom"):
            value = f"${variable}"
        return values[-1] if values else value if isinstance(value, str) else None


def _split_script(script: str) -> list[str]:
    """The words of a script: a quoted one is whole, a substituted one is SUBSTITUTED_TEXT, `;` ends every command."""
    previous, script_text = "", script.replace("\\\n", " ")
    while script_text != previous:
        previous, script_text = script_text, _SUBSTITUTION_PATTERN.sub(SUBSTITUTED_TEXT, script_text)
    unquoted = _QUOTED_PATTERN.sub(lambda match: re.sub(r"[\s;&|]", "_", match[1] or match[2] or ""), script_text)
    return re.sub(r"[;&|\n]+", " ; ", unquoted).split()


def _parse_options(argv: list[str]) -> list[tuple[str, str]]:
    """The options up to the program; `--nproc_per_node` is `nproc-per-node`."""
    options: list[tuple[str, str]] = []
    remaining_args = iter(argv)
    for arg in remaining_args:
        if not arg.startswith("-"):
            break
        name, has_value, value = arg.lstrip("-").partition("=")
        name = name.replace("_", "-")
        options.append((name, value if has_value or name in _VALUELESS_OPTIONS else next(remaining_args, "")))
    return options


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
    key_path: str
    spec: YamlNode
    pod_path: str
    pod: YamlNode

    @property
    def containers(self) -> list[ManifestContainer]:
        return [
            ManifestContainer(*entry)
            for entry in yaml_entries(f"{self.pod_path}.containers", self.pod.get("containers"))
        ]

    @property
    def all_containers(self) -> list[ManifestContainer]:
        init_containers = yaml_entries(f"{self.pod_path}.initContainers", self.pod.get("initContainers"))
        return [*(ManifestContainer(*entry) for entry in init_containers), *self.containers]

    @property
    def uses_host_network(self) -> bool:
        return self.pod.get("hostNetwork") is True


class Workload(NamedTuple):
    """One object that makes pods."""

    kind: WorkloadKind
    location: str
    name: str
    namespace: str
    spec: YamlNode
    groups: tuple[ReplicaGroup, ...]

    @property
    def pod_count(self) -> int:
        return sum(group.replicas for group in self.groups)

    @property
    def containers(self) -> list[ManifestContainer]:
        return [container for group in self.groups for container in group.containers]

    @property
    def elastic_policy(self) -> YamlNode | None:
        """The elasticPolicy of a PyTorchJob."""
        policy = yaml_value(self.spec, "elasticPolicy")
        return policy if self.kind == "pytorchjob" and isinstance(policy, Mapping) else None

    def find_option(self, name: str, elastic_key: str = "") -> str | None:
        """An option of torchrun: on its command line, in its environment, or a key of the elasticPolicy."""
        options = (container.find_option(name) for container in self.containers)
        value = yaml_value(self.elastic_policy, elastic_key) if elastic_key else None
        return next((option for option in options if option is not None), value if isinstance(value, str) else None)

    @property
    def uses_etcd(self) -> bool:
        return self.find_option("rdzv-backend", "rdzvBackend") in ("etcd", "etcd-v2")

    @property
    def pod_names(self) -> Iterator[str]:
        """The names of the pods; of an absurdly large group only the first 1000."""
        for group in self.groups:
            for index in range(min(group.replicas, 1000)):
                yield self.name if self.kind == "pod" else f"{self.name}-{group.name.lower()}-{index}"


def read_workloads(obj: object, location: str = "") -> Iterator[Workload]:
    """The workload that an object is, or those wrapped in it; none for kinds that are not known here."""
    api_version, obj_kind = yaml_text(yaml_value(obj, "apiVersion")), yaml_text(yaml_value(obj, "kind"))
    name, namespace = (
        yaml_text(yaml_value(obj, "metadata", "name")),
        yaml_text(yaml_value(obj, "metadata", "namespace")),
    )
    location = f"{location}{obj_kind} {name}".strip()
    if obj_kind == APPWRAPPER_KIND:
        for wrapped in list_wrapped_objects(obj):
            yield from read_workloads(wrapped, f"{location}, ")
    kind = next(
        (
            kind
            for api_prefix, known_kind, kind in _WORKLOAD_KINDS
            if api_version.startswith(api_prefix) and obj_kind == known_kind
        ),
        None,
    )
    if kind:
        spec = yaml_value(obj, "spec")
        spec = spec if isinstance(spec, Mapping) else {}
        yield Workload(kind, location, name, namespace, spec, tuple(_read_groups(kind, spec)))


def list_wrapped_objects(wrapper: object) -> Iterator[YamlNode]:
    """The objects in an AppWrapper of either version, without other AppWrappers, which no controller accepts."""
    items = [
        *yaml_list(yaml_value(wrapper, "spec", "components")),
        *yaml_list(yaml_value(wrapper, "spec", "resources", "GenericItems")),
    ]
    candidates = (yaml_value(item, key) for item in items for key in ("template", "generictemplate"))
    return (obj for obj in candidates if isinstance(obj, Mapping) and yaml_value(obj, "kind") != APPWRAPPER_KIND)


def _read_groups(kind: WorkloadKind, spec: YamlNode) -> Iterator[ReplicaGroup]:
    if kind == "pod":
        yield ReplicaGroup("", 1, "spec", spec, "spec", spec)
    elif kind == "volcano":
        for key_path, task in yaml_entries("spec.tasks", spec.get("tasks")):
            yield _read_group(yaml_text(task.get("name")), key_path, task, 0)
    elif kind == "jobset":
        for key_path, job in yaml_entries("spec.replicatedJobs", spec.get("replicatedJobs")):
            job_spec = yaml_value(job, "template", "spec")
            replica_fields = {
                "replicas": (yaml_number(yaml_value(job, "replicas")) or 1)
                * (yaml_number(yaml_value(job_spec, "parallelism")) or 1)
            }
            group_spec = {**job_spec, **replica_fields} if isinstance(job_spec, Mapping) else {}
            yield _read_group(yaml_text(job.get("name")), f"{key_path}.template.spec", group_spec, 1)
    else:
        replica_specs = spec.get("pytorchReplicaSpecs")
        for name, group_spec in replica_specs.items() if isinstance(replica_specs, Mapping) else ():
            if isinstance(group_spec, Mapping):
                yield _read_group(str(name), f"spec.pytorchReplicaSpecs.{name}", group_spec, 1)


def _read_group(name: str, key_path: str, spec: YamlNode, default_replicas: int) -> ReplicaGroup:
    replicas, pod = yaml_number(spec.get("replicas")), yaml_value(spec, "template", "spec")
    pod = pod if isinstance(pod, Mapping) else {}
    return ReplicaGroup(
        name,
        max(default_replicas if replicas is None else replicas, 0),
        key_path,
        spec,
        f"{key_path}.template.spec",
        pod,
    )
