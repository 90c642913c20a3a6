"""A job's name inside its own manifest: what refers to the job there, and what it becomes when a run names the job.

A run gives the job of a manifest a new name. The manifest may contain the old one elsewhere: in a pod's address inside
a script, in the label of a selector, in the name of a ConfigMap that a controller composes from the job's. What
certainly refers to the job is replaced; what may refer to it is a finding; anything else that looks like the name (an
image, a path, a user's own label) stays as it is.

Texts are first marked: each occurrence of a job's name that refers to the job becomes that job's mark, a control
character, which the new name replaces in the end. So the new name, which may contain the old one, is never searched.
"""

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from torchyard.diagnosis.pod_facts import get_mapping, get_mappings
from torchyard.model.finding import Finding
from torchyard.model.requirements import plural_kind
from torchyard.pods.job_kind import describe_object, get_name
from torchyard.pods.template import parse_attempt_labels
from torchyard.pods.volumes import Manifest

# Labels and annotations whose value is the name of a job, by the controllers that set them on the job's pods.
_JOB_NAME_KEYS = (
    "appwrapper.mcad.ibm.com",
    "batch.kubernetes.io/job-name",
    "job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "kubeflow.org/job-name",
    "pod-group.scheduling.sigs.k8s.io",
    "pytorch-job-name",
    "scheduling.k8s.io/group-name",
    "scheduling.x-k8s.io/pod-group",
    "training.kubeflow.org/job-name",
    "volcano.sh/job-name",
    "workload.codeflare.dev/appwrapper",
)
# The companions that may belong to one job: each run gets its own if they refer to the job, in their name or elsewhere.
# A ServiceAccount is not among them, because what its name may do is often granted outside of the cluster.
RENAMED_KINDS = (
    "ComputeDomain",
    "ConfigMap",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "PodGroup",
    "PodMonitor",
    "ResourceClaimTemplate",
    "Role",
    "RoleBinding",
    "Service",
    "ServiceMonitor",
)
# By the key whose value is a name: the kind of the object that it names.
_REFERENCE_KEYS = {
    "podGroupName": "PodGroup",
    "resourceClaimTemplateName": "ResourceClaimTemplate",
    "serviceName": "Service",
    "subdomain": "Service",
}
# The same for a mapping, or a list of mappings, with the name.
_REFERENCE_PARENTS = {
    "backendRefs": "Service",
    "configMap": "ConfigMap",
    "configMapKeyRef": "ConfigMap",
    "configMapRef": "ConfigMap",
    "resourceClaimTemplate": "ResourceClaimTemplate",
    "service": "Service",
}
_JOBSET_SERVICE_KEYS = ("spec", "network", "subdomain")  # of the Service that JobSet creates
_CHANNEL_KEYS = ("spec", "channel", "resourceClaimTemplate", "name")  # of the template that a ComputeDomain creates
# Keys whose text names something else: an image, a place in a file system, an object of another kind.
_OPAQUE_KEYS = (
    "apiVersion",
    "image",
    "kind",
    "mountPath",
    "name",
    "namespace",
    "path",
    "queue",
    "serviceAccount",
    "subPath",
    "subPathExpr",
    "volumeHandle",
    "workingDir",
)
_NAME_SUFFIX = "Name"  # claimName, secretName, volumeClaimName: the name of another object
_DATA_KEYS = ("data", "stringData")  # their keys are the user's
# Of a variable, or of a key in a ConfigMap, with the name of a job.
_JOB_NAME_VARIABLE_PATTERN = re.compile(r"(?:^|[_.-])(?:vc|pytorch)?job(?:_?set)?[_-]?name$", re.IGNORECASE)
_LABEL_KEYS = ("labels", "matchLabels", "nodeSelector", "selector")
# After the `//` of these schemes comes a host; after that of a store (gs, s3, hf, file) a bucket or a path.
_NETWORK_SCHEMES = (
    "amqp",
    "c10d",
    "etcd",
    "ftp",
    "gloo",
    "grpc",
    "grpcs",
    "http",
    "https",
    "kafka",
    "mongodb",
    "mysql",
    "nats",
    "nccl",
    "postgres",
    "postgresql",
    "ray",
    "redis",
    "rediss",
    "rsync",
    "sftp",
    "ssh",
    "tcp",
    "tls",
    "udp",
    "ws",
    "wss",
    "zmq",
)
_SCHEME = rf"\b(?:{'|'.join(_NETWORK_SCHEMES)})://"
_AFTER_SCHEMES = "|".join(rf"(?<=\b{scheme}://)" for scheme in _NETWORK_SCHEMES)  # a pattern behind has one width
_AFTER_SCHEME = rf"(?<=//)(?:{_AFTER_SCHEMES})"  # the first test saves the others elsewhere
# Before a name: the start of a word that is not a part of a path. `s/` begins a sed expression, `\n` a printed line.
_START = rf"(?:(?<![\w./-])|{_AFTER_SCHEME}|(?<=\bs/)|(?<=/\^)|(?<=\\n))"
_END = r"(?![\w-])"
# The limit saves a search for each brace of a long line that closes none.
_VARIABLE = r"(?:\$\{\w+[^}\n]{0,200}\}|\$\w++|\$\(\w[^()\n]*\))"
_VARIABLE_WORD = rf"(?:{_START}(?:[\w-]*{_VARIABLE}){{1,9}}[\w-]*|`hostname[^`\n]*`)"
# An index that another program fills in: {0..3}, {i}, [0-3], %d, $((RANK + 1)), `expr 1`.
_COMPOSED_INDEX = r"(?:\{[^{}\s\"']{0,40}\}|\[[\d,-]{1,40}\]|%\d{0,2}[dgisu]\b|\$\(\([^()\n]{1,40}\)\)|`[^`\n]{1,80}`)"
_CLUSTER_DOMAIN = rf"(?:\.(?:[\w-]+|{_VARIABLE}))?\.svc\b"
_FILE_ENDING = (
    r"\.(?:bin|cfg|ckpt|conf|csv|err|gz|h5|ini|jsonl?|log|md|np[yz]|onnx|out|parquet|pkl|pth?|py|safetensors|sh|tar|tgz|tmp"
    r"|toml|tsv|txt|whl|ya?ml|zip)\b"
)
_FILE_NAME_END = rf"(?!{_FILE_ENDING})"
# --- names and addresses of pods that a script builds from variables
_REST_OF_WORD = rf"(?:[\w-]++|{_VARIABLE}){{0,9}}+"
_NO_FILE_AFTER = rf"(?!{_REST_OF_WORD}(?:/|{_FILE_ENDING}))"
_CAPTURED_VARIABLE = r"\$[{(]?(\w++)[)}]?"
_HOST_IN_VARIABLE = r"(?i:addr|head|host|leader|master|node|peer|pod|worker)"
_HOST_VARIABLE = (
    rf"(?:\$\{{\w*{_HOST_IN_VARIABLE}[^}}\n]{{0,200}}\}}|\$\w*{_HOST_IN_VARIABLE}\w*+"
    rf"|\$\(\w*{_HOST_IN_VARIABLE}[^()\n]*\))"
)
_VALUE_END = r"(?=[\"']?(?:[\s;&]|$))"
_PREFIX_VARIABLE = r"(?:\$\{(\w+)\}|\$\((\w+)\)|\$(\w++)(?=\$))"
_PREFIX_WORD = r"(?i:host|pod|worker)"  # in a variable, an option or a key for the start of pods' names
# --- where a Service's name is a host's, for it may be an experiment's or a model's elsewhere
# The end of a variable, an option or a key whose value is a host. DD_SERVICE is what Datadog calls an application.
_HOST_WORD = (
    r"(?:addr|address|coordinator|endpoint|fqdn|hosts|(?<![a-z])ip|leader|master|peer|(?<!\bdd_)service|svc|url"
    r"|(?:domain|host|server)(?:[_-]?name)?)"
)
_HOST_OPTION = (
    rf"(?i:(?<![\w-])--?[\w.-]*{_HOST_WORD}\s+[\"']?"  # --master_addr NAME
    rf"|{_HOST_WORD}(?:[\"']?\s*=\s*|[\"']?\s*:\s+|[\"']:)[\"']?)"  # MASTER_ADDR=NAME, "host": "NAME"
)
_HOST_COMMAND = (
    r"\b(?:curl|dig|getent\s+a?hosts(?:v[46])?|nc(?:at)?|nslookup|ping6?|ssh|telnet|wget)"
    r"(?:\s+[-+]\S+(?:\s+(?:\d+|\w+=\S+))?){0,9}\s+[\"']?"  # its options, such as -c 1, before the host
)
_USER = r"(?<![\w./:@-])[\w.-]+@"
_HOST_START = rf"(?:(?:{_SCHEME}|{_HOST_OPTION}|{_HOST_COMMAND})(?:[\w.-]+@)?|{_USER})"
_HOST_END = rf"(?![\w-]){_FILE_NAME_END}(?=(?:\.[\w-]+)?(?:[:\"'\s,/;&|)\]}}\\]|$))"
_PORT = r":(?:\d{2,5}(?![\w.-])|[${(]+(?i:\w*port))"
# The end of a variable that may be a host's; OTEL_SERVICE_NAME is what OpenTelemetry calls an application.
_POSSIBLE_HOST_WORD = rf"(?i:{_HOST_WORD}|(?<!\botel_)(?:service|svc)[_-]?name)"
# The option, variable or key right before its value.
_PURPOSE_PATTERN = re.compile(
    r"(?:(?<![\w-])--?[\w.-]+(?:=|\s+)|[\w.-]+[\"']?\s*=\s*|[\w.-]+[\"']?\s*:\s+|[\w.-]+[\"']:)[\"']?$"
)
_MAX_PURPOSE_CHARS = 100
_SED_PATTERN = r"\bs/[^/\n]*/"  # of a sed expression, before its replacement
_KUBECTL_PATTERN = re.compile(r"\b(?:kubectl|oc|vcctl)\b")
_HOST_NAME_PATTERN = re.compile(r"\b(?:hostname|HOSTNAME|POD_NAME|uname|gethostname)\b|platform\.node")
_OWN_NAME = r"(?:\$\{?(?:HOSTNAME|POD_NAME)\}?|\$\((?:hostname|HOSTNAME|POD_NAME)\)|`hostname`)"
_COMPARISON = rf"{_OWN_NAME}[\"']?\s*(?:==?|!=|=~)\s*[\"']?\^?"  # [[ $HOSTNAME == train-worker* ]]
_BRANCH = r"(?:\bin|;;)\s+[\"']?"  # case $HOSTNAME in train-worker*)
_BRANCH_END = r"[\"']?(?:-?\*)?[\"']?\)"
# An option of kubectl with its value: one without, such as -w, is unknown here.
_KUBECTL_OPTION = r"\s+--?[a-z][\w-]*(?:=|\s+)[^\s-]\S*"
# A part of a pod's name, by its number from the start. `rev` before it makes that the number from the end.
_FIELD_PATTERN = re.compile(
    r"(?P<reversed>\brev\s*\|\s*)?(?:cut\s+-d\s*[\"']?-[\"']?\s+-f\s*[\"']?\d"
    r"|cut\s+-f\s*[\"']?\d[\d,-]*[\"']?\s+-d\s*[\"']?-"
    r"|awk\s+-F\s*[\"']?-[\"']?\s+[\"']\{\s*print\s+\$\d"
    r"|split\(\s*[\"']-[\"']\s*\)\s*\[\s*\d"
    r"|IFS=[\"']?-[\"']?\s+read\b)"
)
# Characters of a pod's name, by their number from the start: ${HOSTNAME:13}, hostname | cut -c 14-.
_CHARACTERS_PATTERN = re.compile(
    r"\$\{(?:HOSTNAME|POD_NAME):\s*\d[^}\n]{0,40}\}|gethostname\(\)\[\d[^\]\n]{0,40}\]"
    r"|(?:\bhostname|\$\{?(?:HOSTNAME|POD_NAME)\}?)[\"']?\s*(?:\||<<<)\s*cut\s+-c\s*[\"']?\d[\d,-]*"
)
# By the kind of a companion: the keys of the labels by which it selects pods, of which each run needs its own.
_SELECTOR_KEYS = {"PodDisruptionBudget": ("spec", "selector", "matchLabels"), "Service": ("spec", "selector")}
# The first parts of labels that controllers set on a job's pods, which its manifest does not contain.
_CONTROLLER_DOMAINS = ("batch.kubernetes.io", "jobset.sigs.k8s.io", "training.kubeflow.org", "volcano.sh")
_PARENTS_OF_NAME = 2  # mappings around the name of an object: metadata, and the object itself
_KEEP_FIX = "write manifest_name: keep in the profile, and the job keeps its name"
_MAX_SHOWN_WORDS = 4
_MAX_SHOWN_CHARS = 100  # of a word


