"""Whether a job hangs, and which rank is to blame: a verdict that is right, or unknown, or none."""

from collections.abc import Mapping
from typing import NamedTuple

from torchyard.diagnosis.hang import messages
from torchyard.diagnosis.hang.calls import find_completed, find_cut, find_sides
from torchyard.diagnosis.hang.missing_ranks import (
    ACTIVE_FLOOR_S,
    ACTIVE_USUAL_FACTOR,
    BLOCKED_FLOOR_S,
    FLOOR_S,
    START_FLOOR_S,
    USUAL_FACTOR,
    Fault,
    explain_absence,
    has_completed,
    is_busy,
)
from torchyard.diagnosis.hang.pending_collectives import (
    CALL,
    PendingCollective,
    find_cycle,
    find_dependents,
    find_pending_collectives,
)
from torchyard.model.hang import Hang, HangClass, RankRecord

FRESH_S = 25.0  # a stall is reported again within seconds, later every ten
SILENT_AFTER_S = 90.0  # a healthy rank reports every 15 to 60 s
IDLE_FLOOR_S = 12.0  # nobody waits in a collective, and nobody does anything
_ORDER: tuple[HangClass, ...] = ("stopped", "gil", "storage", "data-loader", "missing-rank", "network", "compute")


class _Scene(NamedTuple):
    """`records`: without those that are too old; `stalled`: the ranks that make no progress now."""

    records: Mapping[int, RankRecord]
    stalled: frozenset[int]
    world: int
    gatherings: tuple[PendingCollective, ...]


def judge_hang(latest: Mapping[int, RankRecord], world: int, ages: Mapping[int, float] | None = None) -> Hang | None:
    """The hang that the ranks' records prove; None if there is none, or not yet.

    `ages`: how old each record is, in seconds. Without them the records' own clocks decide.
    """
    records = {rank: record for rank, record in latest.items() if 0 <= rank < world}
    if not records:
        return None
    newest = max(record.at for record in records.values())
    old = {rank: ages.get(rank, 0.0) if ages is not None else newest - its.at for rank, its in records.items()}
    stalled = frozenset(rank for rank, its in records.items() if its.kind == "stall" and old[rank] <= FRESH_S)
    if not stalled:
        return None
    known = {rank: its for rank, its in records.items() if its.kind == "end" or old[rank] <= SILENT_AFTER_S}
    scene = _Scene(known, stalled, world, find_pending_collectives(known, stalled, world))
    return _judge_absence(scene) or _judge_cycle(scene) or _judge_call(scene) or _judge_idleness(scene)


# --- ranks that others wait for


def _judge_absence(scene: _Scene) -> Hang | None:
    """A rank that waits in nothing, and has not called what others wait in."""
    waiting = frozenset().union(*(each.waiting for each in scene.gatherings))
    found = []
    for each in sorted(scene.gatherings, key=lambda each: -len(each.waiting)):
        outside = each.missing - waiting
        if outside and each.waiting and (faults := _find_faults(scene, each, outside)):
            found.append((each, faults))
    if not found:
        return None
    each, faults = min(found, key=lambda one: min(_ORDER.index(fault.kind) for fault in one[1].values()))
    return messages.tell_absence(each, faults, scene.records, find_dependents(scene.gatherings, faults.keys()))


def _find_faults(scene: _Scene, each: PendingCollective, outside: frozenset[int]) -> dict[int, Fault]:
    """The culprits among the ranks that have not come: those of the plainest kind; none if one may still come."""
    if each.group == CALL and len(outside) > 1:
        return {}  # a torch without counters: which of them is to come, nobody says
    waited_s = min(scene.records[rank].stalled_s for rank in each.waiting)
    usual_s = max(scene.records[rank].usual_s for rank in each.waiting)
    faults = {rank: explain_absence(scene.records.get(rank), usual_s) for rank in sorted(outside)}
    due = {rank: fault for rank, fault in faults.items() if _is_due(scene, rank, fault, waited_s)}
    certain = {rank: fault for rank, fault in due.items() if fault.is_certain}
    if not certain and len(due) < len(faults):
        return {}
    blamed = certain or due
    first = min((_ORDER.index(fault.kind) for fault in blamed.values()), default=0)
    return {rank: fault for rank, fault in blamed.items() if _ORDER.index(fault.kind) == first}


