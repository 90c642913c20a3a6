"""The Lease of a run in a cluster, as a plain object: how it is written and read.

There is one per run. It is renewed while a process watches the run, it owns every object that the run creates, and it
holds what a process on another machine needs to go on: the attempt, whether its job was submitted, how that job ended,
and how the run is about to end.

Others can write to it as well, so its content is bounded and validated here, and nothing here raises: a malformed value
counts as unknown. How a job or a run ends counts only with the seal of the run's key (torchyard/pods/seal.py).
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from uuid import UUID

from pydantic import Field

from torchyard.diagnosis.pod_facts import get_mapping, parse_timestamp, to_number, to_text
from torchyard.model.base import FrozenModel
from torchyard.model.profile import Profile
from torchyard.model.run import End, Outcome, Run
from torchyard.pods import seal
from torchyard.pods.template import ATTEMPT_KEY, RUN_LABEL, attempt_labels

LEASE_API, LEASE_KIND = "coordination.k8s.io/v1", "Lease"
_FLOW_RUN_ANNOTATION, SUBMITTED_ANNOTATION, OUTCOME_ANNOTATION, ENDING_ANNOTATION = (
    f"torchyard/{key}" for key in ("flow-run", "submitted", "outcome", "ending")
)
HANDED_OVER_ANNOTATION = "torchyard/handed-over-by"  # the holder that has left the run to its next process
SEAL_ANNOTATION = "torchyard/seal"  # of the Lease itself: its writer has the key of the flow run that it names
MAX_ATTEMPT, _MAX_DURATION_S, MAX_TEXT_CHARS, _MAX_HOLDER_CHARS = 9999, 366 * 86400, 100_000, 1000
_MAX_AHEAD_S = 600.0  # how far in the future a renewal may lie
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


def build_plan_fields(profile: Profile, run: Run) -> dict[str, Any]:
    """The fields of any job's plan that come from its run."""
    return {
        "job": run.job(profile),
        "labels": attempt_labels(profile, run),
        "lease": _build_lease(profile, run),
        "force_delete": profile.on_stuck_pod == "force",
        "folder": f"{run.folder}/attempt-{run.attempt}",
        "expect": profile.network.expect if profile.network else None,
        "on_fabric": profile.on_fabric,
        "on_hang": profile.on_hang,
    }


def get_lease_key(lease: LeaseObject) -> str:
    """The key of the run that a Lease belongs to."""
    run_id = read_flow_run_id(lease)
    return seal.get_run_key(run_id) if run_id else ""


def seal_lease(lease: LeaseObject, namespace: str, secret: str) -> str:
    """The seal that a Lease in this namespace should have."""
    return seal.make_seal(
        secret, "lease", namespace, read_lease_name(lease), read_annotation(lease, _FLOW_RUN_ANNOTATION)
    )


def is_sealed_lease(lease: LeaseObject, secret: str) -> bool:
    """Whether a process with the run's key wrote the Lease, for the namespace that it is in."""
    namespace = to_text(get_mapping(lease, "metadata").get("namespace"))
    return seal.is_valid_seal(
        secret,
        read_annotation(lease, SEAL_ANNOTATION),
        "lease",
        namespace,
        read_lease_name(lease),
        read_annotation(lease, _FLOW_RUN_ANNOTATION),
    )


# --- what it is, and who holds it


def owner_reference(lease: LeaseObject) -> dict[str, Any]:
    """The owner reference that deletes an object together with the Lease, and so with the run."""
    return {"apiVersion": LEASE_API, "kind": LEASE_KIND, **{key: lease["metadata"][key] for key in ("name", "uid")}}


def read_lease_name(lease: LeaseObject) -> str:
    return to_text(get_mapping(lease, "metadata").get("name"))


def read_holder(lease: LeaseObject) -> str:
    """The process that holds the run, or has handed it over, as `host:folder#id`; `nobody` if the Lease names none."""
    previous_holder = read_annotation(lease, HANDED_OVER_ANNOTATION) if is_handed_over(lease) else ""
    return (to_text(get_mapping(lease, "spec").get("holderIdentity")) or previous_holder)[
        :_MAX_HOLDER_CHARS
    ] or "nobody"


def is_handed_over(lease: LeaseObject) -> bool:
    """Whether its holder has left it to the next process of the run."""
    return get_mapping(lease, "spec").get("holderIdentity") == ""


def read_renew_time(lease: LeaseObject) -> str:
    """When it was last renewed, in the API's format; when it was created, if it never was."""
    return to_text(
        get_mapping(lease, "spec").get("renewTime") or get_mapping(lease, "metadata").get("creationTimestamp")
    )


def build_unchanged_test(lease: LeaseObject) -> dict[str, Any]:
    """The JSON patch test that the Lease has not been renewed since it was read."""
    renew_time = get_mapping(lease, "spec").get("renewTime")
    path = "/spec/renewTime" if renew_time else "/metadata/resourceVersion"
    return {"op": "test", "path": path, "value": renew_time or get_mapping(lease, "metadata").get("resourceVersion")}


