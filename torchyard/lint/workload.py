"""A user's manifest, read as the pods that it creates. Nothing is assumed about its shape."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

YamlNode = Mapping[str, Any]
# job: of Kubernetes itself. server: of pods that never end.
WorkloadKind = Literal["volcano", "pytorchjob", "jobset", "job", "pod", "server"]
_WORKLOAD_KINDS: tuple[tuple[str, str, WorkloadKind], ...] = (
    ("batch.volcano.sh/", "Job", "volcano"),
    ("kubeflow.org/", "PyTorchJob", "pytorchjob"),
    ("jobset.x-k8s.io/", "JobSet", "jobset"),
    ("batch/v1", "Job", "job"),
    ("v1", "Pod", "pod"),
    ("apps/", "Deployment", "server"),
    ("apps/", "StatefulSet", "server"),
)
APPWRAPPER_KIND = "AppWrapper"
ETCD_IMAGE_PATTERN = re.compile(r"(?:.*/)?etcd(?::v?(?P<major>\d{1,3})\.(?P<minor>\d{1,3}).*|[:@].*)?", re.DOTALL)
_GPU_PATTERN = re.compile(r".*/gpu(?:\.shared)?|nvidia\.com/mig-.+", re.DOTALL)
_IDLE_PROGRAMS = frozenset(
    {"date", "echo", "exit", "hostname", "ls", "nvidia-smi", "printenv", "sleep", "tail", "true"}
)
_SHELLS = frozenset({"sh", "dash", "ash", "bash", "ksh", "zsh"})
SUBSTITUTED_TEXT = "\0"  # replaces a shell substitution, whose value is known only at run time
_QUOTED_PATTERN = re.compile(r"""'([^']*)'|"((?:\\.|[^"\\])*)"|(?<!\S)#[^\n]*""", re.DOTALL)
_SUBSTITUTION_PATTERN = re.compile(r"\$\(\([^()]*\)\)|\$\([^()]*\)|`[^`]*`")
_FLAG_OPTIONS = {"standalone", "no-python", "run-path", "virtual-local-rank", "use-env", "m", "module"}  # take no value
_TORCHRUN_PATTERN = re.compile(r"(?:.*/)?torchrun|torch\.distributed\.(?:run|launch)")
_MIN_NEW_ETCD = (3, 6)  # the first version without the v2 API
_MAX_POD_NAMES = 1000  # per group: a manifest may ask for billions of pods


class ShellScript(NamedTuple):
    """A script in a container's command, and the name of the shell that runs it, such as `sh` or `bash`."""

    shell: str
    text: str


class TorchrunOption(NamedTuple):
    """An option on torchrun's command line, such as `nproc-per-node` with the value `8`; a flag's value is empty."""

    name: str
    value: str


class TorchrunCall(NamedTuple):
    """What follows `torchrun` on a command line: its options, and the program; empty if no word follows the options."""

    options: list[TorchrunOption]
    program: str

    @property
    def has_hidden_options(self) -> bool:
        """Whether the word after the options is known only at run time, so that it may hold more of them."""
        return self.program.startswith(("$", SUBSTITUTED_TEXT))


def yaml_value(node: object, *keys: str) -> Any:
    """The value under these keys; None if one is missing or is not a mapping."""
    for key in keys:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def yaml_text(value: object) -> str:
    """The value if it is a string; else empty."""
    return value if isinstance(value, str) else ""


def yaml_number(value: object) -> int | None:
    """The value if it is an integer; None if it is anything else, also a bool."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def yaml_list(value: object) -> list[Any]:
    """The value if it is a list; else an empty list."""
    return value if isinstance(value, list) else []


def yaml_mapping(value: object) -> YamlNode:
    """The value if it is a mapping; else an empty mapping."""
    return value if isinstance(value, Mapping) else {}


def yaml_entries(key_path: str, value: object) -> Iterator[tuple[str, YamlNode]]:
    """Yield the mappings of a list, each with its path; `key_path` is the list's own."""
    for index, entry in enumerate(yaml_list(value)):
        if isinstance(entry, Mapping):
            yield f"{key_path}[{index}]", entry


