"""The Lease of a run in a cluster, as a plain object: how it is written and read.

There is one per run. It is renewed while a process watches the run, it owns every object that the run creates, and it
holds what a process on another machine needs to continue: the attempt, whether its job was submitted, how that job
ended, and how the run is about to end.

Others can write to it as well, so its content is bounded and validated here, and nothing here raises: a malformed value
counts as unknown. How a job or a run ends counts only with the seal of the run's key (torchyard/pods/seal.py).
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from uuid import UUID

from pydantic import Field

from torchyard.common.json_text import parse_json
from torchyard.diagnosis.pod_facts import RUN_LABEL, get_mapping, parse_timestamp, to_number, to_text
from torchyard.model.base import FrozenModel
from torchyard.model.profile import Profile
from torchyard.model.resolved import ResolvedProfile
from torchyard.model.run import End, Outcome, Run
from torchyard.pods import seal
from torchyard.pods.template import ATTEMPT_KEY, attempt_labels

LEASE_API = "coordination.k8s.io/v1"
LEASE_KIND = "Lease"
_FLOW_RUN_ANNOTATION = "torchyard/flow-run"
SUBMITTED_ANNOTATION = "torchyard/submitted"
OUTCOME_ANNOTATION = "torchyard/outcome"
ENDING_ANNOTATION = "torchyard/ending"
HANDED_OVER_ANNOTATION = "torchyard/handed-over-by"  # the holder that has left the run to its next process
SEAL_ANNOTATION = "torchyard/seal"  # of the Lease itself: its writer has the key of the flow run that it names
USER_ANNOTATION = "torchyard/user"  # who started the launcher, for people
LAUNCHER_ANNOTATION = "torchyard/launcher"  # such as volcano, likewise
MAX_ATTEMPT = 9999
MAX_TEXT_CHARS = 100_000  # of one annotation: Kubernetes allows 256 KiB for all of an object's
_MAX_HOLDER_CHARS = 1000
_MAX_DURATION_S = 366 * 86400
_MAX_AHEAD_S = 600.0  # how far in the future a renewal may lie: clocks differ
LeaseObject = Mapping[str, Any]
Model = TypeVar("Model", bound=FrozenModel)


class RecordedEnding(FrozenModel):
    """How a run is about to end, recorded before its teardown."""

    end: End
    sentence: str = Field(max_length=MAX_TEXT_CHARS)


def _build_lease(profile: Profile, run: Run) -> dict[str, Any]:
    """The Lease before any process holds it."""
    name = run.name(profile)
    annotations = {_FLOW_RUN_ANNOTATION: run.id, ATTEMPT_KEY: str(run.attempt)}
    return {
        "apiVersion": LEASE_API,
        "kind": LEASE_KIND,
        "metadata": {"name": name, "labels": {RUN_LABEL: name}, "annotations": annotations},
        "spec": {"leaseDurationSeconds": math.ceil(profile.deadlines.lease)},
    }


def build_plan_fields(profile: ResolvedProfile, run: Run) -> dict[str, Any]:
    """The fields of a ManifestPlan that are the same for every kind of job."""
    return {
        "labels": attempt_labels(profile, run),
        "lease": _build_lease(profile, run),
        "force_delete": profile.on_stuck_pod == "force",
        "folder": f"{run.folder}/attempt-{run.attempt}",
        "expect": profile.expect,
        "on_fabric": profile.on_fabric,
        "on_hang": profile.on_hang,
    }


def get_lease_key(lease: LeaseObject) -> str:
    """The key of the run that a Lease belongs to; empty if the run has none or is unknown."""
    run_id = read_flow_run_id(lease)
    return seal.get_run_key(run_id) if run_id else ""


def seal_lease(lease: LeaseObject, namespace: str, secret: str) -> str:
    """The seal that a Lease in this namespace should have; empty without a key."""
    run_id = read_annotation(lease, _FLOW_RUN_ANNOTATION)
    return seal.make_seal(secret, "lease", namespace, read_lease_name(lease), run_id)


def is_sealed_lease(lease: LeaseObject, secret: str) -> bool:
    """Whether a process with the run's key wrote the Lease, for the namespace that it is in."""
    namespace = to_text(get_mapping(lease, "metadata").get("namespace"))
    name = read_lease_name(lease)
    run_id = read_annotation(lease, _FLOW_RUN_ANNOTATION)
    return seal.is_valid_seal(secret, read_annotation(lease, SEAL_ANNOTATION), "lease", namespace, name, run_id)


