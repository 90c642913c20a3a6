"""Jobs whose pods do not start, and why: made-up pods and events at one moment."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from torchyard.diagnosis.no_progress import ClusterContext, Diagnosis, explain_no_progress
from torchyard.model.plan import ManifestPlan
from torchyard.model.run import Observation

NOW = 1_700_000_000.0
PODS = 50
READS = 25  # of one pod, at most: a few for each possible explanation
KINDS = {"volcano": "Job", "jobset": "JobSet"}
NOT_FOUND = 'MountVolume.SetUp failed for volume "a" : secret "a" not found'


def stamp(ago: float) -> str:
    return datetime.fromtimestamp(NOW - ago, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(phase: str = "Pending", **condition: Any) -> dict[str, Any]:
    status = {"phase": phase, "conditions": [{"lastTransitionTime": stamp(30), **condition}] if condition else []}
    return {"metadata": {"uid": "u"}, "spec": {"nodeName": "n-1"}, "status": status}


def unplaced(message: str = "0/9 nodes are available", reason: str = "Unschedulable") -> dict[str, Any]:
    return pod(type="PodScheduled", status="False", reason=reason, message=message)


def event(plan: ManifestPlan, reason: str, message: str, ago: float = 10) -> dict[str, Any]:
    """An event about a pod, first seen `ago` seconds ago and last seen just now."""
    thing = {"kind": "Pod", "name": f"{plan.job}-worker-0", "uid": "u"}
    times = {"firstTimestamp": stamp(ago), "lastTimestamp": stamp(1)}
    return {"involvedObject": thing, "reason": reason, "message": message, **times}


def of_job(plan: ManifestPlan, reason: str, message: str) -> dict[str, Any]:
    """An event about the job or its PodGroup, first seen 100 seconds ago."""
    return {**event(plan, reason, message, 100), "involvedObject": {"kind": "Job", "name": plan.job}}


def why(plan: ManifestPlan, around: ClusterContext = ClusterContext(), **pods: Mapping[str, Any]) -> Diagnosis | None:  # noqa: B008
    """Why a job with these pods makes no progress; `worker_0` is a pod's name."""
    seen: dict[str, Mapping[str, Any]] = {f"Pod/{name.replace('_', '-')}": each for name, each in pods.items()}
    job = {"status": {"state": {"phase": "Pending"}}}
    return explain_no_progress(
        plan, Observation({f"Job/{plan.job}": job, "PodGroup/g": {}, **seen}, frozenset(), NOW), around
    )


def told(found: Diagnosis | None) -> tuple[str, str, bool]:
    assert found
    return found.failure.cause, found.failure.sentence, found.failure.retry


class Counted(dict[str, Any]):
    """A pod that counts how often it is read."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.reads = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.reads += 1
        return super().get(key, default)


def standing(plan: ManifestPlan, warnings: int) -> tuple[Observation, ClusterContext, list[Counted]]:
    """A job whose pods do not start because a volume is missing."""
    names = [f"{plan.job}-{node}{'-x2x4z' if plan.has_random_suffix else ''}" for node in plan.nodes]
    pods = [Counted({"metadata": {"uid": name}, "status": {"phase": "Pending"}}) for name in names]
    seen = {f"Pod/{node}": pod for node, pod in zip(plan.nodes, pods, strict=True)}
    things = ({"kind": "Pod", "name": name, "uid": name} for _ in range(warnings) for name in names)
    told = {"reason": "FailedMount", "message": NOT_FOUND, "firstTimestamp": stamp(9), "lastTimestamp": stamp(1)}
    events = [{**told, "involvedObject": thing} for thing in things]
    return Observation(seen, frozenset(), NOW), ClusterContext(events), pods
