"""Fields that the API server refuses: those of another part of the object, misspelled ones, numbers without quotes.

torchyard and kubectl create objects with strict field validation. The fields are those of Kubernetes 1.34, Volcano
1.14, training-operator 1.9 and JobSet 0.10. A field that is in none of them may belong to a newer release and is not
reported; only training-operator has no newer one.
"""

import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from torchyard.lint.workload import (
    APPWRAPPER_KIND,
    ReplicaGroup,
    Workload,
    WorkloadKind,
    YamlNode,
    list_wrapped_objects,
    yaml_entries,
    yaml_list,
    yaml_mapping,
    yaml_text,
    yaml_value,
)
from torchyard.model.finding import Finding

_JOB_FIELDS = (
    "activeDeadlineSeconds backoffLimit backoffLimitPerIndex completionMode completions managedBy manualSelector "
    "maxFailedIndexes parallelism podFailurePolicy podReplacementPolicy selector successPolicy suspend template "
    "ttlSecondsAfterFinished"
)
_SPEC_FIELDS: dict[WorkloadKind, str] = {
    "volcano": "maxRetry minAvailable minSuccess networkTopology plugins policies priorityClassName queue "
    "runningEstimate schedulerName tasks ttlSecondsAfterFinished volumes",
    "pytorchjob": "elasticPolicy nprocPerNode pytorchReplicaSpecs runPolicy",
    "jobset": "coordinator failurePolicy managedBy network replicatedJobs startupPolicy successPolicy suspend "
    "ttlSecondsAfterFinished",
}
_POLICY_FIELDS = {  # of a PyTorchJob
    "runPolicy": "activeDeadlineSeconds backoffLimit cleanPodPolicy managedBy schedulingPolicy suspend "
    "ttlSecondsAfterFinished",
    "elasticPolicy": "maxReplicas maxRestarts metrics minReplicas nProcPerNode rdzvBackend rdzvConf rdzvHost rdzvId "
    "rdzvPort standalone",
}
_JOB_POLICY_FIELDS = "action event events exitCode timeout"  # of a Volcano Job and its tasks
_REPLICATED_JOB_FIELDS = "dependsOn groupName name replicas template"
_GROUP_FIELDS: dict[WorkloadKind, str] = {
    "volcano": "dependsOn maxRetry minAvailable name partitionPolicy policies replicas template topologyPolicy",
    "pytorchjob": "replicas restartPolicy template",
    "job": _JOB_FIELDS,
    "jobset": _JOB_FIELDS,
}
_ROOT_FIELDS = "apiVersion kind metadata spec status"
_TEMPLATE_FIELDS = "metadata spec"
_METADATA_FIELDS = "annotations finalizers labels name namespace"
_POD_FIELDS = (
    "activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy enableServiceLinks "
    "ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride imagePullSecrets "
    "initContainers nodeName nodeSelector os overhead preemptionPolicy priority priorityClassName readinessGates "
    "resourceClaims resources restartPolicy runtimeClassName schedulerName schedulingGates securityContext "
    "serviceAccount serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain terminationGracePeriodSeconds "
    "tolerations topologySpreadConstraints volumes"
)
_CONTAINER_FIELDS = (
    "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy "
    "resources restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce terminationMessagePath "
    "terminationMessagePolicy tty volumeDevices volumeMounts workingDir"
)
_POD_LISTS = (
    "containers imagePullSecrets initContainers resourceClaims schedulingGates tolerations topologySpreadConstraints "
    "volumes"
)
_POD_MAPPINGS = "affinity dnsConfig nodeSelector securityContext"
_ARGV_KEYS = ("command", "args")
_CONTAINER_LISTS = "command args env envFrom ports volumeDevices volumeMounts"
_CONTAINER_MAPPINGS = "lifecycle resources securityContext"
_REFUSED = "the API server refuses the object"
_MIN_SIMILARITY = 0.9  # of two names, one of which is a misspelling of the other


class _Section(NamedTuple):
    """A mapping in an object, which may be missing there (empty), and the names of its fields.

    key_path: empty for the object itself.
    has_all_fields: no newer release has others.
    """

    key_path: str
    fields: str
    node: YamlNode
    has_all_fields: bool = False

    def locate(self, field: str) -> str:
        """The path of a field in this section."""
        return f"{self.key_path}.{field}".removeprefix(".")


