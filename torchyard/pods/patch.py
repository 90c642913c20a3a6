"""Patches: parts of Kubernetes objects from a profile, merged over the pod template and the job that torchyard builds.

A patch is a strategic merge patch: mappings are merged key by key, null removes a key, and in lists of named items each
item is merged over the one of its name. Lists of conditions, such as tolerations, are extended, because a patch must
not remove torchyard's own conditions without naming them. All other lists are replaced.

What a run relies on stays as it was built: a patch that changes it is refused.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from torchyard.agents.job_files import MOUNTED
from torchyard.agents.torchrun import LOCAL_ADDR_VARIABLE
from torchyard.diagnosis.pod_facts import find_main_container, get_mapping, get_mappings
from torchyard.model.errors import ProfileError
from torchyard.model.finding import Finding
from torchyard.model.pod import Resources
from torchyard.model.profile import Profile
from torchyard.model.rules import OWN_LABEL_PREFIX, RANK_VARIABLES
from torchyard.pods.volumes import OWN_VOLUMES, Manifest, drop_empty

_DIRECTIVE = "$patch"
# The key by which the items of a list are merged: for pods those of Kubernetes.
_POD_ITEM_KEYS = {
    "claims": "name",
    "containers": "name",
    "env": "name",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ports": "containerPort",
    "resourceClaims": "name",
    "schedulingGates": "name",
    "topologySpreadConstraints": "topologyKey",
    "volumeDevices": "devicePath",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
# Of a job by their key paths: a controller may use the same name elsewhere for another list.
_JOB_ITEM_KEYS = {
    "spec.components": "name",
    "spec.replicatedJobs": "name",
    "spec.resources.GenericItems": "name",
    "spec.tasks": "name",
}
# Lists with one item of torchyard's, which is also that of an item without a name.
_BUILT_ITEM_LISTS = frozenset({"containers", *_JOB_ITEM_KEYS})
# An item of these lists has one source: another source replaces it, because Kubernetes refuses both.
_ONE_SOURCE_LISTS = frozenset({"env", "volumes"})
_EXTENDED_LISTS = frozenset(
    {
        "envFrom",
        "preferredDuringSchedulingIgnoredDuringExecution",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "tolerations",
    }
)
_ATTEMPTS_REMEDY = "a new attempt is torchyard's own (attempts)"
# Keys that a patch may not change, and what to use instead.
FIXED_POD_KEYS = {
    "activeDeadlineSeconds": "use deadlines.run",
    "hostNetwork": "use pod.host_network, which also keeps the cluster's DNS",
    "hostname": "the nodes find each other by the names that the job's controller gives them",
    "restartPolicy": _ATTEMPTS_REMEDY,
    "subdomain": "the nodes find each other by the names that the job's controller gives them",
    "terminationGracePeriodSeconds": "use deadlines.grace",
}
FIXED_CONTAINER_KEYS = {
    "args": "use program, args and setup",
    "command": "use program, args and setup",
    "image": "use image",
    "name": "the run follows the log and the exit code of this container",
    "restartPolicy": _ATTEMPTS_REMEDY,
}
_RUN_VARIABLES = RANK_VARIABLES | {"MASTER_ADDR", "MASTER_PORT", LOCAL_ADDR_VARIABLE}
_RUN_VARIABLE_PREFIX = "TORCHYARD_"
# Anywhere in a job, outside of its pods.
FIXED_JOB_KEYS = {
    "activeDeadlineSeconds": "use deadlines.run",
    "apiVersion": "use launcher",
    "backoffLimit": _ATTEMPTS_REMEDY,
    "cleanPodPolicy": "the run reads the logs of pods that have ended",
    "completionMode": "use nodes",
    "completions": "use nodes",
    "elasticPolicy": "use nodes, rendezvous and restarts",
    "failurePolicy": _ATTEMPTS_REMEDY,
    "finalizers": "they would prevent the job's deletion",
    "generateName": "the name is that of the run",
    "kind": "use launcher",
    "maxRetry": _ATTEMPTS_REMEDY,
    "namespace": "use cluster.namespace",
    "network": "the nodes find each other by the names that the job's controller gives them",
    "nprocPerNode": "use processes",
    "ownerReferences": "the run's Lease owns the job",
    "parallelism": "use nodes",
    "plugins": "the nodes find each other by the names that the job's controller gives them",
    "policies": _ATTEMPTS_REMEDY,
    "queue": "use options.queue",
    "replicas": "use nodes",
    "restartPolicy": _ATTEMPTS_REMEDY,
    "status": "the job's controller writes it",
    "suspend": "use options.suspend",
    "ttlSecondsAfterFinished": "use deadlines.lease",
}
# The names in a job by which the run finds its pods.
_JOB_NAME_PATTERN = re.compile(r"(?:.*\.)?metadata\.name|spec\.(?:replicatedJobs|tasks)\.\d+\.name")
_RESOURCES: TypeAdapter[dict[str, str]] = TypeAdapter(Resources)


class _FixedValue(NamedTuple):
    """A value that no patch may change, and what to use instead."""

    value: Any
    remedy: str


_FixedValues = dict[str, _FixedValue]  # by their key paths
_MISSING = _FixedValue(None, "")


def patch_template(profile: Profile, template: Manifest) -> Manifest:
    """The pod template with the patches of the fabric and the profile. `template`: the job's container comes first.

    ProfileError if a patch changes what the run relies on, or cannot be merged.
    """
    if not profile.pod.patch:
        return template
    merger = _Merger("pod.patch", _POD_ITEM_KEYS)
    built_name = find_main_container(template)
    for patch in profile.pod.patch:
        for key in sorted(patch.keys() - {"metadata", "spec"}):
            merger.add(key, "is not a key of a pod template, which has metadata and spec")
        template_patch: Manifest = {key: patch[key] for key in ("metadata", "spec") if key in patch}
        fixed = _list_fixed_pod_values(template)
        template = merger.merge(template, template_patch)
        merger.check_fixed_values(fixed, _list_fixed_pod_values(template))
    _check_containers(template, merger)
    _check_texts(template, merger)
    main_name = find_main_container(template)
    if main_name != built_name and not merger.findings:
        problem = f"the run would follow the container {main_name} instead of the job's own"
        merger.add("spec.containers", problem, "give it another name, and no annotation that makes it the default one")
    merger.raise_findings(profile)
    return template


def patch_job(profile: Profile, job: Manifest) -> Manifest:
    """The job's main object with the profile's labels and annotations, and its patch. ProfileError as for pods."""
    merger = _Merger("job.patch", _JOB_ITEM_KEYS)
    metadata = dict(job["metadata"])
    for key, texts in (("labels", profile.job.labels), ("annotations", profile.job.annotations)):
        built = metadata.get(key, {})
        for name in texts:
            if built.get(name, texts[name]) != texts[name]:
                problem = f"{name} is {built[name]} by the options of the launcher: change it there"
                merger.findings.append(Finding(f"job.{key}", problem))
        if texts:
            metadata[key] = built | texts
    patched = job | {"metadata": metadata}
    for patch in profile.job.patch:
        fixed = _list_fixed_job_values(patched)
        patched = merger.merge(patched, patch)
        merger.check_fixed_values(fixed, _list_fixed_job_values(patched))
    merger.raise_findings(profile)
    return patched


# --- merging


class _Merger:
    """Merges patches over objects, and collects what is wrong with them.

    findings: their key paths start with the profile's key of the patch.
    """

    def __init__(self, patch_key: str, item_keys: Mapping[str, str]) -> None:
        """`patch_key`: the profile's key of the patches.

        `item_keys`: by the name or the key path of a list, the key of its items.
        """
        self.findings: list[Finding] = []
        self._patch_key = patch_key
        self._item_keys = item_keys

    def add(self, key_path: str, problem: str, remedy: str = "") -> None:
        self.findings.append(Finding(f"{self._patch_key}.{key_path}", problem, remedy))

    def raise_findings(self, profile: Profile) -> None:
        """Raise ProfileError if there are findings."""
        if self.findings:
            raise ProfileError(profile.name, tuple(self.findings))

    def merge(self, base: Mapping[str, Any], patch: Mapping[str, Any], prefix: str = "") -> Manifest:
        """`base` with `patch`. `prefix`: of the key paths in findings, with a dot at its end."""
        merged = dict(base)
        for key, value in patch.items():
            key_path = f"{prefix}{key}"
            current = base.get(key)
            if key.startswith("$"):
                self.add(key_path, f"is not supported: only an item of a list can have {_DIRECTIVE}: delete")
            elif value is None:
                merged.pop(key, None)
            elif isinstance(current, dict | list) and not isinstance(value, type(current)):
                noun = "mapping" if isinstance(current, dict) else "list"
                self.add(key_path, f"must be a {noun}, or null to remove it, not {value!r}")
            elif isinstance(value, dict):
                merged[key] = self.merge(current if isinstance(current, dict) else {}, value, f"{key_path}.")
            elif isinstance(value, list):
                merged[key] = self._merge_list(key, current if isinstance(current, list) else [], value, key_path)
            else:
                merged[key] = value
        return merged

    def _merge_list(self, key: str, base: list[Any], items: list[Any], key_path: str) -> list[Any]:
        """The list that is called `key`, with the items of a patch."""
        for list_name in (key, key_path):
            if list_name in self._item_keys:
                return self._merge_items(list_name, base, items, key_path)
        if key in _EXTENDED_LISTS:
            return base + copy.deepcopy([item for item in items if item not in base])
        if key == "nodeSelectorTerms" and base:
            return _join_terms(base, items)
        return copy.deepcopy(items)

    def _merge_items(self, list_name: str, base: list[Any], items: list[Any], key_path: str) -> list[Any]:
        """The list with each item merged over the one with the same name, and the others behind it.

        `list_name`: as in `item_keys`.
        """
        item_key = self._item_keys[list_name]
        merged = list(base)
        for index, item in enumerate(items):
            item_path = f"{key_path}.{index}"
            if not isinstance(item, dict):
                self.add(item_path, f"must be a mapping with {item_key}")
                continue
            name = item.get(item_key)
            is_built = list_name in _BUILT_ITEM_LISTS and bool(base)
            position = 0 if is_built and item_key not in item else _find_item(merged, item_key, name)
            if position is None and not isinstance(name, str | int):
                self.add(item_path, f"requires {item_key}, by which the items of this list are merged")
            elif item.get(_DIRECTIVE) == "delete":
                if is_built and position == 0:
                    self.add(item_path, "is torchyard's own and cannot be deleted")
                elif position is not None:
                    del merged[position]
            elif position is None:
                merged.append(self.merge({}, item, f"{item_path}."))
            else:
                current = merged[position]
                if list_name in _ONE_SOURCE_LISTS and not item.keys() <= current.keys():
                    current = {}
                merged[position] = self.merge(current, item, f"{item_path}.")
        return merged

    def check_fixed_values(self, before: _FixedValues, after: _FixedValues) -> None:
        """Add a finding for each value that a patch has changed, added or removed."""
        for key_path in before | after:
            fixed = before.get(key_path, _MISSING)
            if fixed.value != after.get(key_path, _MISSING).value:
                remedy = fixed.remedy or after[key_path].remedy
                self.add(key_path, "cannot be changed by a patch", remedy)


def _find_item(items: list[Any], key: str, name: object) -> int | None:
    """The index of the item of this name; None if there is none."""
    for index, item in enumerate(items):
        if name is not None and item.get(key) == name:
            return index
    return None


def _join_terms(base: list[Any], terms: list[Any]) -> list[Any]:
    """Node selector terms, of which a node must match one: each pair of the two lists as one term with all conditions.

    So a node must match a term of both lists.
    """
    joined = []
    for base_term in base:
        for term in terms:
            conditions = {}
            for key in ("matchExpressions", "matchFields"):
                conditions[key] = get_mappings(base_term, key) + get_mappings(term, key)
            joined.append(drop_empty(conditions))
    return joined


# --- what a patch may not change


def _list_fixed_pod_values(template: Manifest) -> _FixedValues:
    """What a run relies on in its pods."""
    fixed: _FixedValues = {}
    for key, value in get_mapping(template, "metadata").items():
        if key not in ("labels", "annotations"):
            fixed[f"metadata.{key}"] = _FixedValue(value, "a pod's name and namespace are those of its job")
    fixed |= _list_own_labels(get_mapping(template, "metadata", "labels"), "metadata.labels")
    spec = get_mapping(template, "spec")
    fixed |= _list_fixed_keys(spec, FIXED_POD_KEYS, "spec")
    for volume in get_mappings(spec, "volumes"):
        if volume.get("name") in OWN_VOLUMES:
            fixed[f"spec.volumes.{volume['name']}"] = _FixedValue(volume, "choose another name for your volume")
    for container in get_mappings(spec, "containers")[:1]:
        fixed |= _list_fixed_keys(container, FIXED_CONTAINER_KEYS, "spec.containers.0")
        for variable in get_mappings(container, "env"):
            name = str(variable.get("name"))
            if name in _RUN_VARIABLES or name.startswith(_RUN_VARIABLE_PREFIX):
                fixed[f"spec.containers.0.env.{name}"] = _FixedValue(variable, "the run sets it in each process")
        for mount in get_mappings(container, "volumeMounts"):
            if mount.get("name") in OWN_VOLUMES or mount.get("mountPath") in MOUNTED:
                path = f"spec.containers.0.volumeMounts.{mount.get('mountPath')}"
                fixed[path] = _FixedValue(mount, "choose another path")
    return fixed


def _list_fixed_job_values(job: Manifest) -> _FixedValues:
    """What a run relies on in the job's main object."""
    return {fixed_path: value for fixed_path, value in _walk_job(job, "")}


