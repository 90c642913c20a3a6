"""Whether a job hangs, and which rank is to blame: a verdict that is right, or unknown, or none."""

from collections.abc import Mapping
from typing import NamedTuple

from torchyard.diagnosis.hang import messages
from torchyard.diagnosis.hang.calls import find_call_groups, find_completed_ranks, find_network_fault
from torchyard.diagnosis.hang.missing_ranks import (
    ACTIVE_FLOOR_S,
    ACTIVE_PAUSE_FACTOR,
    BLOCKED_FLOOR_S,
    FLOOR_S,
    PAUSE_FACTOR,
    START_FLOOR_S,
    Fault,
    diagnose_missing_rank,
    has_completed_collective,
    is_busy,
)
from torchyard.diagnosis.hang.pending_collectives import (
    UNCOUNTED_CALL,
    PendingCollective,
    find_cycle,
    find_dependents,
    find_pending_collectives,
)
from torchyard.model.hang import Hang, HangClass, RankRecord

FRESH_S = 25.0  # a stall is reported again within seconds, later every ten
SILENT_AFTER_S = 90.0  # a healthy rank reports every 15 to 60 s
IDLE_FLOOR_S = 12.0  # nobody waits in a collective, and nobody does anything
_FAULT_PRIORITY: tuple[HangClass, ...] = (
    "stopped",
    "gil",
    "storage",
    "data-loader",
    "missing-rank",
    "network",
    "compute",
)


class _JobSnapshot(NamedTuple):
    """`records`: without those that are too old; `stalled`: the ranks that make no progress now."""

    records: Mapping[int, RankRecord]
    stalled: frozenset[int]
    world: int
    collectives: tuple[PendingCollective, ...]


def detect_hang(latest: Mapping[int, RankRecord], world: int, ages: Mapping[int, float] | None = None) -> Hang | None:
    """The hang that the ranks' records prove; None if there is none, or not yet.

    `ages`: how old each record is, in seconds. Without them the records' own clocks decide.
    """
    records = {rank: record for rank, record in latest.items() if 0 <= rank < world}
    if not records:
        return None
    newest = max(record.at for record in records.values())
    ages_s = {rank: ages.get(rank, 0.0) if ages is not None else newest - record.at for rank, record in records.items()}
    stalled = frozenset(rank for rank, record in records.items() if record.kind == "stall" and ages_s[rank] <= FRESH_S)
    if not stalled:
        return None
    current = {
        rank: record for rank, record in records.items() if record.kind == "end" or ages_s[rank] <= SILENT_AFTER_S
    }
    snapshot = _JobSnapshot(current, stalled, world, find_pending_collectives(current, stalled, world))
    return (
        _detect_missing_ranks(snapshot)
        or _detect_deadlock(snapshot)
        or _detect_stuck_collective(snapshot)
        or _detect_idle_job(snapshot)
    )


# --- ranks that others wait for


def _detect_missing_ranks(snapshot: _JobSnapshot) -> Hang | None:
    """A rank that waits in nothing, and has not called what others wait in."""
    waiting = frozenset().union(*(collective.waiting for collective in snapshot.collectives))
    candidates = []
    for collective in sorted(snapshot.collectives, key=lambda collective: -len(collective.waiting)):
        suspects = collective.missing - waiting
        if suspects and collective.waiting and (faults := _find_faults(snapshot, collective, suspects)):
            candidates.append((collective, faults))
    if not candidates:
        return None
    collective, faults = min(
        candidates, key=lambda candidate: min(_FAULT_PRIORITY.index(fault.kind) for fault in candidate[1].values())
    )
    return messages.describe_missing_ranks(
        collective, faults, snapshot.records, find_dependents(snapshot.collectives, faults.keys())
    )


def _find_faults(snapshot: _JobSnapshot, collective: PendingCollective, suspects: frozenset[int]) -> dict[int, Fault]:
    """The culprits among the ranks that have not come: those of the plainest kind; none if one may still come."""
    if collective.group == UNCOUNTED_CALL and len(suspects) > 1:
        return {}  # a torch without counters: which of them is to come, nobody says
    waited_s = min(snapshot.records[rank].stalled_s for rank in collective.waiting)
    typical_pause_s = max(snapshot.records[rank].usual_s for rank in collective.waiting)
    faults = {rank: diagnose_missing_rank(snapshot.records.get(rank), typical_pause_s) for rank in sorted(suspects)}
    expired = {rank: fault for rank, fault in faults.items() if _has_exceeded_limit(snapshot, rank, fault, waited_s)}
    certain = {rank: fault for rank, fault in expired.items() if fault.is_certain}
    if not certain and len(expired) < len(faults):
        return {}
    blamed = certain or expired
    priority = min((_FAULT_PRIORITY.index(fault.kind) for fault in blamed.values()), default=0)
    return {rank: fault for rank, fault in blamed.items() if _FAULT_PRIORITY.index(fault.kind) == priority}


