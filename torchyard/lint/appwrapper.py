"""Traps of an AppWrapper: what it will do that its author does not expect.

The rules follow the sources of appwrapper 1.2 and MCAD 1.40.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchyard.lint.workload import (
    APPWRAPPER_KIND,
    list_wrapped_objects,
    yaml_entries,
    yaml_mapping,
    yaml_text,
    yaml_value,
)
from torchyard.model.finding import Finding

_ANNOTATION_PREFIX = "workload.codeflare.dev.appwrapper/"
_V1BETA2 = "workload.codeflare.dev/v1beta2"
# As Go's time.ParseDuration reads it: 0 needs no unit, and a number may begin or end with its point.
_GO_DURATION_PATTERN = re.compile(r"[-+]?(?:0|(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+)")
# How long the controller waits unless an annotation sets more, and what it waits for.
_SHORT_DEFAULTS = {
    "admissionGracePeriodDuration": ("1m", "not all pods exist, as while a gang waits for room,"),
    "warmupGracePeriodDuration": ("5m", "not all pods run, as while a large image is pulled,"),
}


def lint_appwrappers(objects: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Finding]]:
    """Yield the traps in the keys of AppWrappers, each with the AppWrapper's kind and name."""
    for obj in objects:
        if yaml_text(yaml_value(obj, "kind")) != APPWRAPPER_KIND:
            continue
        location = f"{APPWRAPPER_KIND} {yaml_text(yaml_value(obj, 'metadata', 'name'))}".strip()
        is_v1beta2 = yaml_text(yaml_value(obj, "apiVersion")) == _V1BETA2
        findings = _lint_v1beta2(obj) if is_v1beta2 else _lint_v1beta1(obj)
        for finding in (*findings, *_find_cleaned_pods(obj)):
            yield location, finding


def _lint_v1beta2(wrapper: Mapping[str, Any]) -> Iterator[Finding]:
    annotations = yaml_mapping(yaml_value(wrapper, "metadata", "annotations"))
    for name, (default_limit, condition) in _SHORT_DEFAULTS.items():
        if _ANNOTATION_PREFIX + name not in annotations:
            problem = f"after {default_limit} in which {condition} the controller deletes the pods and their logs"
            yield Finding(f"metadata.annotations, {_ANNOTATION_PREFIX}{name}", problem, "write 30m")
    failure_annotation = f"{_ANNOTATION_PREFIX}deletionOnFailureGracePeriodDuration"
    if failure_annotation not in annotations:
        problem = "the pods of a failed job are deleted immediately, and their logs with them"
        yield Finding(f"metadata.annotations, {failure_annotation}", problem, "write 1h")
    for key, value in annotations.items():
        is_duration = str(key).startswith(_ANNOTATION_PREFIX) and str(key).endswith("Duration")
        if is_duration and not _GO_DURATION_PATTERN.fullmatch(str(value)):
            problem = f"{value} is not a Go duration, which has no days: the controller uses its default instead"
            yield Finding(f"metadata.annotations, {key}", problem, "write hours, such as 24h")


def _lint_v1beta1(wrapper: Mapping[str, Any]) -> Iterator[Finding]:
    items = yaml_value(wrapper, "spec", "resources", "GenericItems")
    for key_path, item in yaml_entries("spec.resources.GenericItems", items):
        if not yaml_value(item, "completionstatus"):
            problem = "without it the dispatcher does not detect the end: the AppWrapper stays Running forever"
            yield Finding(f"{key_path}.completionstatus", problem, "write Succeeded,Failed")


def _find_cleaned_pods(wrapper: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield PyTorchJobs that delete pods at their end: the AppWrapper does not count those as succeeded."""
    for obj in list_wrapped_objects(wrapper):
        policy = yaml_value(obj, "spec", "runPolicy", "cleanPodPolicy")
        if yaml_text(yaml_value(obj, "kind")) == "PyTorchJob" and policy in ("Running", "All"):
            problem = f"{policy} deletes pods when the job ends, and the AppWrapper waits for all of them to succeed"
            yield Finding("the PyTorchJob's spec.runPolicy.cleanPodPolicy", problem, "write None")