class JobReference(NamedTuple):
    """A job as its manifest calls it.

    kind: of its object.
    name: in the manifest.
    roles: the names of its sets of pods, which are called <name>-<role>-<i>; "" if they are called <name>-<i>.
    has_service: its controller creates a headless Service of the job's name.
    config_map: the name of the ConfigMap that its controller creates for it; empty if it creates none.
    """

    kind: str
    name: str
    roles: tuple[str, ...]
    has_service: bool
    config_map: str = ""


class Renaming(NamedTuple):
    """What became of the references to a job.

    replaced: what was replaced, or added to a selector, as findings that are in order.
    doubts: what may refer to the job, and was not replaced.
    """

    replaced: tuple[Finding, ...]
    doubts: tuple[Finding, ...]


class _Text(NamedTuple):
    """A text in a manifest.

    keys: the path in its object, with `[i]` for an item of a list.
    parents: the mappings around it, the outermost first.
    previous: the text before it in its list, such as an option; empty if there is none.
    replace: sets another value.
    """

    location: str
    keys: tuple[str, ...]
    parents: tuple[Mapping[str, Any], ...]
    previous: str
    value: str
    replace: Callable[[str], None]

    @property
    def key(self) -> str:
        """The name of the last key that is not a position in a list."""
        return next(key for key in reversed(self.keys) if not key.startswith("["))

    @property
    def companion(self) -> tuple[str, str] | None:
        """The kind and the name of the innermost object around it that may belong to one job; None without one."""
        for parent in reversed(self.parents):
            kind = parent.get("kind")
            metadata = parent.get("metadata")
            name = metadata.get("name") if isinstance(metadata, Mapping) else None
            if kind in RENAMED_KINDS and isinstance(name, str):
                return kind, name
        return None

    @property
    def variable(self) -> str:
        """The environment variable of which it is the value, or may be, as an entry of a ConfigMap; else empty."""
        if self.keys[0] in _DATA_KEYS:
            return self.key
        name = self.parents[-1].get("name")
        return name if self.key == "value" and isinstance(name, str) else ""

    @property
    def prefix(self) -> str:
        """What a script has before such a value: `MASTER_ADDR=`, `--master_addr ` or `host: `; empty if unknown.

        It contains nothing that could be marked.
        """
        is_entry = self.keys[0] in _DATA_KEYS
        if self.variable and not is_entry:
            return re.sub(r"\W", "_", self.variable) + "="
        if self.keys[-1].startswith("["):
            is_option = re.fullmatch(r"--?[\w.-]+", self.previous)
            return "--" + re.sub(r"\W", "_", self.previous.lstrip("-")) + " " if is_option else ""
        # A pod's own host name is not that of a Service.
        return "" if self.key == "hostname" and not is_entry else re.sub(r"\W", "_", self.key) + ": "

    @property
    def where(self) -> str:
        return f"{self.location}, {'.'.join(self.keys).replace('.[', '[')}"