# --- identity and holder


def owner_reference(lease: LeaseObject) -> dict[str, Any]:
    """The owner reference that deletes an object together with the Lease, and so with the run."""
    metadata = lease["metadata"]
    return {"apiVersion": LEASE_API, "kind": LEASE_KIND, "name": metadata["name"], "uid": metadata["uid"]}


def read_lease_name(lease: LeaseObject) -> str:
    return to_text(get_mapping(lease, "metadata").get("name"))


def read_holder(lease: LeaseObject) -> str:
    """The process that holds the run, or has handed it over, as `host:folder#id`; `nobody` if the Lease names none."""
    holder = to_text(get_mapping(lease, "spec").get("holderIdentity"))
    if is_handed_over(lease):
        holder = read_annotation(lease, HANDED_OVER_ANNOTATION)
    return holder[:_MAX_HOLDER_CHARS] or "nobody"  # bounded for messages: anyone may have written it


def is_handed_over(lease: LeaseObject) -> bool:
    """Whether the holder has left the Lease to the next process of the run."""
    return get_mapping(lease, "spec").get("holderIdentity") == ""


def read_renew_time(lease: LeaseObject) -> str:
    """When the Lease was last renewed, or else created, in the API's format; empty if it has neither."""
    renew_time = get_mapping(lease, "spec").get("renewTime")
    return to_text(renew_time or get_mapping(lease, "metadata").get("creationTimestamp"))


def build_unchanged_test(lease: LeaseObject) -> dict[str, Any]:
    """The JSON patch test that the Lease has not been renewed since it was read."""
    renew_time = get_mapping(lease, "spec").get("renewTime")
    if renew_time:
        return {"op": "test", "path": "/spec/renewTime", "value": renew_time}
    resource_version = get_mapping(lease, "metadata").get("resourceVersion")
    return {"op": "test", "path": "/metadata/resourceVersion", "value": resource_version}


def measure_lease_age(lease: LeaseObject, now: float) -> float | None:
    """Seconds since the Lease was last renewed; None if unknown. `now`: by the API server's clock."""
    renewed_at = parse_timestamp(read_renew_time(lease))
    if renewed_at and now - renewed_at > -_MAX_AHEAD_S:
        return now - renewed_at
    return None


def measure_time_left(lease: LeaseObject, now: float) -> float | None:
    """Seconds until the Lease expires, negative once it has; None if unknown. `now`: by the API server's clock."""
    duration_s = to_number(get_mapping(lease, "spec").get("leaseDurationSeconds"))
    age_s = measure_lease_age(lease, now)
    if age_s is None or not 0 < duration_s <= _MAX_DURATION_S:
        return None
    return duration_s - age_s


# --- annotations


def read_annotation(lease: LeaseObject, key: str) -> str:
    """The text of an annotation; empty if there is none."""
    return to_text(get_mapping(lease, "metadata", "annotations").get(key))


def read_flow_run_id(lease: LeaseObject) -> str:
    """The id of the flow run; empty if there is none, or if it does not match the run's name."""
    run_id = read_annotation(lease, _FLOW_RUN_ANNOTATION)
    try:
        is_normalized = str(UUID(run_id)) == run_id
        suffix = f"-{Run(id=run_id, attempt=1, folder='').short}"
    except ValueError:
        return ""
    return run_id if is_normalized and read_lease_name(lease).endswith(suffix) else ""


def read_attempt(lease: LeaseObject) -> int | None:
    """The latest attempt; None if unknown."""
    return _parse_attempt(read_annotation(lease, ATTEMPT_KEY))


def is_submitted(lease: LeaseObject) -> bool:
    """Whether the job of this attempt has been created: if it does not exist now, it was deleted."""
    attempt = read_attempt(lease)
    return attempt is not None and _parse_attempt(read_annotation(lease, SUBMITTED_ANNOTATION)) == attempt


def _parse_attempt(text: str) -> int | None:
    """The number of an attempt; None if the text is not a number from 1 to MAX_ATTEMPT."""
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_ATTEMPT))
    return int(text) if is_number and int(text) > 0 else None