class ManifestContainer(NamedTuple):
    """One container, and its path in the manifest."""

    key_path: str
    spec: YamlNode

    @property
    def image(self) -> str:
        """The image; empty if the container names none."""
        return yaml_text(yaml_value(self.spec, "image"))

    @property
    def argv(self) -> list[str]:
        """The words of `command` and `args`."""
        command = yaml_list(yaml_value(self.spec, "command"))
        args = yaml_list(yaml_value(self.spec, "args"))
        return [str(arg) for arg in command + args]

    @property
    def env(self) -> dict[str, YamlNode]:
        """The entries of `env` by name."""
        return {
            yaml_text(variable.get("name")): variable for _, variable in yaml_entries("", yaml_value(self.spec, "env"))
        }

    @property
    def requests(self) -> dict[str, str]:
        """What the container requests. What has only a limit is requested too, as Kubernetes does."""
        resources = yaml_value(self.spec, "resources")
        amounts = dict(yaml_mapping(yaml_value(resources, "requests")))
        for name, amount in yaml_mapping(yaml_value(resources, "limits")).items():
            amounts.setdefault(name, amount)
        return {str(name): str(amount) for name, amount in amounts.items()}

    @property
    def gpu_count(self) -> int:
        """The GPUs that the container requests, of any vendor; slices of one count each."""
        counts = [0]
        for key in ("limits", "requests"):
            amounts = yaml_mapping(yaml_value(self.spec, "resources", key))
            gpus = [str(amount) for name, amount in amounts.items() if _GPU_PATTERN.fullmatch(str(name))]
            counts.append(sum(int(amount) for amount in gpus if amount.isdecimal()))
        return max(counts)

    @property
    def shell(self) -> str:
        """The shell, such as `sh` or `bash`, if the command is a script for one; else empty."""
        script = self._find_script()
        return script.shell if script else ""

    @property
    def script(self) -> str:
        """The text of the shell's script; empty if the command is not a script."""
        script = self._find_script()
        return script.text if script else ""

    def _find_script(self) -> ShellScript | None:
        """The script after the first `-c` of a known shell; None if the command is not such a script."""
        argv = self.argv
        for index, arg in enumerate(argv[:-1]):
            if re.fullmatch(r"-[a-z]*c", arg):
                for program in argv[:index]:
                    name = program.rpartition("/")[2]
                    if name in _SHELLS:
                        return ShellScript(name, argv[index + 1])
                return None
        return None

    @property
    def script_path(self) -> str:
        """The path of the key that has the script, or else of the key that has the command."""
        key = "command" if self.script in yaml_list(yaml_value(self.spec, "command")) else "args"
        if not yaml_value(self.spec, key):
            key = "command"
        return f"{self.key_path}.{key}"

    @property
    def script_argv(self) -> list[str]:
        """The words of the script, with `;` after each command; of `command` and `args` if they are not a script."""
        if not self.shell:
            return self.argv
        argv = split_script(self.script)
        if '"$@"' in self.script:  # the words after the script
            argv += self.argv[self.argv.index(self.script) + 1 :]
        return argv

    @property
    def torchrun_calls(self) -> list[TorchrunCall]:
        """Every torchrun that the container starts."""
        argv = self.script_argv
        calls = [
            parse_torchrun_call(argv[index + 1 :]) for index, arg in enumerate(argv) if _TORCHRUN_PATTERN.fullmatch(arg)
        ]
        return [call for call in calls if call.program]  # without one, a script names torchrun only, as `pip` does

    @property
    def is_idle(self) -> bool:
        """Whether the command only waits or prints something, as in a test of the cluster."""
        programs = set()
        previous_arg = ";"
        for arg in self.script_argv:
            if previous_arg == ";" and arg != ";":
                programs.add(arg.rpartition("/")[2])
            previous_arg = arg
        return bool(programs) and programs <= _IDLE_PROGRAMS

    def find_option(self, name: str) -> str | None:
        """An option of torchrun, from its command line or else its environment; None if neither has it.

        `$NAME` if the environment takes the value from a field.
        """
        values = [option.value for call in self.torchrun_calls for option in call.options if option.name == name]
        if values:
            return values[-1]  # as torchrun's parser does
        variable_name = f"PET_{name.upper().replace('-', '_')}"
        variable = self.env.get(variable_name)
        if yaml_value(variable, "valueFrom"):
            return f"${variable_name}"
        value = yaml_value(variable, "value")
        return value if isinstance(value, str) else None


