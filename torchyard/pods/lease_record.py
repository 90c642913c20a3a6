"""The Lease of a run in a cluster, as a plain object: what is written on it, and what it says.

One a run. It is renewed while somebody looks after the run, is the owner of all that the run makes, and holds what a
process on another machine must know to go on: the attempt, whether its job was submitted, how that ended, and the end
that the run is coming to.

Others can write on it as well, so whatever it says is bounded and validated here, and nothing here raises: what is
malformed is unknown. How a job or a run ends counts only with the seal of the run's key (torchyard/pods/seal.py).
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar
from uuid import UUID

from pydantic import Field

from torchyard.diagnosis.pod_facts import number, part, seconds, text
from torchyard.model.base import Noun
from torchyard.model.profile import Profile
from torchyard.model.run import End, Outcome, Run
from torchyard.pods import seal
from torchyard.pods.template import ATTEMPT, RUN, labels

API, KIND = "coordination.k8s.io/v1", "Lease"
FLOW_RUN, SUBMITTED, OUTCOME, ENDING = (f"torchyard/{key}" for key in ("flow-run", "submitted", "outcome", "ending"))
SEAL = "torchyard/seal"  # of the Lease itself: who wrote it has the key of the flow run that it names
MAX_ATTEMPT, MAX_DURATION_S, MAX_CHARS, MAX_HOLDER_CHARS = 9999, 366 * 86400, 100_000, 1000
MAX_AHEAD_S = 600.0  # that a renewal may lie in the future
Lease = Mapping[str, Any]
N = TypeVar("N", bound=Noun)


class Ending(Noun):
    """The end that a run is coming to."""

    end: End
    sentence: str = Field(max_length=MAX_CHARS)


def lease(profile: Profile, run: Run) -> dict[str, Any]:
    """The Lease before anybody holds it."""
    name = run.name(profile)
    told = {FLOW_RUN: run.id, ATTEMPT: str(run.attempt)}
    return {
        "apiVersion": API,
        "kind": KIND,
        "metadata": {"name": name, "labels": {RUN: name}, "annotations": told},
        "spec": {"leaseDurationSeconds": math.ceil(profile.deadlines.lease)},
    }


def of_run(profile: Profile, run: Run) -> dict[str, Any]:
    """What the plan of any job has of its run."""
    return {
        "job": run.job(profile),
        "labels": labels(profile, run),
        "lease": lease(profile, run),
        "force": profile.on_stuck_pod == "force",
        "folder": f"{run.folder}/attempt-{run.attempt}",
    }


def key_of(lease: Lease) -> str:
    """The key of the run that a Lease is made for."""
    run_id = flow_run(lease)
    return seal.key(run_id) if run_id else ""


def sealed(lease: Lease, namespace: str, secret: str) -> str:
    """The seal that a Lease in this namespace should have."""
    return seal.seal(secret, "lease", namespace, name(lease), said(lease, FLOW_RUN))


def is_sealed(lease: Lease, secret: str) -> bool:
    """Whether somebody with the run's key wrote the Lease, for the namespace that it is in."""
    namespace = text(part(lease, "metadata").get("namespace"))
    return seal.fits(secret, said(lease, SEAL), "lease", namespace, name(lease), said(lease, FLOW_RUN))


# --- what it is, and who holds it


def owner(lease: Lease) -> dict[str, Any]:
    """What makes an object go with the Lease, and so with the run."""
    return {"apiVersion": API, "kind": KIND, **{key: lease["metadata"][key] for key in ("name", "uid")}}


def name(lease: Lease) -> str:
    return text(part(lease, "metadata").get("name"))


def holder(lease: Lease) -> str:
    """`host:folder`, where the run is carried."""
    return text(part(lease, "spec").get("holderIdentity"))[:MAX_HOLDER_CHARS] or "nobody"


def renewed(lease: Lease) -> str:
    """When it was renewed last, as the API has it; when it was made, where nobody ever did."""
    return text(part(lease, "spec").get("renewTime") or part(lease, "metadata").get("creationTimestamp"))


def unchanged(lease: Lease) -> dict[str, Any]:
    """The test of a JSON patch that nobody has renewed it since."""
    at = part(lease, "spec").get("renewTime")
    path = "/spec/renewTime" if at else "/metadata/resourceVersion"
    return {"op": "test", "path": path, "value": at or part(lease, "metadata").get("resourceVersion")}


def age(lease: Lease, now: float) -> float | None:
    """Seconds since it was renewed last, by the API server's clock; None where that is unknown."""
    at = seconds(renewed(lease))
    return now - at if at and now - at > -MAX_AHEAD_S else None