def rename_references(documents: Sequence[Manifest], jobs: Sequence[JobReference], new_name: str) -> Renaming:
    """Replace every reference to the jobs in the documents, in place. The jobs' own `metadata.name` is not changed.

    `new_name`: of the attempt's objects (Run.job). The pods of the jobs get the attempt's labels afterwards.
    """
    texts = [text for document in documents for text in _list_texts(document)]
    marker = _Marker(texts, jobs)
    replaced: list[Finding] = []
    doubts: list[Finding] = []
    renamed: list[_Text] = []  # the names of objects
    for text in texts:
        marked = marker.mark(text)
        if marked != text.value:
            replaced.append(Finding(text.where, marker.describe_changes(text.value, marked, new_name), verdict="ok"))
            text.replace(marker.finish(marked, new_name))
            if _get_object_kind(text):
                renamed.append(text)
        if not _is_opaque(text):
            doubts += _find_doubts(text, marked, jobs, new_name)
            doubts += marker.find_bare_services(text, marked, new_name)
        if marked == text.value and _get_referenced_kind(text) == "ConfigMap":
            doubts += _find_composed_name(text, jobs, new_name)
    for name in renamed:
        finding = _narrow_selector(name, documents, jobs, new_name)
        if finding:
            findings = doubts if finding.verdict == "warning" else replaced
            findings.append(finding)
    for document in documents:
        doubts += _find_kept_claims(document)
    return Renaming(tuple(replaced), tuple(dict.fromkeys(doubts)))


