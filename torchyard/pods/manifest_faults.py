"""Why the job of a user's manifest cannot be launched: each finding names the key, and what is valid there."""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchyard.diagnosis import pod_facts
from torchyard.lint.fields import find_refused_fields, find_refused_types
from torchyard.lint.manifest import merge_repetitions
from torchyard.lint.workload import (
    Workload,
    WorkloadKind,
    find_workload_kind,
    has_pod_template,
    list_workloads,
    list_wrapped_objects,
    yaml_value,
)
from torchyard.model.base import is_quantity
from torchyard.model.finding import Finding, warning_check
from torchyard.pods.job_kind import JobKind, PodSet, describe_object, get_name
from torchyard.pods.manifest_pods import LocatedPods, list_capacities, locate_pods
from torchyard.pods.volumes import Manifest

_MAX_PODS = 10_000  # as of `nodes`: a plan has an entry for each
_MIN_SIMILARITY = 0.85  # of two kinds, one of which is a misspelling of the other: Jobs, PytorchJob
_MAX_HOST_NAME_CHARS = 63  # characters of a host name
_MAX_FULL_NAME_CHARS = 64  # characters of the name that a kubelet gives to the kernel
_CLUSTER_DOMAIN = "svc.cluster.local"  # of most clusters
_OTHER_CLUSTER = "kueue.x-k8s.io/multikueue"
_COUNT_KEYS = ("replicas", "parallelism", "completions", "minAvailable", "minReplicas", "maxReplicas", "backoffLimit")
_REFERENCE_KEYS = (
    "name",
    "claimName",
    "secretName",
    "serviceAccountName",
    "priorityClassName",
    "runtimeClassName",
    "storageClassName",
    "bucketName",
)
_VARIABLE_NAME = re.compile(r"\.env\[\d+\]\.name$")  # may have any shape: TRAINER__OPTIM__LR
_TEXTS_KEYS = ("labels", "annotations", "matchLabels", "nodeSelector")  # mappings of texts, whose keys are the user's
_PLACEHOLDER_PATTERN = re.compile(r"\$\{?\w+\}?|\{\{.*?\}\}|<[\w .-]+>|__\w+__")
_RENDER_FIX = "fill it in first (envsubst, or helm template), and name the result"
_SUPPORTED = (
    "PyTorchJob of kubeflow.org/v1, Job of batch.volcano.sh/v1alpha1, JobSet of jobset.x-k8s.io/v1alpha2, "
    "AppWrapper of workload.codeflare.dev, and Job of batch/v1"
)
_SHARED_KIND = "Job"  # of Kubernetes, of Volcano, and of other schedulers
# By the launcher: the API of its jobs.
_SUPPORTED_APIS: dict[WorkloadKind, str] = {
    "pytorchjob": "kubeflow.org/v1",
    "volcano": "batch.volcano.sh/v1alpha1",
    "jobset": "jobset.x-k8s.io/v1alpha2",
    "job": "batch/v1",
}
# By the kind of workload: the key of its spec that describes its pods.
_PODS_KEYS: dict[WorkloadKind, str] = {
    "volcano": "tasks",
    "pytorchjob": "pytorchReplicaSpecs",
    "jobset": "replicatedJobs",
}


def find_main_faults(documents: Sequence[Manifest], job_kind: JobKind) -> list[Finding]:
    """Why the documents do not hold exactly one job of this kind; empty if they do."""
    jobs = [document for document in documents if is_main_job(document, job_kind)]
    if len(jobs) == 1:
        return []
    if jobs:
        names = ", ".join(get_name(job) or "?" for job in jobs)
        problem = (
            f"the manifest holds {len(jobs)} of kind {job_kind.kind} ({names}), and a run has one job: write a profile "
            "for each, or one job with several sets of pods (a JobSet, tasks of Volcano) if they train together"
        )
        return [Finding(describe_object(jobs[1]), problem)]
    for document in documents:
        fault = _find_other_api(document, job_kind)
        if fault:
            return [fault]
    reasons = [reason for document in documents if (reason := _explain_other_kind(document))]
    found = "; ".join(reasons)
    if not reasons or (len(documents) > 1 and not any(map(_find_launcher, documents))):
        kinds = ", ".join(f"{document.get('kind')} ({document.get('apiVersion')})" for document in documents)
        found = f"it has: {kinds}; supported are {_SUPPORTED}"
    return [Finding("manifest", f"holds no {job_kind.kind} of {job_kind.api}, which this launcher runs: {found}")]