def measure_lease_age(lease: LeaseObject, now: float) -> float | None:
    """Seconds since it was last renewed, by the API server's clock; None if unknown."""
    renewed_at = parse_timestamp(read_renew_time(lease))
    return now - renewed_at if renewed_at and now - renewed_at > -_MAX_AHEAD_S else None


def measure_time_left(lease: LeaseObject, now: float) -> float | None:
    """Seconds until it expires, negative once it has; None if unknown."""
    duration_s, age_s = to_number(get_mapping(lease, "spec").get("leaseDurationSeconds")), measure_lease_age(lease, now)
    return duration_s - age_s if age_s is not None and 0 < duration_s <= _MAX_DURATION_S else None


# --- what it says


def read_annotation(lease: LeaseObject, key: str) -> str:
    return to_text(get_mapping(lease, "metadata", "annotations").get(key))


def read_flow_run_id(lease: LeaseObject) -> str:
    """The id of the flow run; empty if there is none, or if it does not match the run's name."""
    run_id = read_annotation(lease, _FLOW_RUN_ANNOTATION)
    try:
        is_valid = str(UUID(run_id)) == run_id and read_lease_name(lease).endswith(
            f"-{Run(id=run_id, attempt=1, folder='').short}"
        )
    except ValueError:
        return ""
    return run_id if is_valid else ""


def read_attempt(lease: LeaseObject) -> int | None:
    """The latest attempt; None if unknown."""
    return _parse_attempt(read_annotation(lease, ATTEMPT_KEY))


def is_submitted(lease: LeaseObject) -> bool:
    """Whether the job of this attempt has been created: if it does not exist now, it was deleted."""
    return read_attempt(lease) is not None and _parse_attempt(
        read_annotation(lease, SUBMITTED_ANNOTATION)
    ) == read_attempt(lease)


def _parse_attempt(text: str) -> int | None:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(MAX_ATTEMPT))
    return int(text) if is_number and int(text) > 0 else None


def seal_outcome(run: str, attempt: str, outcome: Outcome, secret: str) -> str:
    """An outcome with its seal; if it would be too long, without the parts that are not needed to go on."""
    text = _build_sealed_text(secret, (run, attempt, "outcome"), outcome.model_dump(mode="json"))
    if len(text) <= MAX_TEXT_CHARS:
        return text
    failure = outcome.status.failure and outcome.status.failure.model_copy(update={"tail": (), "line": None})
    status = outcome.status.model_copy(update={"failure": failure})
    brief = outcome.model_copy(update={"status": status, "lost": {}, "machines": {}, "hang": None, "straggler": None})
    return _build_sealed_text(secret, (run, attempt, "outcome"), brief.model_dump(mode="json"))


def seal_ending(run: str, attempt: str, ending: RecordedEnding, secret: str) -> str:
    return _build_sealed_text(secret, (run, attempt, "ending"), ending.model_dump(mode="json"))


def read_outcome(lease: LeaseObject, secret: str) -> Outcome | None:
    """How the job of this attempt ended, if a launcher of the run has recorded it."""
    return _read_sealed(lease, OUTCOME_ANNOTATION, Outcome, secret)


def read_ending(lease: LeaseObject, secret: str) -> RecordedEnding | None:
    """How the run is about to end, if a launcher of the run has recorded it; None while it goes on."""
    return _read_sealed(lease, ENDING_ANNOTATION, RecordedEnding, secret)


def _build_sealed_text(secret: str, subject: tuple[str, str, str], body: Any) -> str:
    return json.dumps({"attempt": subject[1], subject[2]: body, "seal": seal.make_seal(secret, *subject, body)})


def _read_sealed(lease: LeaseObject, key: str, model: type[Model], secret: str) -> Model | None:
    """What a launcher wrote about the current attempt; None for anything else."""
    field, attempt = key.rpartition("/")[2], str(read_attempt(lease))
    data = _parse_json(read_annotation(lease, key))
    try:
        is_valid = seal.is_valid_seal(secret, data.get("seal"), read_lease_name(lease), attempt, field, data.get(field))
        return model.model_validate(data[field]) if is_valid and data.get("attempt") == attempt else None
    except (ValueError, RecursionError):
        return None


def _parse_json(text: str) -> Mapping[str, Any]:
    """The mapping in an annotation; empty if it holds none."""
    try:
        return get_mapping(json.loads(text)) if len(text) <= 2 * MAX_TEXT_CHARS else {}
    except (ValueError, RecursionError):
        return {}


# --- what is wrong with it


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
        yield f"renewTime is {read_renew_time(lease)[:80]!r}: a time is needed that is not in the future"
    elif measure_time_left(lease, now) is None:
        yield f"leaseDurationSeconds is not 1 to {_MAX_DURATION_S}"
    if not read_flow_run_id(lease):
        run_id = read_annotation(lease, _FLOW_RUN_ANNOTATION)[:80]
        yield f"{_FLOW_RUN_ANNOTATION} is {run_id!r}: the id of a flow run is needed whose last 8 digits end the name"
    if read_attempt(lease) is None:
        attempt = read_annotation(lease, ATTEMPT_KEY)[:80]
        yield f"{ATTEMPT_KEY} is {attempt!r}: a number from 1 to {MAX_ATTEMPT} is needed"