def find_refused_fields(job: Workload) -> Iterator[Finding]:
    """Yield the fields that are not known where they are, but in another section of the job or in another spelling."""
    sections = list(_list_sections(job))
    # The controller of an AppWrapper creates the object in it without strict validation.
    effect = "the API server drops it" if job.is_wrapped else _REFUSED
    for section in sections:
        for field in section.node:
            if field in section.fields.split():
                continue
            fix = _find_right_field(str(field), section, sections)
            if not fix and section.has_all_fields:
                fix = f"remove it, or write one of {', '.join(section.fields.split())}"
            if fix:
                problem = f"{field} is not a field of this mapping: {effect}"
                yield Finding(section.locate(str(field)), problem, fix)


def _list_sections(job: Workload) -> Iterator[_Section]:
    """Yield the sections of a job with known fields, outer before inner ones; of a companion, those of its pods."""
    yield from _list_outer_sections(job)
    for group in job.groups:
        for key_path, policy in yaml_entries(f"{group.key_path}.policies", group.spec.get("policies")):
            yield _Section(key_path, _JOB_POLICY_FIELDS, policy)
        if job.kind in _GROUP_FIELDS:
            template = yaml_mapping(group.spec.get("template"))
            yield _Section(group.key_path, _GROUP_FIELDS[job.kind], group.spec)
            yield _Section(f"{group.key_path}.template", _TEMPLATE_FIELDS, template)
        if job.kind in _GROUP_FIELDS and job.kind != "job":  # the template of a Job has the fields of any metadata
            metadata = yaml_mapping(yaml_value(group.spec, "template", "metadata"))
            yield _Section(f"{group.key_path}.template.metadata", _METADATA_FIELDS, metadata)
        yield _Section(group.pod_path, _POD_FIELDS, group.pod)
        for container in group.all_containers:
            yield _Section(container.key_path, _CONTAINER_FIELDS, container.spec)


def _list_outer_sections(job: Workload) -> Iterator[_Section]:
    """Yield the sections of a job that are not those of a group of pods."""
    yield _Section("", _ROOT_FIELDS, job.root, has_all_fields=True)
    if job.kind in _SPEC_FIELDS:
        yield _Section("spec", _SPEC_FIELDS[job.kind], job.spec, has_all_fields=job.kind == "pytorchjob")
    if job.kind == "pytorchjob":
        for key, fields in _POLICY_FIELDS.items():
            yield _Section(f"spec.{key}", fields, yaml_mapping(job.spec.get(key)), has_all_fields=True)
    if job.kind == "volcano":
        for key_path, policy in yaml_entries("spec.policies", job.spec.get("policies")):
            yield _Section(key_path, _JOB_POLICY_FIELDS, policy)
    if job.kind == "jobset":
        for key_path, replicated_job in yaml_entries("spec.replicatedJobs", job.spec.get("replicatedJobs")):
            yield _Section(key_path, _REPLICATED_JOB_FIELDS, replicated_job)
            yield _Section(f"{key_path}.template", _TEMPLATE_FIELDS, yaml_mapping(replicated_job.get("template")))


def _find_right_field(field: str, section: _Section, sections: Sequence[_Section]) -> str:
    """Where or how to write a field; empty if that is not known."""
    known_fields = section.fields.split()
    for known_field in known_fields:
        if known_field.lower() == field.lower():
            return f"write {known_field}"
    similar_fields = difflib.get_close_matches(field, known_fields, n=1, cutoff=_MIN_SIMILARITY)
    if similar_fields:
        return f"write {similar_fields[0]}"
    candidates = [candidate for candidate in sections if field in candidate.fields.split()]
    if candidates:
        nearest = max(candidates, key=lambda candidate: _count_common_keys(candidate.key_path, section.key_path))
        return f"write it in {nearest.key_path.removeprefix(section.locate(''))}"
    if field == "creationTimestamp":  # as `kubectl create --dry-run` prints it, with null
        return "remove it"
    return ""


def _count_common_keys(key_path: str, other_path: str) -> int:
    """The number of keys with which both paths start."""
    key_pairs = zip(key_path.split("."), other_path.split("."), strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], key_pairs))


# --- types ---------------------------------------------------------------------------------------------------------


