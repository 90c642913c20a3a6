"""The Lease of a run in a cluster, as a plain object: what is written on it, and what it says.

One a run. It is renewed while somebody looks after the run, is the owner of all that the run makes, and holds what a
process on another machine must know to go on: the attempt, whether its job was submitted, how that ended, and the end
that the run is coming to.
"""

import json
import math
import time
from collections.abc import Mapping
from typing import Any

from tasks.launchers._pod import ATTEMPT, RUN, labels
from tasks.launchers._pod_facts import part, seconds
from tasks.model import Outcome, Run
from tasks.spec import Profile

API, KIND = "coordination.k8s.io/v1", "Lease"
FLOW_RUN, SUBMITTED, OUTCOME, ENDING = (f"torchyard/{key}" for key in ("flow-run", "submitted", "outcome", "ending"))
Lease = Mapping[str, Any]


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


def owner(lease: Lease) -> dict[str, Any]:
    """What makes an object go with the Lease, and so with the run."""
    return {"apiVersion": API, "kind": KIND, **{key: lease["metadata"][key] for key in ("name", "uid")}}


def holder(lease: Lease) -> str:
    """`host:folder`, where the run is carried."""
    return str(part(lease, "spec").get("holderIdentity") or "nobody")


def renewed(lease: Lease) -> str:
    """When it was renewed last, as the API has it."""
    return str(part(lease, "spec").get("renewTime") or part(lease, "metadata").get("creationTimestamp") or "")


def age(lease: Lease) -> float:
    """Seconds since it was renewed last."""
    return time.time() - seconds(renewed(lease))


def left(lease: Lease) -> float:
    """Seconds until it runs out; negative once it has."""
    return float(part(lease, "spec").get("leaseDurationSeconds") or 0) - age(lease)


def said(lease: Lease, key: str) -> str:
    return str(part(lease, "metadata", "annotations").get(key) or "")


def attempt(lease: Lease) -> int:
    return int(said(lease, ATTEMPT) or 1)


def submitted(lease: Lease) -> bool:
    """Whether the job of this attempt has been made: where it is not there now, somebody has deleted it."""
    return said(lease, SUBMITTED) == str(attempt(lease))


def write_outcome(attempt: str, outcome: Outcome) -> str:
    return json.dumps({"attempt": attempt, "outcome": outcome.model_dump(mode="json")})


def outcome(lease: Lease) -> Outcome | None:
    """How the job of this attempt ended, where a process has seen that."""
    told = json.loads(said(lease, OUTCOME) or "{}")
    return Outcome.model_validate(told["outcome"]) if told.get("attempt") == str(attempt(lease)) else None


def ending(lease: Lease) -> dict[str, str]:
    """The end that the run is coming to, and its sentence; empty while it goes on."""
    found: dict[str, str] = json.loads(said(lease, ENDING) or "{}")
    return found
