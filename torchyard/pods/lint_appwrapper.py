"""What an AppWrapper will do that its author does not expect.

The rules follow the sources of appwrapper 1.2 and MCAD 1.40.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchyard.pods.workload import (
    APPWRAPPER_KIND,
    LintFinding,
    list_wrapped_objects,
    yaml_entries,
    yaml_text,
    yaml_value,
)

_ANNOTATION_PREFIX = "workload.codeflare.dev.appwrapper/"
_V1BETA2 = "workload.codeflare.dev/v1beta2"
_GO_DURATION_PATTERN = re.compile(r"(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+")
_SHORT_DEFAULTS = {  # how long the controller waits, unless an annotation says more
    "admissionGracePeriodDuration": ("1m", "not all pods exist, as while a gang waits for room,"),
    "warmupGracePeriodDuration": ("5m", "not all pods run, as while a large image is pulled,"),
}


def lint_appwrappers(objects: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, LintFinding]]:
    """Each AppWrapper with one finding about its keys."""
    for obj in objects:
        if yaml_text(yaml_value(obj, "kind")) == APPWRAPPER_KIND:
            location = f"{APPWRAPPER_KIND} {yaml_text(yaml_value(obj, 'metadata', 'name'))}".strip()
            find_problems = _lint_v1beta2 if yaml_text(yaml_value(obj, "apiVersion")) == _V1BETA2 else _lint_v1beta1
            yield from ((location, finding) for finding in (*find_problems(obj), *_find_cleaned_pods(obj)))


def _lint_v1beta2(wrapper: Mapping[str, Any]) -> Iterator[LintFinding]:
    annotations = yaml_value(wrapper, "metadata", "annotations")
    annotations = annotations if isinstance(annotations, Mapping) else {}
    for name, (default_limit, condition) in _SHORT_DEFAULTS.items():
        if _ANNOTATION_PREFIX + name not in annotations:
            problem = f"after {default_limit} in which {condition} the try is thrown away with its pods and logs"
            yield f"metadata.annotations, {_ANNOTATION_PREFIX}{name}", problem, "write 30m"
    if _ANNOTATION_PREFIX + "deletionOnFailureGracePeriodDuration" not in annotations:
        problem = "the pods of a job that failed are deleted at once, and their logs with them"
        yield f"metadata.annotations, {_ANNOTATION_PREFIX}deletionOnFailureGracePeriodDuration", problem, "write 1h"
    for key, value in annotations.items():
        if (
            str(key).startswith(_ANNOTATION_PREFIX)
            and str(key).endswith("Duration")
            and not _GO_DURATION_PATTERN.fullmatch(str(value))
        ):
            problem = f"{value} is not a duration of Go, which has no days: the controller takes its default instead"
            yield f"metadata.annotations, {key}", problem, "write hours, such as 24h"


def _lint_v1beta1(wrapper: Mapping[str, Any]) -> Iterator[LintFinding]:
    for key_path, item in yaml_entries(
        "spec.resources.GenericItems", yaml_value(wrapper, "spec", "resources", "GenericItems")
    ):
        if not yaml_value(item, "completionstatus"):
            problem = "without it the dispatcher never learns of the end: the AppWrapper is Running for ever"
            yield f"{key_path}.completionstatus", problem, "write Succeeded,Failed"


def _find_cleaned_pods(wrapper: Mapping[str, Any]) -> Iterator[LintFinding]:
    """Pods that were deleted do not count as done."""
    for obj in list_wrapped_objects(wrapper):
        policy = yaml_value(obj, "spec", "runPolicy", "cleanPodPolicy")
        if yaml_text(yaml_value(obj, "kind")) == "PyTorchJob" and policy in ("Running", "All"):
            problem = f"{policy} deletes pods when the job ends, and the AppWrapper waits for all of them to succeed"
            yield "the PyTorchJob's spec.runPolicy.cleanPodPolicy", problem, "write None"