def _walk_job(value: object, prefix: str) -> Iterator[tuple[str, _FixedValue]]:
    """Yield the key path of each fixed value of an object, with the value. `prefix`: ends with a dot, or is empty."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk_job(item, f"{prefix}{index}.")
        return
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        key_path = f"{prefix}{key}"
        if key in FIXED_JOB_KEYS:
            yield key_path, _FixedValue(item, FIXED_JOB_KEYS[key])
        elif _JOB_NAME_PATTERN.fullmatch(key_path):
            yield key_path, _FixedValue(item, "the name is that of the run")
        elif key == "labels":
            yield from _list_own_labels(item, key_path).items()
        elif key == "template" and "containers" in get_mapping(item, "spec"):
            yield key_path, _FixedValue(item, "use pod.patch for the pods")
        else:
            yield from _walk_job(item, f"{key_path}.")


def _list_fixed_keys(fields: Mapping[str, Any], remedies: Mapping[str, str], prefix: str) -> _FixedValues:
    return {f"{prefix}.{key}": _FixedValue(fields[key], remedies[key]) for key in remedies if key in fields}


def _list_own_labels(labels: object, prefix: str) -> _FixedValues:
    """torchyard's labels, by which a run finds its objects."""
    own_labels = {}
    for name, value in (labels if isinstance(labels, dict) else {}).items():
        if name.startswith(OWN_LABEL_PREFIX):
            own_labels[f"{prefix}.{name}"] = _FixedValue(value, "the run finds its objects by this label")
    return own_labels