def _list_texts(document: Manifest) -> Iterator[_Text]:
    """Every text in a document, in its order."""
    return _walk(document, describe_object(document), (), ())


def _walk(node: Any, location: str, keys: tuple[str, ...], parents: tuple[Mapping[str, Any], ...]) -> Iterator[_Text]:
    if isinstance(node, dict):
        entries: list[tuple[Any, str]] = [(key, str(key)) for key in node]
        parents = (*parents, node)
    elif isinstance(node, list):
        entries = [(index, f"[{index}]") for index in range(len(node))]
    else:
        return
    for key, key_text in entries:
        child = node[key]
        if isinstance(child, str):
            previous = node[key - 1] if isinstance(node, list) and key else ""
            previous_text = previous if isinstance(previous, str) else ""
            replace = functools.partial(node.__setitem__, key)
            yield _Text(location, (*keys, key_text), parents, previous_text, child, replace)
        else:
            yield from _walk(child, location, (*keys, key_text), parents)


def _is_opaque(text: _Text) -> bool:
    """Whether a text names something else than a job, or is one of the user's own labels."""
    if text.keys[0] in _DATA_KEYS:
        return False
    is_name = text.key in _OPAQUE_KEYS or text.key.endswith(_NAME_SUFFIX)
    return is_name or any(key in _LABEL_KEYS for key in text.keys[:-1])


def _get_object_kind(text: _Text) -> Any:
    """The kind of the object whose name a text is; None if it is another text."""
    if text.keys[-2:] != ("metadata", "name") or len(text.parents) < _PARENTS_OF_NAME:
        return None
    return text.parents[-2].get("kind")


def _get_referenced_kind(text: _Text) -> str | None:
    """The kind of the object whose name a text is, by its key, as in a pod; None for another text."""
    if text.key == "name":
        parents = [key for key in text.keys[:-1] if not key.startswith("[")]
        return _REFERENCE_PARENTS.get(parents[-1]) if parents else None
    return _REFERENCE_KEYS.get(text.key)