def _is_due(scene: _Scene, rank: int, fault: Fault, waited_s: float) -> bool:
    record = scene.records.get(rank)
    if record is None or record.kind == "end":
        return waited_s >= fault.limit_s
    own_s = min(record.stalled_s, record.blind_s) if fault.kind == "gil" else record.stalled_s
    return rank in scene.stalled and min(waited_s, own_s) >= fault.limit_s


# --- ranks that wait for each other


def _judge_cycle(scene: _Scene) -> Hang | None:
    """Ranks of which each waits in a collective that the next one has not called."""
    every = scene.gatherings
    ring = find_cycle(tuple(each for each in every if each.group != CALL or _is_closed(every, each)))
    ranks = [rank for each in ring for rank in each.waiting]
    if not ring or not _has_waited(scene, ranks, FLOOR_S):
        return None
    return messages.tell_cycle(ring, scene.records, find_dependents(scene.gatherings, frozenset(ranks)))


def _is_closed(every: tuple[PendingCollective, ...], each: PendingCollective) -> bool:
    """Whether whichever rank a receive waits for waits for the receiver itself."""
    return bool(each.missing) and each.missing <= find_dependents(every, each.waiting)


def _judge_call(scene: _Scene) -> Hang | None:
    """A collective that all of its ranks have called, and that does not end."""
    for each in sorted(scene.gatherings, key=lambda each: -len(each.waiting)):
        found = None if each.missing else _judge_complete_call(scene, each)
        if found:
            return found
    return None


def _judge_complete_call(scene: _Scene, each: PendingCollective) -> Hang | None:
    sides, cut = find_sides(each, scene.records), find_cut(each, scene.records)
    behind = find_dependents(scene.gatherings, each.waiting)
    if len(sides) > 1:
        is_due = _has_waited(scene, each.waiting, FLOOR_S)
        return messages.tell_mismatch(each, sides, scene.records, behind) if is_due else None
    if cut:
        is_due = _has_waited(scene, each.waiting, BLOCKED_FLOOR_S)
        return messages.tell_cut(each, cut, scene.records, behind) if is_due else None
    done = find_completed(each, scene.records)
    if done and done <= scene.stalled and _has_waited(scene, each.waiting | done, START_FLOOR_S):
        return messages.tell_skipped(each, done, scene.records, behind)
    is_active = any(is_busy(scene.records[rank]) for rank in each.waiting)
    floor, factor = (ACTIVE_FLOOR_S, ACTIVE_USUAL_FACTOR) if is_active else (START_FLOOR_S, USUAL_FACTOR)
    is_due = not done and _has_waited(scene, each.waiting, floor, factor)
    return messages.tell_unknown(each, scene.records, behind) if is_due else None


def _has_waited(scene: _Scene, ranks: list[int] | frozenset[int], floor_s: float, factor: float = USUAL_FACTOR) -> bool:
    """Whether all of these ranks have made no progress for longer than is normal for them."""
    usual = max(scene.records[rank].usual_s for rank in ranks)
    return min(scene.records[rank].stalled_s for rank in ranks) >= max(floor_s, factor * usual)


# --- nobody waits in a collective


def _judge_idleness(scene: _Scene) -> Hang | None:
    """All ranks stand still outside of collectives."""
    if scene.gatherings or len(scene.stalled) < scene.world or any(map(is_busy, scene.records.values())):
        return None
    if all(record.state in ("T", "t") for record in scene.records.values()):
        return (
            messages.tell_idle("stopped", scene.records) if _has_waited(scene, scene.stalled, START_FLOOR_S) else None
        )
    if not any(record.groups for record in scene.records.values()):
        return None  # whether such a job has a rhythm at all is not known
    has_begun = all(record.usual_s > 0 or has_completed(record) for record in scene.records.values())
    is_due = _has_waited(scene, scene.stalled, IDLE_FLOOR_S if has_begun else ACTIVE_FLOOR_S)
    return messages.tell_idle("all-waiting-outside", scene.records) if is_due else None