def left(lease: Lease, now: float) -> float | None:
    """Seconds until it runs out, negative once it has; None where that is unknown."""
    lasts, since = number(part(lease, "spec").get("leaseDurationSeconds")), age(lease, now)
    return lasts - since if since is not None and 0 < lasts <= MAX_DURATION_S else None


# --- what it says


def said(lease: Lease, key: str) -> str:
    return text(part(lease, "metadata", "annotations").get(key))


def flow_run(lease: Lease) -> str:
    """The id of the flow run; empty where there is none that fits the run's name."""
    found = said(lease, FLOW_RUN)
    try:
        fits = str(UUID(found)) == found and name(lease).endswith(f"-{Run(id=found, attempt=1, folder='').short}")
    except ValueError:
        return ""
    return found if fits else ""


def attempt(lease: Lease) -> int | None:
    """The latest attempt; None where that is unknown."""
    return _whole(said(lease, ATTEMPT))


def submitted(lease: Lease) -> bool:
    """Whether the job of this attempt has been made: where it is not there now, somebody has deleted it."""
    return attempt(lease) is not None and _whole(said(lease, SUBMITTED)) == attempt(lease)


def _whole(found: str) -> int | None:
    fits = found.isascii() and found.isdigit() and len(found) <= len(str(MAX_ATTEMPT))
    return int(found) if fits and int(found) > 0 else None


def write_outcome(run: str, attempt: str, outcome: Outcome, secret: str) -> str:
    """An outcome with its seal; what is not needed to go on is left out where it would be too long."""
    text = _sealed_text(secret, (run, attempt, "outcome"), outcome.model_dump(mode="json"))
    if len(text) <= MAX_CHARS:
        return text
    failure = outcome.status.failure and outcome.status.failure.model_copy(update={"tail": (), "line": None})
    status = outcome.status.model_copy(update={"failure": failure})
    brief = outcome.model_copy(update={"status": status, "lost": {}, "machines": {}})
    return _sealed_text(secret, (run, attempt, "outcome"), brief.model_dump(mode="json"))


def write_ending(run: str, attempt: str, ending: Ending, secret: str) -> str:
    return _sealed_text(secret, (run, attempt, "ending"), ending.model_dump(mode="json"))


def outcome(lease: Lease, secret: str) -> Outcome | None:
    """How the job of this attempt ended, where a launcher of the run has seen that."""
    return _read_sealed(lease, OUTCOME, Outcome, secret)


def ending(lease: Lease, secret: str) -> Ending | None:
    """The end that the run is coming to, by a launcher's word; None while it goes on."""
    return _read_sealed(lease, ENDING, Ending, secret)


def _sealed_text(secret: str, about: tuple[str, str, str], body: Any) -> str:
    return json.dumps({"attempt": about[1], about[2]: body, "seal": seal.seal(secret, *about, body)})


def _read_sealed(lease: Lease, key: str, kind: type[N], secret: str) -> N | None:
    """What a launcher wrote of the attempt that goes on; None for everything else."""
    what, now = key.rpartition("/")[2], str(attempt(lease))
    found = _read_json(said(lease, key))
    try:
        fits = seal.fits(secret, found.get("seal"), name(lease), now, what, found.get(what))
        return kind.model_validate(found[what]) if fits and found.get("attempt") == now else None
    except (ValueError, RecursionError):
        return None


def _read_json(written: str) -> Mapping[str, Any]:
    """An annotation's mapping; empty for whatever is none."""
    try:
        return part(json.loads(written)) if len(written) <= 2 * MAX_CHARS else {}
    except (ValueError, RecursionError):
        return {}


# --- what is wrong with it


def faults(lease: Lease, now: float) -> list[str]:
    """Why nothing can be concluded from a Lease about the run that it is called like."""
    return list(_find_faults(lease, now))


def _find_faults(lease: Lease, now: float) -> Iterator[str]:
    about = part(lease, "metadata")
    label = text(part(about, "labels").get(RUN))
    if label != name(lease):
        yield f"its label {RUN} is {label[:80]!r}, and not its own name"
    if not text(about.get("uid")):
        yield "it has no uid"
    if not part(lease, "spec").get("renewTime") or age(lease, now) is None:
        yield f"renewTime is {renewed(lease)[:80]!r}: a time is needed that is not in the future"
    elif left(lease, now) is None:
        yield f"leaseDurationSeconds is not 1 to {MAX_DURATION_S}"
    if not flow_run(lease):
        found = said(lease, FLOW_RUN)[:80]
        yield f"{FLOW_RUN} is {found!r}: the id of a flow run is needed whose last 8 digits end the name"
    if attempt(lease) is None:
        yield f"{ATTEMPT} is {said(lease, ATTEMPT)[:80]!r}: a number from 1 to {MAX_ATTEMPT} is needed"