class _Marker:
    """Marks what refers to the jobs in the texts of a manifest.

    Patterns are tried in order, each on what the earlier ones have left.
    """

    def __init__(self, texts: Sequence[_Text], jobs: Sequence[JobReference]) -> None:
        self._jobs = jobs
        # Of each object that gets another name: its marked name, by its kind and name.
        self._objects: dict[tuple[str, str], str] = {}
        for mark, job in self._list_marks():
            self._objects[job.kind, job.name] = mark
            if job.has_service:
                self._objects["Service", job.name] = mark
            if job.config_map:
                self._objects["ConfigMap", job.config_map] = job.config_map.replace(job.name, mark, 1)
        for text in texts:
            self._add_named_companion(text)
        self._prefix_variables = {name for text in texts for name in self._list_prefix_variables(text.value)}
        self._variables = {name for text in texts for name in self._list_name_variables(text.value)}
        self._subdomains = {
            text.value
            for text in texts
            if text.value and (text.key == "subdomain" or _get_object_kind(text) == "Service")
        }
        self._compile_rules()
        while self._add_referring_companions(texts):
            self._compile_rules()

    def _list_marks(self) -> Iterator[tuple[str, JobReference]]:
        return ((chr(index), job) for index, job in enumerate(self._jobs))

    def _compile_rules(self) -> None:
        self._rules = [
            *self._list_pod_rules(),
            *self._list_service_rules(),
            *self._list_label_rules(),
            *self._list_rendezvous_rules(),
        ]
        self._kubectl_rules = list(self._list_kubectl_rules())

    def _add_named_companion(self, text: _Text) -> None:
        """Note the new name of an object beside the job, if the text is its name and contains the job's.

        An object that a controller creates counts too.
        """
        if text.keys[-len(_JOBSET_SERVICE_KEYS) :] == _JOBSET_SERVICE_KEYS:
            kind = "Service"
        elif text.keys[-len(_CHANNEL_KEYS) :] == _CHANNEL_KEYS:
            kind = "ResourceClaimTemplate"
        else:
            kind = _get_object_kind(text)
        if kind == "Pod" and len(text.parents) > _PARENTS_OF_NAME:  # one of the job's pods, inside its main object
            mark, job = next(self._list_marks())
            self._objects["Pod", text.value] = f"{mark}-{text.value.removeprefix(f'{job.name}-')}"
            return
        if kind not in RENAMED_KINDS or (kind, text.value) in self._objects:
            return
        for mark, job in self._list_marks():
            marked, count = re.subn(rf"(?<![^-.]){re.escape(job.name)}(?![^-.])", mark, text.value)
            if count:
                self._objects[str(kind), text.value] = marked
                return

    def _add_referring_companions(self, texts: Sequence[_Text]) -> bool:
        """Note a new name for each companion that refers to a job or a renamed object; return whether there is another.

        With its old name the companion of one run would be used by the others, whose jobs and objects have other names.
        """
        object_count = len(self._objects)
        for text in texts:
            companion = text.companion
            if companion is None:
                continue
            is_channel = text.keys[-len(_CHANNEL_KEYS) :] == _CHANNEL_KEYS
            for mark, _ in self._list_marks():
                if mark in self.mark(text):
                    self._objects.setdefault(companion, f"{mark}-{companion[1]}")
                elif is_channel and mark in self._objects.get(companion, ""):
                    self._objects.setdefault(("ResourceClaimTemplate", text.value), f"{mark}-{text.value}")
        return len(self._objects) > object_count

    def _list_name_variables(self, value: str) -> Iterator[str]:
        """The variables from which a text builds the names or addresses of pods."""
        for job in self._jobs:
            name = re.escape(job.name)
            roles = _alternate(role for role in job.roles if role)
            starts = [rf"(?:{name}|{_VARIABLE})-(?:\d{{1,4}}|{_VARIABLE})", rf"[\w-]*{_HOST_VARIABLE}"]
            if roles:
                starts.append(rf"(?:{name}|{_VARIABLE})-(?:{roles})\b")
                yield from re.findall(rf"{_START}{_CAPTURED_VARIABLE}-(?:{roles})\b{_NO_FILE_AFTER}", value)
            if "" in job.roles:
                pod = rf"{_START}{_CAPTURED_VARIABLE}-(?:\d{{1,4}}|{_VARIABLE})"
                yield from re.findall(rf"{pod}(?:{_PORT}|{_FILE_NAME_END}\.(?=[a-z$]))", value)
            address = rf"(?:{_START}(?:{'|'.join(starts)}){_REST_OF_WORD}|`hostname[^`\n]*`)\."
            yield from re.findall(rf"{address}{_CAPTURED_VARIABLE}(?![\w(]){_FILE_NAME_END}", value)

    def _list_prefix_variables(self, value: str) -> Iterator[str]:
        """The variables with which the names of pods begin in a text: ${PREFIX}worker-0, ${PREFIX}$i.train."""
        ends = [rf"(?:\d{{1,4}}|{_VARIABLE})(?:{_PORT}|{_FILE_NAME_END}\.(?=[a-z$]))"]
        for job in self._jobs:
            ends += [rf"{re.escape(role)}-" for role in job.roles if role]
        for names in re.findall(rf"{_START}{_PREFIX_VARIABLE}(?:{'|'.join(ends)})", value):
            yield next(filter(None, names))

    # --- rules

    def _list_pod_rules(self) -> Iterator[tuple[re.Pattern[str], str]]:
        """Pods: train-worker-0, train-worker-$i, ${HOSTNAME#train-}, HOST_PREFIX=train-."""
        for mark, job in self._list_marks():
            name = re.escape(job.name)
            roles = _alternate(role for role in job.roles if role)
            if roles:
                role = rf"-(?:{roles})-(?![a-z]{{2}})"  # no pod is called train-worker-experiment
                yield re.compile(rf"{_START}{name}(?={role})"), mark
                yield re.compile(rf"({_SED_PATTERN}){name}(?={role})"), rf"\g<1>{mark}"
                yield re.compile(rf"(?<==)([\"']?){name}(?=-(?:{roles}){_VALUE_END})"), rf"\g<1>{mark}"
                start = rf"({_COMPARISON}|\.startswith\([\"'])"
                yield re.compile(rf"{start}{name}(?=-(?:{roles})[*\"'\s])"), rf"\g<1>{mark}"
                yield re.compile(rf"({_BRANCH}){name}(?=-(?:{roles}){_BRANCH_END})"), rf"\g<1>{mark}"
            if "" in job.roles:
                index = rf"-(?:\d{{1,4}}|{_VARIABLE})"
                yield re.compile(rf"{_START}{name}(?={index}(?:{_PORT}|{_FILE_NAME_END}\.[a-z$]))"), mark
                yield re.compile(rf"({_HOST_START}){name}(?={index}{_HOST_END})"), rf"\g<1>{mark}"
                yield re.compile(rf"({_COMPARISON}){name}(?=-\d{{1,4}}[*\"'\s-])"), rf"\g<1>{mark}"
                yield re.compile(rf"({_BRANCH}){name}(?=-\d{{1,4}}{_BRANCH_END})"), rf"\g<1>{mark}"
                # A file is called train-%d.tfrecord too: here only a Service shows that it is a pod.
                if self._subdomains:
                    subdomain = rf"\.(?:{_alternate(self._subdomains)}){_END}"
                    yield re.compile(rf"{_START}{name}(?=-{_COMPOSED_INDEX}{subdomain})"), mark
                yield re.compile(rf"({_HOST_START}){name}(?=-{_COMPOSED_INDEX}{_HOST_END})"), rf"\g<1>{mark}"
            yield re.compile(rf"(\$\{{(?:\w+##?|(?:HOSTNAME|POD_NAME)//?)){name}(?=-)"), rf"\g<1>{mark}"
            option = rf"(?<![\w-])--?[\w.-]*{_PREFIX_WORD}[\w.-]*\s+"
            names = "|".join([*sorted(self._prefix_variables), rf"\w{{0,40}}{_PREFIX_WORD}\w{{0,40}}"])
            variable = rf"\b(?:{names})[\"']?(?:\s*=\s*|\s*:\s+)"
            yield re.compile(rf"((?:{option}|{variable})[\"']?){name}(?=-{_VALUE_END})"), rf"\g<1>{mark}"

    def _list_service_rules(self) -> Iterator[tuple[re.Pattern[str], str]]:
        """Services, where the name is a host's: pod.train, $(hostname).train, train.ns.svc, train:29500, ping train."""
        marks = "".join(mark for mark, _ in self._list_marks())
        for (kind, service), marked in self._objects.items():
            if kind != "Service":
                continue
            name = re.escape(service)
            pod = rf"(?:[{marks}](?:{_COMPOSED_INDEX}|[^\s\"',:/.])*+|{_VARIABLE_WORD})"
            yield re.compile(rf"({pod}\.){name}(?![\w(-]){_FILE_NAME_END}"), rf"\g<1>{marked}"
            yield re.compile(rf"({_START}|(?<=[\w}})])\.){name}(?={_CLUSTER_DOMAIN})"), rf"\g<1>{marked}"
            yield re.compile(rf"{_START}{name}(?=(?:\.(?:[\w-]+|{_VARIABLE}))*{_PORT})"), marked
            yield re.compile(rf"({_HOST_START}){name}{_HOST_END}"), rf"\g<1>{marked}"

    def _list_label_rules(self) -> Iterator[tuple[re.Pattern[str], str]]:
        """Selectors: volcano.sh/job-name=train."""
        keys = _alternate(_JOB_NAME_KEYS)
        for mark, job in self._list_marks():
            roles = _alternate(role for role in job.roles if role)
            end = rf"(?=-(?:{roles})\b|{_END})" if roles else _END
            pattern = rf"(?<![\w-])((?:{keys})[\"']?\s*(?:==?|:|in \()\s*[\"']?){re.escape(job.name)}{end}"
            yield re.compile(pattern), rf"\g<1>{mark}"

    def _list_rendezvous_rules(self) -> Iterator[tuple[re.Pattern[str], str]]:
        """Rendezvous ids, by which attempts differ in a shared store: --rdzv-id=train, RDZV_ID=train, rdzvId."""
        for mark, job in self._list_marks():
            pattern = rf"((?i:rdzv[_-]?id)[\"']?(?:\s*[=:]\s*|\s+)[\"']?){re.escape(job.name)}{_END}"
            yield re.compile(pattern), rf"\g<1>{mark}"

    def _list_kubectl_rules(self) -> Iterator[tuple[re.Pattern[str], str]]:
        """Arguments of kubectl: vcjob/train, configmap train-hosts, job -n ml train, pod/train-worker-0."""
        for (kind, name), marked in self._objects.items():
            short = {"ConfigMap": "|cm", "Service": "|svc", "Job": "|vcjob"}.get(kind, "")
            before = rf"(?:{kind.lower()}{short})s?(?:\.[\w.]+)?(?:/|(?:{_KUBECTL_OPTION}){{0,4}}\s+)"
            pattern = rf"\b({before}){re.escape(name)}{_END}"
            yield re.compile(pattern, re.IGNORECASE), rf"\g<1>{marked}"
        for mark, job in self._list_marks():
            roles = _alternate(role for role in job.roles if role)
            if roles:
                yield re.compile(rf"(\bpods?/){re.escape(job.name)}(?=-(?:{roles})-)"), rf"\g<1>{mark}"

    # --- one text

    def mark(self, text: _Text) -> str:
        """The text, marked."""
        marked_name = self._mark_name(text)
        if marked_name is not None:
            return marked_name
        if _is_opaque(text):
            return text.value
        if text.variable in self._variables:
            marked_value = self._list_address_parts().get(text.value)
            if marked_value is not None:
                return marked_value
        return self._mark_script(text.prefix + text.value).removeprefix(text.prefix)

    def _mark_name(self, text: _Text) -> str | None:
        """The marked name of an object, if the text is one; None if it is another text."""
        parent = text.parents[-1]
        kind: Any = _get_object_kind(text)
        if kind is not None:
            is_job = any(job.kind == kind and job.name == text.value for job in self._jobs)
            return None if is_job else self._objects.get((kind, text.value))
        if text.key in _JOB_NAME_KEYS or (text.key == "values" and parent.get("key") in _JOB_NAME_KEYS):
            return self._mark_job_name(text.value)
        if text.key == "resourceNames":  # of a Role
            return self._mark_resource(text.value, parent.get("resources"))
        kind = _get_referenced_kind(text)
        is_label = len(text.keys) > 1 and text.keys[-2] in ("labels", "annotations")
        if is_label and "group" in text.key:  # each scheduler has its own key for the PodGroup of a pod
            kind = "PodGroup"
        elif kind is None and text.key == "name":
            kind = parent.get("kind")
        return self._objects.get((kind, text.value)) if isinstance(kind, str) else None

    def _mark_resource(self, name: str, resources: Any) -> str | None:
        """The marked name of an object of one of these resources, such as configmaps; None if it keeps its name."""
        for (kind, old_name), marked in self._objects.items():
            if old_name == name and isinstance(resources, list) and plural_kind(kind) in resources:
                return marked
        return None

    def _mark_job_name(self, value: str) -> str | None:
        """The value of a label: the job's name, or that of a Job in a JobSet; None if it names another job."""
        for mark, job in self._list_marks():
            roles = _alternate(role for role in job.roles if role)
            suffix = rf"(-(?:{roles})(?:-\d+)?)?" if roles else "()"
            match = re.fullmatch(rf"{re.escape(job.name)}{suffix}", value)
            if match:
                return f"{mark}{match[1] or ''}"
        return self._objects.get(("PodGroup", value))

    def _mark_script(self, value: str) -> str:
        """A script, an argument, or the content of a file."""
        rules = self._rules + self._kubectl_rules if _KUBECTL_PATTERN.search(value) else self._rules
        for pattern, marked in rules:
            value = pattern.sub(marked, value)
        for name, marked in self._list_address_parts().items():
            for variable in self._variables:
                assignment = rf"(\b{variable}=[\"']?){re.escape(name)}{_VALUE_END}"
                value = re.sub(assignment, rf"\g<1>{marked}", value)
        return value

    def _list_address_parts(self) -> dict[str, str]:
        """The marked names of which the addresses of pods consist: those of the jobs, and of Services."""
        services = {name: marked for (kind, name), marked in self._objects.items() if kind == "Service"}
        return services | {job.name: mark for mark, job in self._list_marks()}

    # --- the result

    def finish(self, marked: str, new_name: str) -> str:
        """The text with the new name."""
        for mark, _ in self._list_marks():
            marked = marked.replace(mark, new_name)
        return marked

    def find_bare_services(self, text: _Text, marked: str, new_name: str) -> Iterator[Finding]:
        """The name of a Service in a text, where it may be its host and was not marked.

        As the value of an option, a variable or a key that is not a host's, the job's name names something else.
        """
        job_names = [job.name for job in self._jobs]
        script = text.prefix + marked
        for (kind, service), marked_service in self._objects.items():
            if kind != "Service" or "-" not in service:  # a word, such as train, may mean anything
                continue
            for match in re.finditer(rf"{_START}{re.escape(service)}(?![\w/-]){_FILE_NAME_END}", script):
                text_before = script[max(match.start() - _MAX_PURPOSE_CHARS, 0) : match.start()]
                purpose = _PURPOSE_PATTERN.search(text_before)
                if purpose and service in job_names and not re.search(rf"{_POSSIBLE_HOST_WORD}\W*$", purpose[0]):
                    continue
                new_service = self.finish(marked_service, new_name)
                problem = f"a run gives the Service {service} the name {new_service}: `{service}` stays as it is"
                fix = f"if it means the Service, write {service}.NAMESPACE.svc, or {_KEEP_FIX}"
                yield Finding(text.where, problem, fix, "warning")
                break

    def describe_changes(self, value: str, marked: str, new_name: str) -> str:
        """`train-worker-0 becomes run-worker-0` for each word that changes; of many words the first."""
        if re.fullmatch(r"[\w.-]+", value):
            return f"{value} becomes {self.finish(marked, new_name)}"
        marks = "".join(mark for mark, _ in self._list_marks())
        changes: dict[str, str] = {}
        for word in re.findall(rf"[^\s\"'=,;]*[{marks}][^\s\"',;]*", marked):
            before = word
            for (_, name), marked_name in sorted(self._objects.items(), key=lambda item: -len(item[1])):
                before = before.replace(marked_name, name)
            for mark, job in self._list_marks():
                before = before.replace(mark, job.name)
            changes[before[:_MAX_SHOWN_CHARS]] = self.finish(word, new_name)[:_MAX_SHOWN_CHARS]
        shown = [f"{before} becomes {after}" for before, after in list(changes.items())[:_MAX_SHOWN_WORDS]]
        hidden_count = len(changes) - len(shown)
        if hidden_count:
            shown.append(f"and {hidden_count} more")
        return ", ".join(shown)


