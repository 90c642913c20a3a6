"""What an AppWrapper will do that its author does not expect. Read in appwrapper 1.2 and in MCAD 1.40."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchyard.pods.workload import WRAPPER, Found, entries, get, text, wrapped

PREFIX = "workload.codeflare.dev.appwrapper/"
NEWER = "workload.codeflare.dev/v1beta2"
GO = re.compile(r"(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h))+")
SHORT = {  # patience of the controller, unless an annotation says more
    "admissionGracePeriodDuration": ("1m", "not all pods exist, as while a gang waits for room,"),
    "warmupGracePeriodDuration": ("5m", "not all pods run, as while a large image is pulled,"),
}


def traps(objects: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Found]]:
    """The object, and what its keys bring about."""
    for each in objects:
        if text(get(each, "kind")) == WRAPPER:
            where = f"{WRAPPER} {text(get(each, 'metadata', 'name'))}".strip()
            read = newer if text(get(each, "apiVersion")) == NEWER else older
            yield from ((where, found) for found in (*read(each), *cleaned(each)))


def newer(wrapper: Mapping[str, Any]) -> Iterator[Found]:
    said = get(wrapper, "metadata", "annotations")
    said = said if isinstance(said, Mapping) else {}
    for name, (patience, when) in SHORT.items():
        if PREFIX + name not in said:
            happens = f"after {patience} in which {when} the try is thrown away with its pods and logs"
            yield f"metadata.annotations, {PREFIX}{name}", happens, "write 30m"
    if PREFIX + "deletionOnFailureGracePeriodDuration" not in said:
        happens = "the pods of a job that failed are deleted at once, and their logs with them"
        yield f"metadata.annotations, {PREFIX}deletionOnFailureGracePeriodDuration", happens, "write 1h"
    for key, value in said.items():
        if str(key).startswith(PREFIX) and str(key).endswith("Duration") and not GO.fullmatch(str(value)):
            happens = f"{value} is not a duration of Go, which has no days: the controller takes its default instead"
            yield f"metadata.annotations, {key}", happens, "write hours, such as 24h"


def older(wrapper: Mapping[str, Any]) -> Iterator[Found]:
    for at, item in entries("spec.resources.GenericItems", get(wrapper, "spec", "resources", "GenericItems")):
        if not get(item, "completionstatus"):
            happens = "without it the dispatcher never learns of the end: the AppWrapper is Running for ever"
            yield f"{at}.completionstatus", happens, "write Succeeded,Failed"


def cleaned(wrapper: Mapping[str, Any]) -> Iterator[Found]:
    """Pods that are gone are not counted as done."""
    for each in wrapped(wrapper):
        policy = get(each, "spec", "runPolicy", "cleanPodPolicy")
        if text(get(each, "kind")) == "PyTorchJob" and policy in ("Running", "All"):
            happens = f"{policy} deletes pods when the job ends, and the AppWrapper waits for all of them to succeed"
            yield "the PyTorchJob's spec.runPolicy.cleanPodPolicy", happens, "write None"
