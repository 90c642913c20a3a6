"""Observations that prove nothing: absent, unknown and malformed states of a job's processes and objects."""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

from torchyard.model.plan import CommandPlan, ManifestPlan, Plan
from torchyard.model.run import Observation

_OBSERVED_AT = 1_800_000_000.0
# JSON values that are wrong in a status: of a wrong type, or out of range.
JUNK: tuple[Any, ...] = (
    None,
    "",
    "x",
    "1",
    "Failed",
    "Running",
    "2023-13-45T99:00:00Z",
    "0001-01-01T00:00:00+14:00",
    0,
    -1,
    10**30,
    1.5,
    True,
    [],
    [None],
    ["x", 7],
    [[]],
    {},
    {"x": None},
    {"status": "x"},
    [{"status": []}, {"name": {}}],
)
_UNKNOWN_PHASES = ("Unknown", "Tbd", "", "succeeding", "EXITED?")


class SampleObservation(NamedTuple):
    """An observation, and what it shows, as text for a message."""

    description: str
    observed: Observation


def list_empty_observations(plan: Plan) -> Iterator[SampleObservation]:
    """Nothing was observed, or only that the parts of the job exist.

    On machines an observation has each process from the start, with an empty state until its first report.
    """
    if isinstance(plan, ManifestPlan):
        yield _observe("nothing observed", {})
    yield _observe("parts without a status", dict(_list_parts(plan)))


def list_unknown_observations(plan: Plan) -> Iterator[SampleObservation]:
    """Yield observations in which every part of the job has a phase that no launcher can know."""
    for phase in _UNKNOWN_PHASES:
        states: dict[str, Any] = {}
        for key, obj in _list_parts(plan):
            states[key] = obj | {"phase": phase, "status": {"phase": phase, "state": {"phase": phase}}}
        yield _observe(f"the unknown phase {phase!r}", states)


def list_malformed_observations(plan: Plan) -> Iterator[SampleObservation]:
    """Yield observations in which a part of the job, or a field of it, has a value of another type."""
    parts = list(_list_parts(plan))
    for junk in JUNK:
        yield _observe(f"states that are {junk!r}", {key: junk for key, _ in parts})
        for field in ("metadata", "status", "spec", "phase", "exit"):
            yield _observe(f"{field}: {junk!r}", {key: obj | {field: junk} for key, obj in parts})
        for field in ("phase", "state", "conditions", "containerStatuses", "replicaStatuses"):
            yield _observe(f"status.{field}: {junk!r}", {key: obj | {"status": {field: junk}} for key, obj in parts})


def _observe(description: str, states: dict[str, Any]) -> SampleObservation:
    # Copied, so that a launcher that changes an observation does not change the next ones.
    return SampleObservation(description, Observation(copy.deepcopy(states), frozenset(), _OBSERVED_AT))


def _list_parts(plan: Plan) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each process, or each object and pod, by its key in an observation; without a status."""
    if isinstance(plan, CommandPlan):
        for process in plan.all_processes:
            yield process.name, {}
        return
    for obj in (plan.main, plan.wrapped):
        if obj is not None:
            yield f"{obj['kind']}/{obj['metadata']['name']}", dict(obj)
    for pod in plan.pods.values():
        name = f"{pod}-x7x7x" if plan.has_random_suffix else pod
        yield f"Pod/{name}", {"kind": "Pod", "metadata": {"name": name, "labels": dict(plan.labels)}}
