"""A recording of a job: which parts of its objects it contains, and how it is written and read."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from torchyard.launchers import registry
from torchyard.model.run import Observation

OBSERVED = Path(__file__).parents[1] / "observed"
BRIEF_S = 0.4  # between the changes of two pods that change together
EPOCH = 1_700_000_000  # the creation time of every recorded job
ObjectStates = Mapping[str, Mapping[str, Any]]
Case = dict[str, Any]
# Fake nodes: cpu, or a hardware file's name.
NODE_NAMES = re.compile(r"\b((?:cpu|epfl|oke|v100|vela)(?:-[a-z0-9]+)*)-\d+\b")
# The random end of the name of a JobSet's pod, or of a Job's.
RANDOM_SUFFIX = re.compile(r"\b(job-(?:worker-\d+-)?\d+)-[a-z0-9]{5}\b")
UIDS = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
TIMES = re.compile(r'(?<=")\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z(?=")')
METADATA_KEYS = {"name", "creationTimestamp", "deletionTimestamp"}
RETRY_ANNOTATIONS = {"workload.codeflare.dev.appwrapper/retryLimit"}
NOISE_KEYS = {
    "template",
    "minResources",
    "minTaskMember",
    "plugins",
    "selector",
    "hostIPs",
    "podIPs",
    "startTime",
    "runningDuration",
    "transitionID",
    "lastUpdateTime",
    "lastProbeTime",
    "observedGeneration",
}
POD_STATUS_KEYS = {"phase", "reason", "message", "conditions", "initContainerStatuses", "containerStatuses"}
# Events that depend on a race: one recording of a case contains them and the next one does not.
RACY_EVENTS = re.compile(r" (Unschedulable|PodGroupPending|FailedToUpdateEndpoint):")
POD_CONDITIONS = {"PodScheduled", "Ready", "DisruptionTarget"}
CONTAINER_KEYS = {"name", "restartCount", "state", "lastState"}


class Moment(NamedTuple):
    """The objects from a time on, and the state that was read from them then."""

    observed_at: float
    objects: ObjectStates
    state: str


def normalize(objects: ObjectStates, names: Mapping[str, str]) -> ObjectStates:
    """The objects without the fields that readers ignore and the names that differ from run to run; the times stay."""
    selected = {name: select_fields(objects[name]) for name in sort_names(objects)}
    normalized: ObjectStates = json.loads(mask_names(json.dumps(selected), names))
    return normalized


def mask_names(text: str, names: Mapping[str, str]) -> str:
    """A text without the names that differ from run to run."""
    for name, replacement in names.items():
        text = text.replace(name, replacement)
    return UIDS.sub("UID", NODE_NAMES.sub(r"\1-N", RANDOM_SUFFIX.sub(r"\1-xxxxx", text)))


def sort_names(objects: ObjectStates) -> list[str]:
    """The names of the objects, sorted; removed pods stay in the order of their removal."""
    return sorted(objects, key=lambda name: "Removed" if name.startswith("Removed/") else name)


def select_fields(obj: Mapping[str, Any]) -> Case:
    """The parts of an object that its readers may use."""
    spec = obj.get("spec", {})
    status = obj.get("status", {})
    if "containers" in spec:
        spec = {"containers": [{"name": spec["containers"][0]["name"]}], "restartPolicy": spec["restartPolicy"]}
        status = select_keys(status, POD_STATUS_KEYS)
        status["conditions"] = [
            condition for condition in status.get("conditions", ()) if condition["type"] in POD_CONDITIONS
        ]
        for key in list(status):
            if key.endswith("Statuses"):
                status[key] = [select_keys(container_status, CONTAINER_KEYS) for container_status in status[key]]
    metadata = select_keys(obj["metadata"], METADATA_KEYS)
    retry_limits = select_keys(obj["metadata"].get("annotations", {}), RETRY_ANNOTATIONS)
    if retry_limits:
        metadata["annotations"] = retry_limits
    return {"metadata": metadata, "spec": drop_noise(spec) | select_job_sizes(spec), "status": drop_noise(status)}


def select_job_sizes(spec: Mapping[str, Any]) -> Case:
    """The number of pods of each Job in a JobSet."""
    jobs = [
        select_keys(job, {"name", "replicas"})
        | {"template": {"spec": select_keys(job["template"]["spec"], {"parallelism"})}}
        for job in spec.get("replicatedJobs", ())
    ]
    return {"replicatedJobs": jobs} if jobs else {}


def select_keys(fields: Mapping[str, Any], keys: set[str]) -> Case:
    return {key: fields[key] for key in fields.keys() & keys}


def drop_noise(value: Any) -> Any:
    """A value without noise, and without the repetitions in a Volcano Job's history."""
    if isinstance(value, list):
        items = [drop_noise(item) for item in value]
        is_phase_history = all(
            isinstance(item, dict) and item.keys() == {"status", "lastTransitionTime"} for item in items
        )
        if items and is_phase_history:
            return [next(repeated) for _, repeated in groupby(items, lambda item: item["status"])]
        return items
    if isinstance(value, dict):
        return {key: drop_noise(child) for key, child in value.items() if key not in NOISE_KEYS}
    return value


