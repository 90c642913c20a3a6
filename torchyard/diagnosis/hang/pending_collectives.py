"""Who waits for whom: each collective that ranks wait in, and the ranks of its group that have not called it."""

import re
from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

from torchyard.model.hang import Collective, Frame, GroupProgress, RankRecord

DEFAULT_GROUP = "0"
SETUP = "set-up"  # of process groups, where all ranks meet in the store
CALL = "call"  # of torch.distributed, by the stack alone: which one, no counter says
MAX_SEQUENCES = 16  # of one group, told apart
_SETUP_CALLS = {
    "init_process_group",
    "new_group",
    "_new_group_with_tag",
    "_new_process_group_helper",
    "_store_based_barrier",
    "split_group",
    "init_device_mesh",
}
_COLLECTIVE_FILE = "/torch/distributed/distributed_c10d.py"
_P2P = re.compile(r"(send|recv|isend|irecv)\b(?: (\d+)(?:->|<-)(\d+))?")


class PendingCollective(NamedTuple):
    """One collective: the ranks that wait in it, and those of its group that have not come."""

    group: str
    sequence: int
    members: frozenset[int]
    waiting: frozenset[int]
    missing: frozenset[int]


class _Meeting(NamedTuple):
    """A collective as one rank names it. `ranks`: of its group, as far as the rank says so; of a send, the peer."""

    group: str
    ranks: tuple[int, ...]
    sequence: int


def find_pending_collectives(
    records: Mapping[int, RankRecord], stalled: Set[int], world: int
) -> tuple[PendingCollective, ...]:
    """What the stalled ranks wait in. `records` are those of all ranks that are known."""
    going = [rank for rank in sorted(stalled) if not is_stopped(records[rank])]  # the counters of the others are old
    meetings = {rank: its for rank in going if (its := _find_meeting(records[rank]))}
    found = _gather(meetings, records, world)
    late = _find_late_completions(found, records)
    return _gather({rank: its for rank, its in meetings.items() if rank not in late}, records, world) if late else found


def is_in_collective(stack: tuple[Frame, ...]) -> bool:
    """Whether the main thread is in a call of torch.distributed."""
    return any(_COLLECTIVE_FILE in frame.file for frame in stack)


def is_between_two(operation: str) -> bool:
    return bool(_P2P.match(clean_operation(operation)))


def clean_operation(operation: str) -> str:
    """`nccl:_all_reduce` as `all_reduce`."""
    return operation.rpartition(":")[2].strip().lower().lstrip("_")


def find_dependents(gatherings: tuple[PendingCollective, ...], culprits: Set[int]) -> frozenset[int]:
    """All ranks that wait for the culprits, or for ranks that do."""
    known, more = frozenset(culprits), True
    left = list(gatherings)
    while more:
        reached = [each for each in left if each.missing & known]
        left = [each for each in left if each not in reached]
        known, more = known.union(*(each.waiting for each in reached)), bool(reached)
    return known - culprits


def find_cycle(gatherings: tuple[PendingCollective, ...]) -> tuple[PendingCollective, ...]:
    """Collectives of which each misses a rank that waits in the next one; empty if there is no such ring."""
    where: dict[int, PendingCollective] = {rank: each for each in gatherings for rank in each.waiting}
    done: set[PendingCollective] = set()
    for start in gatherings:
        path, ways = [start], [_follow(start, where)]
        while path and start not in done:
            following = next(ways[-1], None)
            if following in path:
                return tuple(path[path.index(following) :])
            if following is None:
                done.add(path.pop())
                ways.pop()
            elif following not in done:
                path.append(following)
                ways.append(_follow(following, where))
    return ()


def _follow(each: PendingCollective, where: Mapping[int, PendingCollective]) -> Iterator[PendingCollective]:
    return iter(dict.fromkeys(where[rank] for rank in sorted(each.missing) if rank in where))