def seal_outcome(run: str, attempt: str, outcome: Outcome, secret: str) -> str:
    """An outcome with its seal, as JSON; if it would be too long, without the fields that resuming does not need."""
    text = _build_sealed_text(run, attempt, "outcome", outcome.model_dump(mode="json"), secret)
    if len(text) <= MAX_TEXT_CHARS:
        return text
    failure = outcome.status.failure
    if failure:
        failure = failure.model_copy(update={"tail": (), "line": None})
    status = outcome.status.model_copy(update={"failure": failure})
    brief = outcome.model_copy(update={"status": status, "lost": {}, "machines": {}, "hang": None, "straggler": None})
    return _build_sealed_text(run, attempt, "outcome", brief.model_dump(mode="json"), secret)


def seal_ending(run: str, attempt: str, ending: RecordedEnding, secret: str) -> str:
    """An ending with its seal, as JSON."""
    return _build_sealed_text(run, attempt, "ending", ending.model_dump(mode="json"), secret)


def read_outcome(lease: LeaseObject, secret: str) -> Outcome | None:
    """How the job of this attempt ended; None if no launcher of the run has recorded it."""
    return _read_sealed(lease, OUTCOME_ANNOTATION, Outcome, secret)


def read_ending(lease: LeaseObject, secret: str) -> RecordedEnding | None:
    """How the run is about to end; None if no launcher of the run has recorded that it ends."""
    return _read_sealed(lease, ENDING_ANNOTATION, RecordedEnding, secret)


def is_marked_as_ending(lease: LeaseObject) -> bool:
    """Whether the Lease has a record that its attempt or its run ends. Anyone may have written it: only for display."""
    attempt = str(read_attempt(lease))
    records = [_parse_json(read_annotation(lease, key)) for key in (OUTCOME_ANNOTATION, ENDING_ANNOTATION)]
    return any(record.get("attempt") == attempt for record in records)


def _build_sealed_text(run: str, attempt: str, field: str, body: Any, secret: str) -> str:
    """The body as JSON under the key `field`, with the attempt and a seal of all of it and of the run's name."""
    sealed = {"attempt": attempt, field: body, "seal": seal.make_seal(secret, run, attempt, field, body)}
    return json.dumps(sealed)


def _read_sealed(lease: LeaseObject, key: str, model: type[Model], secret: str) -> Model | None:
    """A launcher's record about the current attempt; None if the annotation is missing, malformed or not sealed."""
    field = key.rpartition("/")[2]
    attempt = str(read_attempt(lease))  # a record about another attempt does not count
    data = _parse_json(read_annotation(lease, key))
    try:
        is_valid = seal.is_valid_seal(secret, data.get("seal"), read_lease_name(lease), attempt, field, data.get(field))
        return model.model_validate(data[field]) if is_valid and data.get("attempt") == attempt else None
    except ValueError:
        return None


def _parse_json(text: str) -> Mapping[str, Any]:
    """The mapping that an annotation holds as JSON; empty if it holds none."""
    if len(text) > 2 * MAX_TEXT_CHARS:
        return {}
    try:
        return get_mapping(parse_json(text))
    except ValueError:
        return {}


# --- faults


def list_lease_faults(lease: LeaseObject, now: float) -> list[str]:
    """Why a Lease proves nothing about the run whose name it has; empty if it can be used."""
    return list(_find_faults(lease, now))


def _find_faults(lease: LeaseObject, now: float) -> Iterator[str]:
    metadata = get_mapping(lease, "metadata")
    label = to_text(get_mapping(metadata, "labels").get(RUN_LABEL))
    if label != read_lease_name(lease):
        yield f"its label {RUN_LABEL} is {label[:80]!r}, and not its own name"
    if not to_text(metadata.get("uid")):
        yield "it has no uid"
    if not get_mapping(lease, "spec").get("renewTime") or measure_lease_age(lease, now) is None:
        yield f"renewTime is {read_renew_time(lease)[:80]!r}: it must be a time that is not in the future"
    elif measure_time_left(lease, now) is None:
        yield f"leaseDurationSeconds must be 1 to {_MAX_DURATION_S}"
    if not read_flow_run_id(lease):
        run_id = read_annotation(lease, _FLOW_RUN_ANNOTATION)[:80]
        yield f"{_FLOW_RUN_ANNOTATION} is {run_id!r}: it must be the id of a flow run whose last 8 digits end the name"
    if read_attempt(lease) is None:
        attempt = read_annotation(lease, ATTEMPT_KEY)[:80]
        yield f"{ATTEMPT_KEY} is {attempt!r}: it must be a number from 1 to {MAX_ATTEMPT}"