def _alternate(words: Any) -> str:
    """A pattern for one of these words, the longest first; empty without a word."""
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


def _find_composed_name(text: _Text, jobs: Sequence[JobReference], new_name: str) -> Iterator[Finding]:
    """A ConfigMap that the manifest does not create, and whose name a controller may compose from the job's."""
    for job in jobs:
        if text.value.endswith(f"-{job.name}"):
            problem = f"a run gives the job the name {new_name}: the ConfigMap {text.value} stays as it is"
            fix = f"if a controller creates it for the job, {_KEEP_FIX}, or add the ConfigMap to the manifest"
            yield Finding(text.where, problem, fix, "warning")


def _find_doubts(text: _Text, marked: str, jobs: Sequence[JobReference], new_name: str) -> Iterator[Finding]:
    """What may refer to a job in a text, and was not marked."""
    if text.keys[-len(_JOBSET_SERVICE_KEYS) :] == _JOBSET_SERVICE_KEYS and marked == text.value:
        problem = (
            f"JobSet does not create the Service {marked} while another one has it: no pod of this one resolves then"
        )
        fix = f"write a name that contains the JobSet's, which each run replaces, or {_KEEP_FIX}"
        yield Finding(text.where, problem, fix, "warning")
    name = text.parents[-1].get("name") if text.key == "value" else text.key
    for job in jobs:
        if marked == job.name and isinstance(name, str) and _JOB_NAME_VARIABLE_PATTERN.search(name):
            problem = f"a run gives the job the name {new_name}: `{job.name}` stays as it is"
            yield Finding(
                text.where, problem, f"if a program looks for the job or its pods by it, {_KEEP_FIX}", "warning"
            )
        has_other_parts = job.name.count("-") != new_name.count("-")
        fields = (match for match in _FIELD_PATTERN.finditer(marked) if not match["reversed"])
        field = next(fields, None)
        if has_other_parts and field and _HOST_NAME_PATTERN.search(marked):
            problem = (
                f"`{field[0]}` takes a part of the pod's name by its number from the start, and a run's job has a "
                f"name with other parts: {new_name}"
            )
            yield Finding(
                text.where, problem, f"count from the end, as ${{HOSTNAME##*-}} does, or {_KEEP_FIX}", "warning"
            )
        characters = _CHARACTERS_PATTERN.search(marked)
        if characters:
            problem = (
                f"`{characters[0][:_MAX_SHOWN_CHARS]}` takes characters of the pod's name by their number from the "
                f"start, and a run's job has a name of another length: {new_name}"
            )
            yield Finding(
                text.where, problem, f"count from the end, as ${{HOSTNAME##*-}} does, or {_KEEP_FIX}", "warning"
            )
        pod = re.search(rf"{_START}{re.escape(job.name)}-[a-z][a-z0-9]*-(?:\d|\$)[^\s\"':,]*", marked)
        if pod:
            problem = f"a run gives the job the name {new_name}: `{pod[0][:_MAX_SHOWN_CHARS]}` stays as it is"
            yield Finding(text.where, problem, f"if it means a pod of the job, {_KEEP_FIX}", "warning")
        start = rf"{re.escape(job.name)}-"
        # X=train-, or a part of a longer text: 'train-' + str(i) + '.hosts'
        prefix = re.search(rf"(?:^|=)[\"']?{start}{_VALUE_END}|[\"']{start}[\"']\s*\+", marked)
        if prefix:
            problem = f"a run gives the job the name {new_name}: `{job.name}-` stays as it is"
            yield Finding(text.where, problem, f"if names of its pods begin with it, {_KEEP_FIX}", "warning")