def _find_meeting(record: RankRecord) -> _Meeting | None:
    """What a rank waits in: the oldest call that is not complete, as its counters or its stack show it."""
    if record.waits and record.waits.peer is not None:
        return _Meeting(f"pair {record.waits.group}", tuple(sorted((record.rank, record.waits.peer))), 0)
    if record.waits and is_between_two(record.waits.operation):
        return _find_peer(record, record.waits)
    if record.waits:
        its = record.groups.get(record.waits.group)
        return _Meeting(record.waits.group, its.ranks if its else (), record.waits.sequence)
    open_ = [(name, its) for name, its in sorted(record.groups.items()) if its.called > its.completed]
    if open_:
        name, its = open_[0]
        return _Meeting(name, its.ranks, its.completed + 1)
    calls = [frame.function for frame in record.stack if _COLLECTIVE_FILE in frame.file]
    if _SETUP_CALLS.intersection(calls):
        return _Meeting(SETUP, (), 0)
    return _Meeting(CALL, (), 0) if calls else None


def _find_peer(record: RankRecord, waits: Collective) -> _Meeting:
    """A send or receive: its group is the pair, if its name says which one."""
    found, its = _P2P.match(clean_operation(waits.operation)), record.groups.get(waits.group)
    if not found or found[2] is None:
        return _Meeting(CALL, (), 0)
    ranks = its.ranks if its else ()
    pair = [ranks[int(each)] if int(each) < len(ranks) else int(each) for each in found.groups()[1:]]
    return _Meeting(f"pair {waits.group}", tuple(sorted(pair)), 0)


def _gather(
    meetings: Mapping[int, _Meeting], records: Mapping[int, RankRecord], world: int
) -> tuple[PendingCollective, ...]:
    places: dict[tuple[str, tuple[int, ...]], dict[int, set[int]]] = {}
    for rank, meeting in meetings.items():
        places.setdefault((meeting.group, meeting.ranks), {}).setdefault(meeting.sequence, set()).add(rank)
    found = []
    for (name, ranks), sequences in places.items():
        members = _find_members(_Meeting(name, ranks, 0), records, world).union(*sequences.values())
        present = frozenset().union(*sequences.values())
        for sequence in sorted(sequences)[:MAX_SEQUENCES]:
            if sequence > 0:
                missing = frozenset(rank for rank in members if not _has_come(records.get(rank), name, sequence))
            else:  # not counted: whoever does not wait there has not come
                missing = members - present
            found.append(PendingCollective(name, sequence, members, frozenset(sequences[sequence]), missing))
    return tuple(found)


def _find_members(meeting: _Meeting, records: Mapping[int, RankRecord], world: int) -> frozenset[int]:
    """The ranks of a group; where nobody says which (gloo), those that know the group."""
    if meeting.ranks:
        return frozenset(meeting.ranks)
    if meeting.group in (DEFAULT_GROUP, SETUP, CALL):
        return frozenset(range(world))
    return frozenset(rank for rank, its in records.items() if meeting.group in its.groups)


def is_stopped(record: RankRecord) -> bool:
    return record.state in ("T", "t")


def _has_come(record: RankRecord | None, group: str, sequence: int) -> bool:
    """Whether a rank takes part in a call: one that is stopped does not, even if it has called."""
    return count_called(record, group) >= sequence and not (record and is_stopped(record))


def count_called(record: RankRecord | None, group: str) -> int:
    """How many collectives of a group a rank has called, as far as it says so."""
    its: GroupProgress | None = record.groups.get(group) if record else None
    waits = record.waits.sequence if record and record.waits and record.waits.group == group else 0
    return max(its.called if its else 0, waits)


def _find_late_completions(found: tuple[PendingCollective, ...], records: Mapping[int, RankRecord]) -> frozenset[int]:
    """Ranks that only seem to wait: others have completed that call and wait for them in a later one.

    NCCL's completions are seen late, and not at all in a rank whose processor or GIL is taken.
    """
    late: set[int] = set()
    for each in found:
        if each.missing or each.sequence == 0:
            continue
        later = [its for its in found if its.group == each.group and its.sequence > each.sequence]
        late |= {
            rank
            for rank in each.waiting
            if records[rank].stack and not is_in_collective(records[rank].stack)
            if any(rank in its.missing for its in later)
        }
    return frozenset(late)