def find_refused_types(job: Workload) -> Iterator[Finding]:
    """Yield the keys of pods and containers whose value is not the list or the mapping that is valid there."""
    for group in job.groups:
        yield from _find_other_types(group.pod_path, group.pod, _POD_LISTS, _POD_MAPPINGS)
        for container in group.all_containers:
            yield from _find_other_types(container.key_path, container.spec, _CONTAINER_LISTS, _CONTAINER_MAPPINGS)


def _find_other_types(key_path: str, node: YamlNode, list_keys: str, mapping_keys: str) -> Iterator[Finding]:
    for key in list_keys.split():
        value = node.get(key)
        if isinstance(value, str) and key in _ARGV_KEYS:
            problem = f"it is a text, and must be a list: {_REFUSED}"
            yield Finding(f"{key_path}.{key}", problem, "write each word as an item, such as [torchrun, train.py]")
        elif value is not None and not isinstance(value, list):
            yield Finding(f"{key_path}.{key}", f"it must be a list: {_REFUSED}", "begin each of its items with `-`")
    for key in mapping_keys.split():
        value = node.get(key)
        if value is not None and not isinstance(value, Mapping):
            yield Finding(f"{key_path}.{key}", f"it must be a mapping: {_REFUSED}", "write keys and values there")


# --- strings ------------------------------------------------------------------------------------------------------


def find_refused_numbers(job: Workload) -> Iterator[Finding]:
    """Yield numbers and booleans without quotes where only a string is valid."""
    values = [("spec.nprocPerNode", job.spec.get("nprocPerNode"))] if job.kind == "pytorchjob" else []
    for key in ("rdzvId", "rdzvHost"):
        values.append((f"spec.elasticPolicy.{key}", yaml_value(job.elastic_policy, key)))
    for group in job.groups:
        values += _list_strings(group)
    yield from _find_numbers(values)


def find_refused_metadata(objects: Sequence[object], parent_location: str = "") -> Iterator[tuple[str, Finding]]:
    """Yield numbers and booleans in the labels, annotations and data of objects, with each object's kind and name."""
    for obj in objects:
        kind = yaml_text(yaml_value(obj, "kind"))
        location = f"{parent_location}{kind} {yaml_text(yaml_value(obj, 'metadata', 'name'))}".strip()
        values: list[tuple[str, object]] = []
        for key in ("labels", "annotations"):
            values += _list_children(f"metadata.{key}", yaml_value(obj, "metadata", key))
        if kind == "ConfigMap":
            values += _list_children("data", yaml_value(obj, "data"))
        for finding in _find_numbers(values):
            yield location, finding
        if kind == APPWRAPPER_KIND:
            yield from find_refused_metadata(list(list_wrapped_objects(obj)), f"{location}, ")


def _list_strings(group: ReplicaGroup) -> Iterator[tuple[str, object]]:
    """Yield the values of a group's pods that must be strings, each with its path."""
    metadata = yaml_value(group.spec, "template", "metadata")
    for key in ("labels", "annotations"):
        yield from _list_children(f"{group.key_path}.template.metadata.{key}", yaml_value(metadata, key))
    yield from _list_children(f"{group.pod_path}.nodeSelector", group.pod.get("nodeSelector"))
    for key_path, toleration in yaml_entries(f"{group.pod_path}.tolerations", group.pod.get("tolerations")):
        yield f"{key_path}.value", toleration.get("value")
    for container in group.all_containers:
        for key_path, variable in yaml_entries(f"{container.key_path}.env", container.spec.get("env")):
            yield f"{key_path}.value", variable.get("value")
        for key in ("command", "args"):
            for index, arg in enumerate(yaml_list(container.spec.get(key))):
                yield f"{container.key_path}.{key}[{index}]", arg


def _list_children(key_path: str, node: object) -> Iterator[tuple[str, object]]:
    """Yield the values of a mapping, each with its path."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield f"{key_path}.{key}", value


def _find_numbers(values: Sequence[tuple[str, object]]) -> Iterator[Finding]:
    for key_path, value in values:
        if isinstance(value, bool | int | float):
            problem = f"a number or a boolean without quotes is not a string: {_REFUSED}"
            yield Finding(key_path, problem, 'put it in quotes, such as "1" or "true"')
