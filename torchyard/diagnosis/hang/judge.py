"""Detect whether a job hangs, and which ranks cause it, from the latest record of each rank.

A verdict is correct or `unknown`: a rank is blamed only if its own record explains why the others wait.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torchyard.diagnosis.hang import messages
from torchyard.diagnosis.hang.calls import (
    find_call_groups,
    find_completed_ranks,
    find_member_groups,
    find_network_fault,
)
from torchyard.diagnosis.hang.classes import get_fault_facts, has_exclusive_calls
from torchyard.diagnosis.hang.missing_ranks import (
    ACTIVE_FLOOR_S,
    BLOCKED_FLOOR_S,
    FLOOR_S,
    PAUSE_FACTOR,
    Fault,
    diagnose_missing_rank,
    get_active_limit,
    has_completed_collective,
    has_ended,
    is_polling_elsewhere,
    list_wait_kinds,
)
from torchyard.diagnosis.hang.pending_collectives import (
    UNCOUNTED_CALL,
    PendingCollective,
    find_cycle,
    find_dependents,
    find_pending_collectives,
    find_unfinished_call,
    is_in_collective,
    is_stopped,
)
from torchyard.model.hang import FaultClass, Hang, RankRecord

FRESH_S = 25.0  # a stall is reported again within seconds, later every ten or, of a rank that computes, every 20
SILENT_AFTER_S = 75.0  # a healthy rank reports every 15 to 60 s, and a stalled one every 20 at least
IDLE_FLOOR_S = 12.0  # no rank waits in a collective, and none is active
STUCK_FLOOR_S = 15.0  # of ranks that are all in one collective, where no data moves; or that are all stopped


class _JobSnapshot(NamedTuple):
    """What is known about a job at one moment.

    records: the latest of each rank; those older than `SILENT_AFTER_S` are `silent`.
    stalled: the ranks that reported a stall within the last `FRESH_S`.
    world: the number of ranks in the job.
    collectives: those in which stalled ranks wait.
    """

    records: Mapping[int, RankRecord]
    stalled: frozenset[int]
    world: int
    collectives: tuple[PendingCollective, ...]


def detect_hang(
    records: Mapping[int, RankRecord], world: int, record_ages: Mapping[int, float] | None = None
) -> Hang | None:
    """Return the hang that the latest record of each rank proves; None if they prove none, or not yet.

    `world`: the number of ranks in the job. `record_ages`: seconds since each rank's record was made, 0 where it has
    no entry; by default they are measured from the newest record, by the nodes' clocks.
    """
    records = {rank: record for rank, record in records.items() if 0 <= rank < world}
    if not records:
        return None
    if record_ages is None:
        newest = max(record.timestamp for record in records.values())
        ages = {rank: newest - record.timestamp for rank, record in records.items()}
    else:
        ages = {rank: record_ages.get(rank, 0.0) for rank in records}

    stalled = frozenset(rank for rank, record in records.items() if record.kind == "stall" and ages[rank] <= FRESH_S)
    if not stalled:
        return None
    current: dict[int, RankRecord] = {}
    for rank, record in records.items():
        is_current = record.kind == "end" or ages[rank] <= SILENT_AFTER_S
        current[rank] = record if is_current else record.model_copy(update={"kind": "silent"})
    snapshot = _JobSnapshot(current, stalled, world, find_pending_collectives(current, stalled, world))
    hang = (
        _detect_different_groups(snapshot)
        or _detect_missing_ranks(snapshot)
        or _detect_deadlock(snapshot)
        or _detect_stuck_collective(snapshot)
        or _detect_idle_job(snapshot)
    )
    if hang is None:
        return None
    culprits = _list_culprits(hang, current)
    updates = {
        "proven_s": _measure_proof(hang, current),
        "is_polling": any(map(is_polling_elsewhere, culprits)),
        "fault_kinds": () if has_exclusive_calls(hang.kind) else _list_fault_kinds(culprits),
    }
    return hang.model_copy(update=updates)


def _list_culprits(hang: Hang, records: Mapping[int, RankRecord]) -> list[RankRecord]:
    """The records of the ranks that cause a hang: of all ranks if none is named and none waits in a collective."""
    if not hang.ranks and not hang.waiting:
        return list(records.values())
    return [records[rank] for rank in hang.ranks if rank in records]


def _list_fault_kinds(records: Iterable[RankRecord]) -> tuple[FaultClass, ...]:
    """What ranks that run wait for, in any of their threads and children, by their own records, in order."""
    kinds: set[FaultClass] = set()
    for record in records:
        if not has_ended(record) and not is_stopped(record):
            kinds |= list_wait_kinds(record)
    return tuple(sorted(kinds))


def _measure_proof(hang: Hang, records: Mapping[int, RankRecord]) -> float:
    """For how many seconds measurements prove that the ranks that cause a hang, or else all of its ranks, do nothing.

    0 if one of them is active, or has no current record: silence proves nothing.
    """
    ranks = hang.ranks or hang.waiting or tuple(records)
    waited_s = min((records[rank].stalled_s for rank in hang.waiting if rank in records), default=hang.stalled_s)
    proofs = []
    for rank in ranks:
        record = records.get(rank)
        if record is None or record.kind == "silent":
            proofs.append(0.0)
        elif has_ended(record):
            proofs.append(waited_s)
        elif is_stopped(record):
            proofs.append(max(record.frozen_s, record.idle_s))
        elif has_exclusive_calls(hang.kind) and _is_blocked_in_call(hang, record):
            proofs.append(record.stalled_s)
        else:
            proofs.append(record.idle_s)
    return min(proofs)


def _is_blocked_in_call(hang: Hang, record: RankRecord) -> bool:
    """Whether a rank cannot go on before its pending call is complete, also if its thread computes meanwhile.

    A call of NCCL has returned while it is pending: the rank may make further calls, but of calls that differ under one
    number none can be complete. Only a rank that waits for its GPU cannot call what ends a deadlock.
    """
    if is_in_collective(record.stack):
        return True
    if record.pending is None or record.pending.sequence == 0:
        return False
    return hang.kind == "collective-mismatch" or record.waits_for_device


# --- ranks whose groups differ


def _detect_different_groups(snapshot: _JobSnapshot) -> Hang | None:
    """The hang of ranks that wait in groups of one name and different members; None without such."""
    for collective in snapshot.collectives:
        call_groups = find_member_groups(collective, snapshot.collectives, snapshot.records)
        waiting = frozenset(rank for call_group in call_groups for rank in call_group.ranks)
        if len(call_groups) > 1 and _have_all_stalled(snapshot, waiting, FLOOR_S):
            dependents = find_dependents(snapshot.collectives, waiting)
            return messages.describe_mismatch(
                collective._replace(waiting=waiting), call_groups, snapshot.records, dependents
            )
    return None


# --- ranks that others wait for


def _detect_missing_ranks(snapshot: _JobSnapshot) -> Hang | None:
    """The hang of ranks that others wait for in a collective, and that wait in none themselves; None without such."""
    waiting_ranks = frozenset(rank for collective in snapshot.collectives for rank in collective.waiting)
    candidates: list[tuple[PendingCollective, dict[int, Fault]]] = []
    for collective in sorted(snapshot.collectives, key=_count_waiting_ranks, reverse=True):
        suspects = collective.missing - waiting_ranks
        if not suspects or not collective.waiting:
            continue
        faults = _find_faults(snapshot, collective, suspects)
        if faults:
            candidates.append((collective, faults))
    if not candidates:
        return None
    collective, faults = min(candidates, key=_get_candidate_priority)
    dependents = find_dependents(snapshot.collectives, faults.keys())
    return messages.describe_missing_ranks(collective, faults, snapshot.records, dependents)


def _count_waiting_ranks(collective: PendingCollective) -> int:
    return len(collective.waiting)


def _get_candidate_priority(candidate: tuple[PendingCollective, dict[int, Fault]]) -> int:
    """The priority of the candidate's most certain fault."""
    _, faults = candidate
    return min(get_fault_facts(fault.kind).priority for fault in faults.values())