def _narrow_selector(
    name: _Text, documents: Sequence[Manifest], jobs: Sequence[JobReference], new_name: str
) -> Finding | None:
    """Let a renamed companion select this run's pods only, if it selects the job's by labels that all runs have.

    `name`: of the companion. The finding is a doubt if the companion selects other pods of the manifest too, which do
    not have the run's labels; None if nothing else selects what it selects.
    """
    companion = name.parents[-2]
    keys = _SELECTOR_KEYS.get(companion["kind"])
    selector = get_mapping(companion, *keys) if keys else {}
    if not keys or not isinstance(selector, dict) or not selector or any(key in _JOB_NAME_KEYS for key in selector):
        return None
    own_labels = {
        key: value for key, value in selector.items() if str(key).partition("/")[0] not in _CONTROLLER_DOMAINS
    }
    are_jobs: set[bool] = set()
    for document in documents:
        for labels in _list_pod_labels(document):
            if own_labels.items() <= labels.items():
                are_jobs.add(_contains_job(document, jobs))
    if True not in are_jobs:
        return None
    location = f"{name.location}, {'.'.join((*name.keys[:-2], *keys)).replace('.[', '[')}"
    if False in are_jobs:
        problem = "it selects pods of the job by labels that the pods of other runs have too, and pods of no run"
        fix = f"select the job's pods by a label of its controller, such as {_JOB_NAME_KEYS[2]}, or {_KEEP_FIX}"
        return Finding(location, problem, fix, "warning")
    run_labels = parse_attempt_labels(new_name)
    selector.update(run_labels)
    text = ", ".join(f"{key}: {value}" for key, value in run_labels.items())
    return Finding(location, f"it selects only this run's pods, by {text}", verdict="ok")