def split_script(script: str) -> list[str]:
    """The words of a script, with `;` after each command.

    A quoted text is one word, without its quotes; a substitution is SUBSTITUTED_TEXT.
    """
    script = script.replace("\\\n", " ")
    previous = None
    while script != previous:  # substitutions may be nested: each pass replaces the innermost
        previous = script
        script = _SUBSTITUTION_PATTERN.sub(SUBSTITUTED_TEXT, script)
    unquoted = _QUOTED_PATTERN.sub(_join_quoted_words, script)
    return re.sub(r"[;&|\n]+", " ; ", unquoted).split()


def _join_quoted_words(match: re.Match[str]) -> str:
    """The quoted text, with `_` for the characters that would split it; empty for a comment."""
    return re.sub(r"[\s;&|]", "_", match[1] or match[2] or "")


def parse_torchrun_call(argv: list[str]) -> TorchrunCall:
    """The words after `torchrun`. Options have dashes in their names: `--nproc_per_node` is `nproc-per-node`."""
    options: list[TorchrunOption] = []
    remaining_args = iter(argv)
    for arg in remaining_args:
        if arg == "--":
            return TorchrunCall(options, next(remaining_args, ""))
        if not arg.startswith("-"):
            return TorchrunCall(options, "" if arg == ";" else arg)
        name, has_value, value = arg.lstrip("-").partition("=")
        name = name.replace("_", "-")  # torchrun accepts both spellings
        if not has_value and name not in _FLAG_OPTIONS:
            value = next(remaining_args, "")
        options.append(TorchrunOption(name, value))
    return TorchrunCall(options, "")


def is_floating_image(image: str) -> bool:
    """Whether the image's tag is latest, explicitly or by default."""
    tail = image.rpartition("/")[2]
    return "@" not in image and (":" not in tail or tail.endswith(":latest"))


def is_new_etcd(image: str) -> bool:
    """Whether the image is etcd 3.6 or newer. An image without a version counts as new if its tag floats."""
    match = ETCD_IMAGE_PATTERN.fullmatch(image)
    if not match:
        return False
    if not match["major"]:
        return is_floating_image(image)
    return (int(match["major"]), int(match["minor"])) >= _MIN_NEW_ETCD


class ReplicaGroup(NamedTuple):
    """The pods of one template: a Volcano task, a replica type of a PyTorchJob, a Job, or a companion.

    key_path, spec: of the task, replica type, Job or companion.
    pod_path, pod: of the pod's spec in it.
    """

    name: str
    replicas: int
    key_path: str
    spec: YamlNode
    pod_path: str
    pod: YamlNode

    @property
    def containers(self) -> list[ManifestContainer]:
        """The regular containers."""
        return self._list_containers("containers")

    @property
    def all_containers(self) -> list[ManifestContainer]:
        """The init containers and the regular ones."""
        return self._list_containers("initContainers") + self._list_containers("containers")

    def _list_containers(self, key: str) -> list[ManifestContainer]:
        entries = yaml_entries(f"{self.pod_path}.{key}", self.pod.get(key))
        return [ManifestContainer(key_path, spec) for key_path, spec in entries]

    @property
    def uses_host_network(self) -> bool:
        """Whether the pods use their node's network."""
        return self.pod.get("hostNetwork") is True