def _find_other_api(document: Manifest, job_kind: JobKind) -> Finding | None:
    """The finding for a document of this launcher's kind in another version or group, or in another spelling.

    None if it is something else. A Job of another group is a job of another launcher.
    """
    api, kind = document.get("apiVersion"), str(document.get("kind"))
    if kind != job_kind.kind:
        is_similar = difflib.SequenceMatcher(None, kind.lower(), job_kind.kind.lower()).ratio() >= _MIN_SIMILARITY
        if is_similar and api == job_kind.api:
            return Finding(f"{describe_object(document)}, kind", f"{api} has no kind {kind}", f"write {job_kind.kind}")
        return None
    location = f"{describe_object(document)}, apiVersion"
    if str(api).rpartition("/")[0] == job_kind.api.rpartition("/")[0]:
        problem = f"the {kind} is of {api}, a version that is not supported"
        return Finding(location, problem, f"rewrite it for {job_kind.api}")
    if find_workload_kind(document) or kind == _SHARED_KIND:
        return None
    return Finding(location, f"no {kind} is of {api}", f"write {job_kind.api}")


def _find_launcher(document: Manifest) -> WorkloadKind | None:
    """The launcher that runs a document, in this version or another one; None if none does."""
    workload_kind = find_workload_kind(document)
    return workload_kind if workload_kind in _SUPPORTED_APIS else None


def _explain_other_kind(document: Manifest) -> str:
    """Why a document is not the job of a launcher; empty if it is not a job at all."""
    api, kind = document.get("apiVersion"), document.get("kind")
    if find_workload_kind(document) == "pod":
        return ""
    launcher = _find_launcher(document)
    if launcher:
        supported_api = _SUPPORTED_APIS[launcher]
        problem = f"the {kind} of {api} is of another launcher: write launcher: {launcher}"
        return problem if api == supported_api else f"{problem}, and rewrite it for {supported_api}"
    if has_pod_template(document):
        return f"the {kind} of {api} is not supported; supported are {_SUPPORTED}"
    return ""


def is_main_job(document: Manifest, job_kind: JobKind) -> bool:
    return document.get("kind") == job_kind.kind and document.get("apiVersion") == job_kind.api


def find_kept_name_faults(main: Manifest, job_kind: JobKind) -> list[Finding]:
    """Why a job cannot keep its name; empty if it can."""
    if not get_name(main):
        return [Finding("manifest_name", "the job has no name to keep: write metadata.name, or manifest_name: run")]
    try:
        inner_name = get_name(job_kind.find_job(main))
    except (KeyError, IndexError, TypeError, AttributeError):
        return []  # another finding reports it
    if inner_name != get_name(main):
        problem = f"the {main['kind']} is called {get_name(main)}, and the job in it {inner_name or 'nothing'}"
        return [Finding("manifest_name", problem, "give both one name, or write manifest_name: run")]
    return []


def find_metadata_faults(documents: Sequence[Manifest], job_kind: JobKind) -> list[Finding]:
    """Objects without metadata or, beside the job, without a name; names that are not filled in, also in a wrapper."""
    findings: list[Finding] = []
    for document in documents:
        if not isinstance(document.get("metadata"), dict):
            findings.append(Finding(describe_object(document), "it has no metadata: write a mapping with its name"))
        elif not is_main_job(document, job_kind) and not get_name(document):
            findings.append(Finding(describe_object(document), "it has no name: write metadata.name"))
        findings += _find_name_placeholders(document, describe_object(document))
        for obj in list_wrapped_objects(document):
            findings += _find_name_placeholders(obj, f"{describe_object(document)}, {describe_object(dict(obj))}")
    return findings


def _find_name_placeholders(obj: Mapping[str, Any], location: str) -> Iterator[Finding]:
    """Placeholders in the name and the namespace of an object. `location`: of the object."""
    for key in ("name", "namespace"):
        value = pod_facts.to_text(pod_facts.get_mapping(obj, "metadata").get(key))
        placeholder = _find_placeholder(f"{location}, metadata.{key}", value)
        if placeholder:
            yield placeholder