# --- what Kubernetes would refuse, or the checks of preflight could not read


def _check_containers(template: Manifest, merger: _Merger) -> None:
    """Add a finding for a container without an image, and for two containers of one name."""
    names: set[str] = set()
    for key in ("containers", "initContainers"):
        for container in get_mappings(template, "spec", key):
            name = str(container.get("name"))
            if name in names:
                merger.add(f"spec.{key}", f"a second container cannot be called {name}")
            names.add(name)
            if not container.get("image"):
                remedy = "set its image; an item of `containers` without a name is the job's own container"
                merger.add(f"spec.{key}", f"there is no container called {name}, and the new one has no image", remedy)
    for name, amount in _list_amounts(template):
        try:
            _RESOURCES.validate_python({name: amount})
        except ValidationError as error:
            problem = error.errors()[0]["msg"].removeprefix("Value error, ")
            merger.add("spec.containers.0.resources", f"{name}: {amount!r}: {problem}")


def _list_amounts(template: Manifest) -> Iterator[tuple[str, Any]]:
    """Yield the resources that the job's container requests or is limited to."""
    for container in get_mappings(template, "spec", "containers")[:1]:
        for key in ("requests", "limits"):
            yield from get_mapping(container, "resources", key).items()


def _check_texts(template: Manifest, merger: _Merger) -> None:
    """Add a finding for each value that must be text and is not: YAML reads 1 as a number, and yes as a boolean."""
    text_maps = {
        "metadata.labels": get_mapping(template, "metadata", "labels"),
        "metadata.annotations": get_mapping(template, "metadata", "annotations"),
        "spec.nodeSelector": get_mapping(template, "spec", "nodeSelector"),
    }
    for index, container in enumerate(get_mappings(template, "spec", "containers")):
        for variable in get_mappings(container, "env"):
            text_maps[f"spec.containers.{index}.env.{variable.get('name')}"] = {"value": variable.get("value", "")}
    for key_path, texts in text_maps.items():
        for name, text in texts.items():
            if not isinstance(text, str):
                merger.add(f"{key_path}.{name}", f"must be text, not {text!r}", "put it in quotes")