class Workload(NamedTuple):
    """One object that creates pods.

    location: its kind and name for a message, such as `AppWrapper outer, PyTorchJob train`.
    root: the whole object.
    """

    kind: WorkloadKind
    location: str
    name: str
    namespace: str
    root: YamlNode
    spec: YamlNode
    groups: tuple[ReplicaGroup, ...]

    @property
    def is_wrapped(self) -> bool:
        """Whether the object is in an AppWrapper."""
        return self.location.startswith(APPWRAPPER_KIND)

    @property
    def is_job(self) -> bool:
        """Whether it is a job, and not a companion of one, such as the Pod or Deployment of an etcd."""
        return self.kind not in ("pod", "server")

    @property
    def pod_count(self) -> int:
        """The number of pods in all groups."""
        return sum(group.replicas for group in self.groups)

    @property
    def containers(self) -> list[ManifestContainer]:
        """The regular containers of all groups."""
        return [container for group in self.groups for container in group.containers]

    @property
    def all_containers(self) -> list[ManifestContainer]:
        """The init containers and the regular ones of all groups."""
        return [container for group in self.groups for container in group.all_containers]

    @property
    def runs_torchrun(self) -> bool:
        """Whether a container certainly starts torchrun: a script of the image may start it too."""
        return any(container.torchrun_calls for container in self.containers)

    @property
    def has_hidden_options(self) -> bool:
        """Whether options of torchrun may be in a variable whose content is known only at run time."""
        return any(call.has_hidden_options for container in self.containers for call in container.torchrun_calls)

    @property
    def gets_master_address(self) -> bool:
        """Whether the controller appends its own MASTER_ADDR to the variables of every container; the last one wins."""
        if self.kind == "pytorchjob":
            return any(group.name == "Master" for group in self.groups)
        master_name = find_master_task(self.spec, "pytorch") if self.kind == "volcano" else None
        return any(group.name == master_name for group in self.groups)

    @property
    def has_operator_rendezvous(self) -> bool:
        """Whether the operator sets torchrun's rendezvous: address and node rank of a Master, or an elasticPolicy."""
        return self.kind == "pytorchjob" and (self.gets_master_address or self.elastic_policy is not None)

    @property
    def elastic_policy(self) -> YamlNode | None:
        """The elasticPolicy of a PyTorchJob; None if the object has none."""
        policy = yaml_value(self.spec, "elasticPolicy")
        return policy if self.kind == "pytorchjob" and isinstance(policy, Mapping) else None

    def find_option(self, name: str, elastic_key: str = "") -> str | None:
        """An option of torchrun; None if it is set nowhere.

        From the first container with the option on its command line or in its environment, or else from the key
        `elastic_key` of the elasticPolicy.
        """
        for container in self.containers:
            option = container.find_option(name)
            if option is not None:
                return option
        value = yaml_value(self.elastic_policy, elastic_key) if elastic_key else None
        return value if isinstance(value, str) else None

    @property
    def uses_etcd(self) -> bool:
        """Whether torchrun's rendezvous is in an etcd."""
        return self.find_option("rdzv-backend", "rdzvBackend") in ("etcd", "etcd-v2")

    @property
    def pod_names(self) -> Iterator[str]:
        """The names of the pods; of a very large group only the first, and none if the names are random."""
        for group in self.groups if self.kind not in ("job", "server") else ():
            for index in range(min(group.replicas, _MAX_POD_NAMES)):
                yield self.name if self.kind == "pod" else f"{self.name}-{group.name.lower()}-{index}"


def list_workloads(obj: object, parent_location: str = "") -> Iterator[Workload]:
    """Yield the workload that an object is, or those that an AppWrapper wraps; nothing for any other kind.

    `parent_location`: of the AppWrapper around the object, with a comma after it.
    """
    obj_kind = yaml_text(yaml_value(obj, "kind"))
    name = yaml_text(yaml_value(obj, "metadata", "name"))
    namespace = yaml_text(yaml_value(obj, "metadata", "namespace"))
    location = f"{parent_location}{obj_kind} {name}".strip()
    if obj_kind == APPWRAPPER_KIND:
        for wrapped in list_wrapped_objects(obj):
            yield from list_workloads(wrapped, f"{location}, ")
    workload_kind = find_workload_kind(obj)
    if workload_kind:
        spec = yaml_mapping(yaml_value(obj, "spec"))
        groups = tuple(_list_groups(workload_kind, spec))
        yield Workload(workload_kind, location, name, namespace, yaml_mapping(obj), spec, groups)


def find_master_task(spec: object, plugin: str) -> str | None:
    """The name of the task that a plugin of Volcano, `pytorch` or `mpi`, takes as the master; None without the plugin.

    `spec`: of the Job.
    """
    plugins = yaml_mapping(yaml_value(spec, "plugins"))
    if plugin not in plugins:
        return None
    task_name = "master"  # the plugins' default
    for flag in yaml_list(plugins[plugin]):
        option, _, value = str(flag).partition("=")
        if option.lstrip("-") == "master":
            task_name = value
    return task_name


