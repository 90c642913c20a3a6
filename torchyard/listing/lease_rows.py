"""The runs of a cluster as rows of the list, from their Leases and pods: pure functions.

Anyone may have written a Lease or a pod, so every value is bounded; a malformed Lease is a row that states what is
wrong with it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torchyard.common.escaping import single_line
from torchyard.diagnosis import pod_facts
from torchyard.listing.listed_run import ListedRun, RunState
from torchyard.listing.pod_commands import find_process_count
from torchyard.pods import lease_record
from torchyard.pods.template import ATTEMPT_KEY

_MAX_NAME_CHARS = 100


class LeasedState(NamedTuple):
    """The state of a run by its Lease and pods, and what should be known about it."""

    state: RunState
    note: str


def build_lease_row(
    lease: Mapping[str, Any],
    pods: Sequence[Mapping[str, Any]] | None,
    now: float,
    *,
    holder_dead_after_s: float,
    location: str,
) -> ListedRun:
    """A run of a cluster as a row.

    pods: those with the run's label; None if they may not be listed.
    now: by the API server's clock, in seconds since the epoch.
    holder_dead_after_s: seconds without a renewal after which the launcher counts as dead.
    location: `CONTEXT/NAMESPACE`.
    """
    name = lease_record.read_lease_name(lease)
    attempt = lease_record.read_attempt(lease)
    nodes = None if pods is None else list_attempt_pods(pods, attempt)
    state, note = _read_state(lease, nodes, now, holder_dead_after_s=holder_dead_after_s)
    return ListedRun(
        name=name,
        state=state,
        note=note,
        profile=name.rpartition("-")[0],
        launcher=_read_name(lease, lease_record.LAUNCHER_ANNOTATION),
        location=location,
        nodes=len(nodes) if nodes else None,
        processes=find_process_count(nodes[0]) if nodes else None,
        attempt=attempt,
        started_at=pod_facts.get_creation_time(lease) or None,
        user=_read_name(lease, lease_record.USER_ANNOTATION),
        host=single_line(lease_record.read_holder(lease).partition(":")[0], _MAX_NAME_CHARS),
        source="cluster",
    )


def _read_state(
    lease: Mapping[str, Any],
    nodes: Sequence[Mapping[str, Any]] | None,
    now: float,
    *,
    holder_dead_after_s: float,
) -> LeasedState:
    """`nodes`: the pods of the last attempt, without its store's; None if they are unknown."""
    faults = lease_record.list_lease_faults(lease, now)
    if faults:
        return LeasedState("unreadable", f"its Lease is malformed: {faults[0]}")
    loss = _describe_loss(lease, now, holder_dead_after_s=holder_dead_after_s)
    if loss:
        return LeasedState("lost", loss)
    if lease_record.is_marked_as_ending(lease):
        return LeasedState("ending", "")
    if not lease_record.is_submitted(lease):
        return LeasedState("preparing", "")
    return _read_job_state(nodes)


def _describe_loss(lease: Mapping[str, Any], now: float, *, holder_dead_after_s: float) -> str:
    """Why no launcher owns the run; empty if one does."""
    if lease_record.is_handed_over(lease):
        return "its launcher has handed it over to the next process"
    if (lease_record.measure_time_left(lease, now) or 0.0) < 0:
        return "no launcher renews its Lease, which has expired"
    if (lease_record.measure_lease_age(lease, now) or 0.0) > holder_dead_after_s:
        return "no launcher renews its Lease, which has not expired yet"
    return ""


def _read_job_state(nodes: Sequence[Mapping[str, Any]] | None) -> LeasedState:
    """The state of a submitted job, by its pods."""
    if nodes is None:
        return LeasedState("running", "submitted; its pods may not be listed")
    phases = [pod_facts.get_pod_phase(pod) for pod in nodes]
    running_count = phases.count("Running")
    has_started = any(phase == "Running" or phase in pod_facts.ENDED_POD_PHASES for phase in phases)
    note = "" if nodes and running_count == len(nodes) else f"{running_count} of {len(nodes)} pods run"
    return LeasedState("running" if has_started else "waiting", note)


def list_attempt_pods(pods: Sequence[Mapping[str, Any]], attempt: int | None) -> list[Mapping[str, Any]]:
    """The pods of an attempt's nodes, by name; those of all attempts if it is None."""
    nodes = []
    for pod in pods:
        labels = pod_facts.get_mapping(pod, "metadata", "labels")
        if pod_facts.ROLE_LABEL not in labels and attempt in (None, _to_attempt(labels.get(ATTEMPT_KEY))):
            nodes.append(pod)
    return nodes


def _to_attempt(label: object) -> int | None:
    """The number of an attempt in a label that anyone may have written; None if it is not one."""
    return int(label) if isinstance(label, str) and label.isascii() and label.isdigit() else None


def _read_name(lease: Mapping[str, Any], key: str) -> str:
    return single_line(lease_record.read_annotation(lease, key), _MAX_NAME_CHARS)