def find_job_faults(main: Manifest, job_name: str, job_kind: JobKind) -> list[Finding]:
    """Why the job cannot be launched as it is; empty if it can. `job_name`: the one that it will have."""
    location = describe_object(main)
    spec = main.get("spec")
    value_faults = (
        *_find_count_faults(spec, "spec"),
        *_find_amount_faults(spec, "spec"),
        *_find_reference_placeholders(spec, "spec"),
        *_find_other_cluster(spec),
    )
    findings = list(merge_repetitions((location, finding) for finding in value_faults))
    if findings:
        return findings
    findings = job_kind.list_faults(main)
    if findings:
        return findings
    try:
        job = job_kind.find_job(main)
        located_pods = locate_pods(main, job_kind)
        list_capacities(job, located_pods, job_kind)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):  # some part has another shape
        return list(_explain_shape(main)) or [Finding(location, "it has no pods that could be read")]
    pod_sets = [pods.pod_set for pods in located_pods]
    pod_count = sum(pod_set.pod_count for pod_set in pod_sets)
    if not pod_count:
        return list(_explain_shape(main)) or [Finding(location, "it has no pods: all of its replicas are 0")]
    if pod_count > _MAX_PODS:
        return [Finding(location, f"it has {pod_count} pods: at most {_MAX_PODS} are supported")]
    return [finding for pod_set in pod_sets for finding in _find_long_names(pod_set, job_name, job_kind)]


def _find_count_faults(node: Any, key_path: str) -> Iterator[Finding]:
    """Numbers of pods that are texts, negative or fractions: Kubernetes takes whole numbers of at least 0."""
    for path, key, value in _walk(node, key_path):
        if key not in _COUNT_KEYS:
            continue
        if isinstance(value, str):
            fix = f"write {value}" if value.isdecimal() else "write a number"
            yield _find_placeholder(path, value) or Finding(path, f"`{value}` is a text, not a number", fix)
        elif isinstance(value, bool | float) or (isinstance(value, int) and value < 0):
            yield Finding(path, f"`{json.dumps(value)}` is not a whole number of at least 0", "write a number")


def _find_amount_faults(node: Any, key_path: str) -> Iterator[Finding]:
    """Amounts of resources that are empty, placeholders, or not amounts."""
    for path, key, value in _walk(node, key_path):
        if key not in ("limits", "requests") or not isinstance(value, dict):
            continue
        for name, amount in value.items():
            amount_path = f"{path}.{name}"
            if amount is None:
                yield Finding(amount_path, "it is empty", "write an amount, or remove the key")
            elif isinstance(amount, str):
                placeholder = _find_placeholder(amount_path, amount)
                if placeholder:
                    yield placeholder
                elif not is_quantity(amount):
                    yield Finding(amount_path, f"`{amount}` is not an amount of Kubernetes", "write 64, 500m or 512Gi")


def _find_reference_placeholders(node: Any, key_path: str) -> Iterator[Finding]:
    """Names of other objects that are placeholders. A shell fills in those of commands, which have no such keys."""
    for path, key, value in _walk(node, key_path):
        if key in _REFERENCE_KEYS and isinstance(value, str) and not _VARIABLE_NAME.search(path):
            placeholder = _find_placeholder(path, value)
            if placeholder:
                yield placeholder


