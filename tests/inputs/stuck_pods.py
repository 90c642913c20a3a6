"""Jobs whose pods do not start, and the reasons: generated pods and events at one moment."""

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


def format_time(ago_s: float) -> str:
    return datetime.fromtimestamp(NOW - ago_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def build_pod(phase: str = "Pending", **condition: Any) -> dict[str, Any]:
    conditions = [{"lastTransitionTime": format_time(30)} | condition] if condition else []
    status = {"phase": phase, "conditions": conditions}
    return {"metadata": {"uid": "u"}, "spec": {"nodeName": "n-1"}, "status": status}


def build_unschedulable_pod(message: str = "0/9 nodes are available", reason: str = "Unschedulable") -> dict[str, Any]:
    return build_pod(type="PodScheduled", status="False", reason=reason, message=message)


def build_pod_event(plan: ManifestPlan, reason: str, message: str, ago: float = 10) -> dict[str, Any]:
    """An event about a pod, first seen `ago` seconds ago and last seen just now."""
    involved_object = {"kind": "Pod", "name": f"{plan.job}-worker-0", "uid": "u"}
    times = {"firstTimestamp": format_time(ago), "lastTimestamp": format_time(1)}
    return {"involvedObject": involved_object, "reason": reason, "message": message} | times


def build_job_event(plan: ManifestPlan, reason: str, message: str) -> dict[str, Any]:
    """An event about the job or its PodGroup, first seen 100 seconds ago."""
    return build_pod_event(plan, reason, message, 100) | {"involvedObject": {"kind": "Job", "name": plan.job}}


def explain(plan: ManifestPlan, context: ClusterContext | None = None, **pods: Mapping[str, Any]) -> Diagnosis | None:
    """Why a job with these pods makes no progress; None if that is normal. `worker_0=` is the pod worker-0."""
    job = {"status": {"state": {"phase": "Pending"}}}
    states: dict[str, Mapping[str, Any]] = {f"Job/{plan.job}": job, "PodGroup/g": {}}
    for name, pod in pods.items():
        states[f"Pod/{name.replace('_', '-')}"] = pod
    return explain_no_progress(plan, Observation(states, frozenset(), NOW), context or ClusterContext())


def summarize(diagnosis: Diagnosis | None) -> tuple[str, str, bool]:
    assert diagnosis
    assert diagnosis.failure
    assert diagnosis.failure.sentence == diagnosis.sentence
    return diagnosis.failure.cause, diagnosis.failure.sentence, diagnosis.failure.retry


class CountedPod(dict[str, Any]):
    """A pod that counts how often its keys are read."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.reads = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.reads += 1
        return super().get(key, default)


def build_stalled_job(plan: ManifestPlan, warnings: int) -> tuple[Observation, ClusterContext, list[CountedPod]]:
    """A job whose pods do not start because a volume is missing."""
    suffix = "-x2x4z" if plan.has_random_suffix else ""
    names = [f"{plan.job}-{node}{suffix}" for node in plan.nodes]
    pods = [CountedPod({"metadata": {"uid": name}, "status": {"phase": "Pending"}}) for name in names]
    states = {f"Pod/{node}": pod for node, pod in zip(plan.nodes, pods, strict=True)}
    involved_objects = ({"kind": "Pod", "name": name, "uid": name} for _ in range(warnings) for name in names)
    warning = {
        "reason": "FailedMount",
        "message": NOT_FOUND,
        "firstTimestamp": format_time(9),
        "lastTimestamp": format_time(1),
    }
    events = [warning | {"involvedObject": involved_object} for involved_object in involved_objects]
    return Observation(states, frozenset(), NOW), ClusterContext(events), pods