def _find_faults(snapshot: _JobSnapshot, collective: PendingCollective, suspects: frozenset[int]) -> dict[int, Fault]:
    """The faults of the culprits among the suspects, by rank: those of the most certain kind.

    Empty if a suspect may still call the collective, unless the fault of another one is certain.
    """
    if collective.group == UNCOUNTED_CALL and len(suspects) > 1:
        return {}  # without torch's counters, no record shows which of them is expected
    waited_s = min(snapshot.records[rank].stalled_s for rank in collective.waiting)
    faults = _diagnose_faults(snapshot, collective, suspects)
    expired = {rank: fault for rank, fault in faults.items() if _has_exceeded_limit(snapshot, rank, fault, waited_s)}
    certain = {rank: fault for rank, fault in expired.items() if fault.is_certain}
    if not certain and len(expired) < len(faults):
        return {}
    return _select_most_certain(certain or expired)


def _select_most_certain(faults: Mapping[int, Fault]) -> dict[int, Fault]:
    """The faults of the kind that is most certain."""
    priorities = {rank: get_fault_facts(fault.kind).priority for rank, fault in faults.items()}
    first_priority = min(priorities.values(), default=0)
    return {rank: fault for rank, fault in faults.items() if priorities[rank] == first_priority}


def _diagnose_faults(
    snapshot: _JobSnapshot, collective: PendingCollective, suspects: frozenset[int]
) -> dict[int, Fault]:
    """The fault of each suspect, by rank."""
    waited_s = min(snapshot.records[rank].stalled_s for rank in collective.waiting)
    typical_pause_s = max(snapshot.records[rank].typical_pause_s for rank in collective.waiting)
    return {
        rank: diagnose_missing_rank(snapshot.records.get(rank), typical_pause_s, waited_s) for rank in sorted(suspects)
    }


def _has_exceeded_limit(snapshot: _JobSnapshot, rank: int, fault: Fault, waited_s: float) -> bool:
    """Whether the fault has lasted for its limit, and other ranks have waited for the rank for as long."""
    record = snapshot.records.get(rank)
    if record and record.kind != "silent" and not has_ended(record) and rank not in snapshot.stalled:
        return False  # it may have made progress
    return min(waited_s, fault.lasted_s) >= fault.limit_s