def _walk(node: Any, key_path: str) -> Iterator[tuple[str, str, Any]]:
    """Every value of a mapping at any depth, with its path and its key; without what is in labels and annotations."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield f"{key_path}.{key}", str(key), value
            if key not in _TEXTS_KEYS:
                yield from _walk(value, f"{key_path}.{key}")
    elif isinstance(node, list):
        for index, item in enumerate(node):
            yield from _walk(item, f"{key_path}[{index}]")


def _find_placeholder(path: str, text: str) -> Finding | None:
    """A finding if a text is one of a template that was not filled in; else None."""
    placeholder = _PLACEHOLDER_PATTERN.search(text)
    if not placeholder:
        return None
    return Finding(path, f"`{text}` contains {placeholder[0]}, a placeholder that is not filled in", _RENDER_FIX)


def _explain_shape(main: Manifest) -> Iterator[Finding]:
    """What prevents the pods of a job from being read: keys that are wrong where they are, or else what is missing."""
    misplaced_keys = list(_list_misplaced_keys(main))
    if misplaced_keys:
        yield from misplaced_keys
        return
    for workload in list_workloads(main):
        yield from _list_missing_parts(workload)
    if main["kind"] == "AppWrapper" and not any(list_wrapped_objects(main)):
        yield Finding(describe_object(main), "it has no component with a template")


def _list_misplaced_keys(main: Manifest) -> Iterator[Finding]:
    """Keys that belong elsewhere, or have another spelling or type."""
    for workload in list_workloads(main):
        for finding in (*find_refused_fields(workload), *find_refused_types(workload)):
            yield replace(finding, where=f"{workload.location}, {finding.where}")


def _list_missing_parts(workload: Workload) -> Iterator[Finding]:
    """What a job lacks of its pods."""
    spec = workload.root.get("spec")
    if not isinstance(spec, Mapping):
        keys = ", whose keys do not begin with `-`" if isinstance(spec, list) else ""
        problem = "it is missing" if spec is None else f"it must be a mapping{keys}"
        yield Finding(f"{workload.location}, spec", problem, "describe the job there")
        return
    pods_key = _PODS_KEYS.get(workload.kind)
    if not workload.groups and pods_key:
        problem = "it has no entry that describes pods" if yaml_value(workload.spec, pods_key) else "it is missing"
        yield Finding(f"{workload.location}, spec.{pods_key}", problem, "describe the pods of the job there")
    for group in workload.groups:
        if not group.pod:
            yield Finding(f"{workload.location}, {group.key_path}", "it has no pod template (template.spec)")
        elif not group.containers:
            yield Finding(f"{workload.location}, {group.pod_path}.containers", "there is no container")
        for container in group.containers:
            if not isinstance(container.spec.get("name"), str):
                yield Finding(f"{workload.location}, {container.key_path}.name", "the container has no name")
        if group.spec.get("replicas", 1) is None:
            problem = "it is empty, and then there is no pod" if workload.kind == "volcano" else "it is empty"
            yield Finding(f"{workload.location}, {group.key_path}.replicas", problem, "write a number")


def find_long_host_names(
    job: Manifest, located_pods: Sequence[LocatedPods], job_kind: JobKind, namespace: str
) -> list[Finding]:
    """Pods whose full name becomes their host name and is too long for that, so that no kubelet starts them.

    job: as it is created, with its final name.
    namespace: the one that the pods are created in, as far as it is known.
    """
    findings: list[Finding] = []
    for pods in located_pods:
        spec = pods.pod_set.template["spec"]
        subdomain = pod_facts.to_text(spec.get("subdomain"))
        if job_kind.has_service:  # the controller sets the subdomain
            subdomain = pod_facts.to_text(pod_facts.get_mapping(job, "spec", "network").get("subdomain")) or get_name(
                job
            )
        if spec.get("setHostnameAsFQDN") is not True or not subdomain:
            continue
        host = next(reversed(pods.pod_set.name_pods(get_name(job)).values()), "")
        full_name = f"{host}.{subdomain}.{namespace}.{_CLUSTER_DOMAIN}"
        if len(full_name) > _MAX_FULL_NAME_CHARS:
            problem = (
                f"the full name {full_name} has {len(full_name)} characters, and a kubelet starts no pod with more "
                f"than {_MAX_FULL_NAME_CHARS}"
            )
            fix = "remove it, shorten the profile's name, or write manifest_name: keep in the profile"
            findings.append(warning_check(f"{pods.location}.setHostnameAsFQDN", problem, fix))
    return findings


def find_long_companion_names(companions: Sequence[Manifest]) -> list[Finding]:
    """Services whose name, as it is after the job was renamed, is longer than a host name may be."""
    findings: list[Finding] = []
    for companion in companions:
        name = get_name(companion)
        if companion.get("kind") == "Service" and len(name) > _MAX_HOST_NAME_CHARS:
            excess = len(name) - _MAX_HOST_NAME_CHARS
            problem = f"the Service {name} has a name of {len(name)} characters, and at most {_MAX_HOST_NAME_CHARS}"
            findings.append(Finding("name", f"{problem} are allowed", f"shorten the profile's name by {excess}"))
    return findings


def _find_other_cluster(spec: Any) -> Iterator[Finding]:
    """A job that Kueue sends to another cluster: its pods are there, and not where this run looks for them."""
    for keys in (("managedBy",), ("runPolicy", "managedBy")):
        if yaml_value(spec, *keys) == _OTHER_CLUSTER:
            problem = f"{_OTHER_CLUSTER} creates the pods in another cluster, where a run cannot follow them"
            fix = "remove it, and name that cluster in the profile (cluster.context)"
            yield Finding(f"spec.{'.'.join(keys)}", problem, fix)


def _find_long_names(pod_set: PodSet, job_name: str, job_kind: JobKind) -> Iterator[Finding]:
    """The last pod of a set, which has the longest name, if Kubernetes would refuse that name."""
    name = next(reversed(pod_set.name_pods(job_name).values()), "")
    if job_kind.has_random_suffix and name:
        name += "-xxxxx"
    if len(name) > _MAX_HOST_NAME_CHARS:
        excess = len(name) - _MAX_HOST_NAME_CHARS
        problem = f"the pod {name} has a name of {len(name)} characters, and at most {_MAX_HOST_NAME_CHARS} are allowed"
        yield Finding("name", problem, f"shorten the profile's name by {excess}, or that of the role")