def _has_exceeded_limit(snapshot: _JobSnapshot, rank: int, fault: Fault, waited_s: float) -> bool:
    record = snapshot.records.get(rank)
    if record is None or record.kind == "end":
        return waited_s >= fault.limit_s
    stalled_s = min(record.stalled_s, record.blind_s) if fault.kind == "gil" else record.stalled_s
    return rank in snapshot.stalled and min(waited_s, stalled_s) >= fault.limit_s


# --- ranks that wait for each other


def _detect_deadlock(snapshot: _JobSnapshot) -> Hang | None:
    """Ranks of which each waits in a collective that the next one has not called."""
    collectives = snapshot.collectives
    cycle = find_cycle(
        tuple(
            collective
            for collective in collectives
            if collective.group != UNCOUNTED_CALL or _is_mutual_wait(collectives, collective)
        )
    )
    ranks = [rank for collective in cycle for rank in collective.waiting]
    if not cycle or not _have_all_stalled(snapshot, ranks, FLOOR_S):
        return None
    return messages.describe_deadlock(cycle, snapshot.records, find_dependents(snapshot.collectives, frozenset(ranks)))


def _is_mutual_wait(collectives: tuple[PendingCollective, ...], collective: PendingCollective) -> bool:
    """Whether whichever rank a receive waits for waits for the receiver itself."""
    return bool(collective.missing) and collective.missing <= find_dependents(collectives, collective.waiting)


def _detect_stuck_collective(snapshot: _JobSnapshot) -> Hang | None:
    """A collective that all of its ranks have called, and that does not end."""
    for collective in sorted(snapshot.collectives, key=lambda collective: -len(collective.waiting)):
        hang = None if collective.missing else _explain_stuck_collective(snapshot, collective)
        if hang:
            return hang
    return None


def _explain_stuck_collective(snapshot: _JobSnapshot, collective: PendingCollective) -> Hang | None:
    call_groups, fault = (
        find_call_groups(collective, snapshot.records),
        find_network_fault(collective, snapshot.records),
    )
    dependents = find_dependents(snapshot.collectives, collective.waiting)
    if len(call_groups) > 1:
        has_stalled = _have_all_stalled(snapshot, collective.waiting, FLOOR_S)
        return (
            messages.describe_mismatch(collective, call_groups, snapshot.records, dependents) if has_stalled else None
        )
    if fault:
        has_stalled = _have_all_stalled(snapshot, collective.waiting, BLOCKED_FLOOR_S)
        return messages.describe_network_fault(collective, fault, snapshot.records, dependents) if has_stalled else None
    completed_ranks = find_completed_ranks(collective, snapshot.records)
    if (
        completed_ranks
        and completed_ranks <= snapshot.stalled
        and _have_all_stalled(snapshot, collective.waiting | completed_ranks, START_FLOOR_S)
    ):
        return messages.describe_skipped_call(collective, completed_ranks, snapshot.records, dependents)
    is_active = any(is_busy(snapshot.records[rank]) for rank in collective.waiting)
    floor_s, factor = (ACTIVE_FLOOR_S, ACTIVE_PAUSE_FACTOR) if is_active else (START_FLOOR_S, PAUSE_FACTOR)
    has_stalled = not completed_ranks and _have_all_stalled(snapshot, collective.waiting, floor_s, factor)
    return messages.describe_stuck_collective(collective, snapshot.records, dependents) if has_stalled else None


def _have_all_stalled(
    snapshot: _JobSnapshot, ranks: list[int] | frozenset[int], floor_s: float, factor: float = PAUSE_FACTOR
) -> bool:
    """Whether all of these ranks have made no progress for longer than is normal for them."""
    typical_pause_s = max(snapshot.records[rank].usual_s for rank in ranks)
    return min(snapshot.records[rank].stalled_s for rank in ranks) >= max(floor_s, factor * typical_pause_s)


# --- nobody waits in a collective


def _detect_idle_job(snapshot: _JobSnapshot) -> Hang | None:
    """All ranks stand still outside of collectives."""
    if snapshot.collectives or len(snapshot.stalled) < snapshot.world or any(map(is_busy, snapshot.records.values())):
        return None
    if all(record.state in ("T", "t") for record in snapshot.records.values()):
        return (
            messages.describe_idle_job("stopped", snapshot.records)
            if _have_all_stalled(snapshot, snapshot.stalled, START_FLOOR_S)
            else None
        )
    if not any(record.groups for record in snapshot.records.values()):
        return None  # whether such a job has a rhythm at all is not known
    have_started = all(record.usual_s > 0 or has_completed_collective(record) for record in snapshot.records.values())
    has_stalled = _have_all_stalled(snapshot, snapshot.stalled, IDLE_FLOOR_S if have_started else ACTIVE_FLOOR_S)
    return messages.describe_idle_job("all-waiting-outside", snapshot.records) if has_stalled else None