# --- ranks that wait for each other


def _detect_deadlock(snapshot: _JobSnapshot) -> Hang | None:
    """The hang of ranks of which each waits in a collective that the next one has not called; None without such."""
    collectives = snapshot.collectives
    candidates = [
        collective
        for collective in collectives
        if collective.group != UNCOUNTED_CALL or _is_mutual_wait(collectives, collective)
    ]
    cycle = find_cycle(tuple(candidates))
    ranks = frozenset(rank for collective in cycle for rank in collective.waiting)
    if not cycle or not _have_all_stalled(snapshot, ranks, FLOOR_S):
        return None
    return messages.describe_deadlock(cycle, snapshot.records, find_dependents(collectives, ranks))


def _is_mutual_wait(collectives: tuple[PendingCollective, ...], collective: PendingCollective) -> bool:
    """Whether all missing ranks depend on the waiting ones: whichever rank a receive waits for, it is a deadlock."""
    return bool(collective.missing) and collective.missing <= find_dependents(collectives, collective.waiting)


# --- collectives that all of their ranks have called


def _detect_stuck_collective(snapshot: _JobSnapshot) -> Hang | None:
    """The hang in a collective that all of its ranks have called, and that does not end; None if there is none."""
    for collective in sorted(snapshot.collectives, key=_count_waiting_ranks, reverse=True):
        if collective.missing:
            continue
        hang = _explain_stuck_collective(snapshot, collective)
        if hang:
            return hang
    return None


def _explain_stuck_collective(snapshot: _JobSnapshot, collective: PendingCollective) -> Hang | None:
    """The hang in one collective, by the strongest evidence; None if its ranks have not waited long enough for that."""
    records = snapshot.records
    waiting = collective.waiting
    dependents = find_dependents(snapshot.collectives, waiting)

    call_groups = find_call_groups(collective, records)
    if len(call_groups) > 1:
        has_stalled = _have_all_stalled(snapshot, waiting, FLOOR_S)
        return messages.describe_mismatch(collective, call_groups, records, dependents) if has_stalled else None

    fault = find_network_fault(collective, records)
    if fault:
        has_stalled = _have_all_stalled(snapshot, waiting, BLOCKED_FLOOR_S)
        return messages.describe_network_fault(collective, fault, records, dependents) if has_stalled else None

    completed_ranks = find_completed_ranks(collective, records)
    if completed_ranks:
        are_stalled = completed_ranks <= snapshot.stalled
        if not are_stalled or not _have_all_stalled(snapshot, waiting | completed_ranks, BLOCKED_FLOOR_S):
            return None
        return messages.describe_skipped_call(collective, completed_ranks, records, dependents)

    longest_pause_s = max(records[rank].typical_pause_s for rank in waiting)
    idle_limit_s = max(STUCK_FLOOR_S, PAUSE_FACTOR * longest_pause_s)
    are_idle = all(records[rank].idle_s >= idle_limit_s for rank in waiting)
    has_stalled = are_idle or all(records[rank].stalled_s >= get_active_limit(longest_pause_s) for rank in waiting)
    return messages.describe_stuck_collective(collective, records, dependents) if has_stalled else None


def _have_all_stalled(snapshot: _JobSnapshot, ranks: frozenset[int], floor_s: float) -> bool:
    """Whether all of `ranks` have stalled for `floor_s` seconds, and for a multiple of the longest usual pause."""
    typical_pause_s = max(snapshot.records[rank].typical_pause_s for rank in ranks)
    return min(snapshot.records[rank].stalled_s for rank in ranks) >= max(floor_s, PAUSE_FACTOR * typical_pause_s)


# --- no rank waits in a collective


def _detect_idle_job(snapshot: _JobSnapshot) -> Hang | None:
    """The hang of a job whose ranks have all been idle outside of collectives; None if one may still be active.

    A torch that does not count completions does not show who waits in one: then the ranks that have called fewer hang.
    """
    records = snapshot.records
    if snapshot.collectives or len(snapshot.stalled) < snapshot.world:
        return None
    if all(map(is_stopped, records.values())):
        has_stalled = _have_all_stalled(snapshot, snapshot.stalled, STUCK_FLOOR_S)
        return messages.describe_stopped_job(records) if has_stalled else None
    if not any(record.groups for record in records.values()):
        return None  # a program without process groups may pause for any time
    have_started = all(record.typical_pause_s > 0 or has_completed_collective(record) for record in records.values())
    slowest = max(max(record.typical_pause_s, record.longest_idle_s) for record in records.values())
    limit_s = max(IDLE_FLOOR_S if have_started else ACTIVE_FLOOR_S, PAUSE_FACTOR * slowest)
    if not all(record.idle_s >= limit_s for record in records.values()):
        return None
    collective = find_unfinished_call(records)
    if collective is None:
        return messages.describe_idle_job(records)
    faults = _select_most_certain(_diagnose_faults(snapshot, collective, collective.missing))
    return messages.describe_missing_ranks(collective, faults, records, frozenset())