def describe_status(obj: Mapping[str, Any]) -> str:
    """The status of an object as text, without times and counts."""
    status = obj["status"]
    true_conditions = [
        (condition.get("type"), condition.get("reason"))
        for condition in status.get("conditions", ())
        if condition["status"] == "True"
    ]
    scheduling_reasons = [
        condition.get("reason") for condition in status.get("conditions", ()) if condition.get("type") == "PodScheduled"
    ]
    containers = [
        (container_status["restartCount"], kind, state.get("reason"), state.get("exitCode"))
        for container_status in status.get("containerStatuses", ())
        for kind, state in container_status["state"].items()
    ]
    phase = status.get("phase") or status.get("state", {}).get("phase")
    return str(
        (
            phase,
            sorted(map(str, true_conditions)),
            scheduling_reasons,
            containers,
            "deletionTimestamp" in obj["metadata"],
        )
    )


def drop_brief_moments(moments: Sequence[Moment]) -> list[Moment]:
    """The moments whose status texts differ from the previous one's.

    A brief moment is kept only if its state or its job's status is new, or if a pod has failed in it.
    """
    kept_moments: list[Moment] = []
    for moment, later in pairwise([*moments, None]):
        assert moment
        previous = kept_moments[-1:]
        neighbours = [describe_job(neighbour) for neighbour in (*previous, later) if neighbour]
        is_brief = later and later.observed_at - moment.observed_at < BRIEF_S and describe_job(moment) in neighbours
        has_new_failure = bool(list_failed_pods(moment) - list_failed_pods(*previous))
        is_repeated = bool(previous) and describe_objects(moment) == describe_objects(previous[0])
        if not is_repeated and (has_new_failure or not is_brief):
            kept_moments.append(moment)
    return kept_moments


def describe_job(moment: Moment) -> tuple[str, ...]:
    """The state, and the statuses of the job's own objects as text."""
    return (
        moment.state,
        *(describe_status(moment.objects[key]) for key in moment.objects if not key.startswith("Pod")),
    )


def describe_objects(moment: Moment) -> dict[str, str]:
    return {key: describe_status(obj) for key, obj in moment.objects.items()}


def list_failed_pods(*moments: Moment) -> set[str]:
    """The pods that have failed."""
    return {key for moment in moments for key, obj in moment.objects.items() if obj["status"].get("phase") == "Failed"}


def replace_times(moments: Sequence[Moment]) -> list[ObjectStates]:
    """Replace the times by a clock that ticks once per moment, so that two recordings have the same times."""
    texts = [json.dumps(moment.objects) for moment in moments]
    first_ticks: dict[str, int] = {}
    for tick, text in enumerate(texts):
        for timestamp in TIMES.findall(text):
            first_ticks.setdefault(timestamp, tick)
    min_tick = len(texts)
    for timestamp in sorted(first_ticks, reverse=True):
        min_tick = first_ticks[timestamp] = min(min_tick, first_ticks[timestamp])
    return [json.loads(TIMES.sub(lambda match: format_tick(first_ticks[match[0]]), text)) for text in texts]