def _contains_job(document: Manifest, jobs: Sequence[JobReference]) -> bool:
    """Whether a document is the main object of the jobs, which may wrap another one."""
    return any(document.get("kind") == job.kind and get_name(document) == job.name for job in jobs)


def _list_pod_labels(node: Any) -> Iterator[Mapping[str, Any]]:
    """The labels of each pod, or template of pods, in a part of a manifest."""
    if isinstance(node, dict):
        if get_mappings(node, "spec", "containers"):
            yield get_mapping(node, "metadata", "labels")
        for child in node.values():
            yield from _list_pod_labels(child)
    elif isinstance(node, list):
        for child in node:
            yield from _list_pod_labels(child)


def _find_kept_claims(document: Manifest) -> Iterator[Finding]:
    """Claims that outlive a JobSet, and that its controller names after it."""
    spec = document.get("spec")
    policies = spec.get("volumeClaimPolicies") if isinstance(spec, Mapping) else None
    for index, policy in enumerate(policies if isinstance(policies, list) else []):
        retention = policy.get("retentionPolicy") if isinstance(policy, Mapping) else None
        if isinstance(retention, Mapping) and retention.get("whenDeleted") == "Retain":
            where = f"{describe_object(document)}, spec.volumeClaimPolicies[{index}].retentionPolicy"
            problem = "the claims are named after the JobSet: each run gets new ones, which are empty and stay"
            yield Finding(where, problem, f"mount a claim of your own, or {_KEEP_FIX}", "warning")