def find_workload_kind(obj: object) -> WorkloadKind | None:
    """The kind of workload of an object; None if no rule here reads it."""
    api_version = yaml_text(yaml_value(obj, "apiVersion"))
    for api_prefix, supported_kind, workload_kind in _WORKLOAD_KINDS:
        if api_version.startswith(api_prefix) and yaml_value(obj, "kind") == supported_kind:
            return workload_kind
    return None


def has_pod_template(obj: object) -> bool:
    """Whether an object of any kind creates pods, by the shape of its specification."""
    if isinstance(obj, Mapping):
        return "containers" in obj or any(has_pod_template(value) for value in obj.values())
    return isinstance(obj, list) and any(has_pod_template(item) for item in obj)


def list_wrapped_objects(wrapper: object) -> Iterator[YamlNode]:
    """Yield the objects in an AppWrapper of either version, without other AppWrappers: no controller accepts those."""
    items = yaml_list(yaml_value(wrapper, "spec", "components"))
    for key in ("GenericItems", "Items"):
        items = items + yaml_list(yaml_value(wrapper, "spec", "resources", key))
    for item in items:
        for key in ("template", "generictemplate"):
            obj = yaml_value(item, key)
            if isinstance(obj, Mapping) and yaml_value(obj, "kind") != APPWRAPPER_KIND:
                yield obj


def _list_groups(kind: WorkloadKind, spec: YamlNode) -> Iterator[ReplicaGroup]:
    """Yield the groups of a workload; replicas that are left out are 0 in Volcano and 1 elsewhere."""
    if kind == "pod":
        yield ReplicaGroup("", 1, "spec", spec, "spec", spec)
    elif kind == "job":
        yield _build_group("", "spec", spec, read_job_pods(spec).parallel)
    elif kind == "server":
        yield _build_group("", "spec", spec, _read_count(spec.get("replicas"), default=1))
    elif kind == "volcano":
        for key_path, task in yaml_entries("spec.tasks", spec.get("tasks")):
            yield _build_group(
                yaml_text(task.get("name")), key_path, task, _read_count(task.get("replicas"), default=0)
            )
    elif kind == "jobset":
        for key_path, job in yaml_entries("spec.replicatedJobs", spec.get("replicatedJobs")):
            job_spec = yaml_mapping(yaml_value(job, "template", "spec"))
            pod_count = _read_count(job.get("replicas"), default=1) * read_job_pods(job_spec).parallel
            yield _build_group(yaml_text(job.get("name")), f"{key_path}.template.spec", job_spec, pod_count)
    else:
        for name, role in yaml_mapping(spec.get("pytorchReplicaSpecs")).items():
            if isinstance(role, Mapping):
                replicas = _read_count(role.get("replicas"), default=1)
                yield _build_group(str(name), f"spec.pytorchReplicaSpecs.{name}", role, replicas)


class JobPods(NamedTuple):
    """The pods of a Job of batch/v1: how many there are in all, and how many run at a time."""

    total: int
    parallel: int


def read_job_pods(spec: YamlNode) -> JobPods:
    """The pods that the spec of a Job asks for. Without `completions` all of them run at a time."""
    parallelism = _read_count(spec.get("parallelism"), default=1)
    total = _read_count(spec.get("completions"), default=parallelism)
    return JobPods(total, min(parallelism, total))


def is_indexed_job(spec: YamlNode, *, is_in_jobset: bool) -> bool:
    """Whether the pods of a Job have stable names. The webhook of JobSets makes a Job without a mode Indexed."""
    return (spec.get("completionMode") or ("Indexed" if is_in_jobset else "NonIndexed")) == "Indexed"


def _read_count(value: object, *, default: int) -> int:
    """A number of pods or Jobs, 0 or more; the default if it is left out or is not a number."""
    count = yaml_number(value)
    return default if count is None else max(count, 0)


def _build_group(name: str, key_path: str, spec: YamlNode, replicas: int) -> ReplicaGroup:
    pod = yaml_mapping(yaml_value(spec, "template", "spec"))
    return ReplicaGroup(name, replicas, key_path, spec, f"{key_path}.template.spec", pod)