def format_tick(tick: int) -> str:
    return datetime.fromtimestamp(EPOCH + tick, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def build_moments(moments: Sequence[ObjectStates], case: Case) -> Iterator[Case]:
    """The changes of each moment, with the state and reason that are read from it."""
    read_status = registry.load_launcher(case["launcher"]).read_status
    ticks = [(float(tick), objects) for tick, objects in enumerate(moments)]
    if "later" in case:
        ticks.append((len(moments) + case["later"], moments[-1]))
    previous: ObjectStates = {}
    for tick, objects in ticks:
        status = read_status(Observation(objects, frozenset(), EPOCH + tick))
        changes = {}
        for key in sort_names(dict(previous) | dict(objects)):
            change = select_changes(previous.get(key), objects.get(key))
            if change != {}:
                changes[key] = change
        yield {"after": tick, "expected": status.state, "reason": status.reason, "news": changes}
        previous = objects


def select_changes(previous: Mapping[str, Any] | None, current: Mapping[str, Any] | None) -> Case | None:
    """The parts of an object that have changed; None if it was deleted."""
    if current is None:
        return None
    return {key: value for key, value in current.items() if value != (previous or {}).get(key)}


def format_recording(recording: Case) -> str:
    """The recording as JSON with one line per part of an object, so that a diff of two recordings is readable."""
    header = [
        f"{json.dumps(key)}: {json.dumps(value)}"
        for key, value in recording.items()
        if key not in ("events", "moments")
    ]
    events = ",\n".join(f"  {json.dumps(event)}" for event in recording["events"])
    moments = ",\n".join(format_moment(moment) for moment in recording["moments"])
    return "{\n" + ",\n".join([*header, f'"events": [\n{events}]', f'"moments": [\n{moments}\n]']) + "\n}\n"


def format_moment(moment: Case) -> str:
    fields = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in moment.items() if key != "news"]
    changes = ",\n".join(f"  {json.dumps(key)}: {format_object(value)}" for key, value in moment["news"].items())
    return " {" + ", ".join([*fields, f'"news": {{\n{changes}}}']) + "}"


def format_object(obj: Case | None) -> str:
    if obj is None:
        return "null"
    fields = [f"{json.dumps(key)}: {json.dumps(value, sort_keys=True)}" for key, value in obj.items()]
    return "{" + ",\n   ".join(fields) + "}"


# --- reading a recording


class RecordedMoment(NamedTuple):
    """One complete moment of a recording."""

    case: str
    number: int
    observed: Observation
    expected: str
    reason: str


def load_moments(name: str, recording: Case) -> list[RecordedMoment]:
    """The moments of a recording."""
    objects: ObjectStates = {}
    moments = []
    for number, moment in enumerate(recording["moments"]):
        changes = moment["news"]
        objects = {
            key: dict(objects.get(key, {})) | changes.get(key, {})
            for key in dict(objects) | changes
            if changes.get(key, {}) is not None
        }
        observed = Observation(objects, frozenset(), EPOCH + moment["after"])
        moments.append(RecordedMoment(name, number, observed, moment["expected"], moment["reason"]))
    return moments


def choose_recording(stored: Case, recording: Case) -> Case:
    """The new recording, or the stored moments if both are equal in substance: no two recordings are identical."""
    read_status = registry.load_launcher(recording["launcher"]).read_status
    statuses = [read_status(moment.observed) for moment in load_moments("", stored)]
    moments = [
        moment | {"expected": status.state, "reason": status.reason}
        for moment, status in zip(stored["moments"], statuses, strict=True)
    ]
    unchanged = recording | {"moments": moments, "events": stored.get("events", [])}
    return unchanged if summarize(unchanged) == summarize(recording) else recording


def summarize(recording: Case) -> object:
    """The substance of a recording: the order of its states and of the job's statuses, its end, and its events."""
    moments = [
        Moment(moment.observed.observed_at, moment.observed.states, moment.expected)
        for moment in load_moments("", recording)
    ]
    states = [state for state, _ in groupby(moment.state for moment in moments)]
    jobs = [job for job, _ in groupby(describe_job(moment)[1:] for moment in moments)]
    events = {
        re.sub(r"-\d+ |:.*", " ", event) for event in recording.get("events", ()) if not RACY_EVENTS.search(event)
    }
    return states, jobs, sorted(describe_objects(moments[-1]).values()), set(list_paths(moments[-1].objects)), events


def list_paths(value: Any, path: str = "") -> Iterator[str]:
    """The paths of all values inside, regardless of the number of pods."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from list_paths(child, f"{path}.{key.rstrip('0123456789')}")
    elif isinstance(value, list):
        for child in value:
            yield from list_paths(child, path)
    else:
        yield path
