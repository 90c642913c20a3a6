"""Who waits for whom: each collective that ranks wait in, and the ranks of its group that have not called it."""

import re
from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

from torchyard.model.hang import Collective, Frame, GroupProgress, RankRecord

DEFAULT_GROUP = "0"
SETUP = "set-up"  # of process groups, where all ranks meet in the store
UNCOUNTED_CALL = "call"  # of torch.distributed, by the stack alone: which one, no counter says
PAIR_PREFIX = "pair "  # of a send or receive: the group is the pair of its ranks
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


class _CollectiveKey(NamedTuple):
    """A collective as one rank names it. `ranks`: of its group, as far as the rank says so; of a send, the peer."""

    group: str
    ranks: tuple[int, ...]
    sequence: int


def find_pending_collectives(
    records: Mapping[int, RankRecord], stalled: Set[int], world: int
) -> tuple[PendingCollective, ...]:
    """What the stalled ranks wait in. `records` are those of all ranks that are known."""
    running = [rank for rank in sorted(stalled) if not is_stopped(records[rank])]  # the counters of the others are old
    keys = {rank: key for rank in running if (key := _find_collective_key(records[rank]))}
    collectives = _build_collectives(keys, records, world)
    finished_ranks = _find_finished_ranks(collectives, records)
    return (
        _build_collectives({rank: key for rank, key in keys.items() if rank not in finished_ranks}, records, world)
        if finished_ranks
        else collectives
    )


def is_in_collective(stack: tuple[Frame, ...]) -> bool:
    """Whether the main thread is in a call of torch.distributed."""
    return any(_COLLECTIVE_FILE in frame.file for frame in stack)


def is_point_to_point(operation: str) -> bool:
    return bool(_P2P.match(clean_operation(operation)))


def clean_operation(operation: str) -> str:
    """`nccl:_all_reduce` as `all_reduce`."""
    return operation.rpartition(":")[2].strip().lower().lstrip("_")


def find_dependents(collectives: tuple[PendingCollective, ...], culprits: Set[int]) -> frozenset[int]:
    """All ranks that wait for the culprits, or for ranks that do."""
    blocked, has_grown = frozenset(culprits), True
    remaining = list(collectives)
    while has_grown:
        dependents = [collective for collective in remaining if collective.missing & blocked]
        remaining = [collective for collective in remaining if collective not in dependents]
        blocked, has_grown = blocked.union(*(collective.waiting for collective in dependents)), bool(dependents)
    return blocked - culprits


def find_cycle(collectives: tuple[PendingCollective, ...]) -> tuple[PendingCollective, ...]:
    """Collectives of which each misses a rank that waits in the next one; empty if there is no such ring."""
    by_rank: dict[int, PendingCollective] = {
        rank: collective for collective in collectives for rank in collective.waiting
    }
    visited: set[PendingCollective] = set()
    for start in collectives:
        path, successors = [start], [_iterate_successors(start, by_rank)]
        while path and start not in visited:
            successor = next(successors[-1], None)
            if successor in path:
                return tuple(path[path.index(successor) :])
            if successor is None:
                visited.add(path.pop())
                successors.pop()
            elif successor not in visited:
                path.append(successor)
                successors.append(_iterate_successors(successor, by_rank))
    return ()


def _iterate_successors(
    collective: PendingCollective, by_rank: Mapping[int, PendingCollective]
) -> Iterator[PendingCollective]:
    return iter(dict.fromkeys(by_rank[rank] for rank in sorted(collective.missing) if rank in by_rank))


def _find_collective_key(record: RankRecord) -> _CollectiveKey | None:
    """What a rank waits in: the oldest call that is not complete, as its counters or its stack show it."""
    if record.waits and record.waits.peer is not None:
        return _CollectiveKey(f"{PAIR_PREFIX}{record.waits.group}", tuple(sorted((record.rank, record.waits.peer))), 0)
    if record.waits and is_point_to_point(record.waits.operation):
        return _build_pair_key(record, record.waits)
    if record.waits:
        progress = record.groups.get(record.waits.group)
        return _CollectiveKey(record.waits.group, progress.ranks if progress else (), record.waits.sequence)
    pending = [
        (name, progress) for name, progress in sorted(record.groups.items()) if progress.called > progress.completed
    ]
    if pending:
        name, progress = pending[0]
        return _CollectiveKey(name, progress.ranks, progress.completed + 1)
    calls = [frame.function for frame in record.stack if _COLLECTIVE_FILE in frame.file]
    if _SETUP_CALLS.intersection(calls):
        return _CollectiveKey(SETUP, (), 0)
    return _CollectiveKey(UNCOUNTED_CALL, (), 0) if calls else None


def _build_pair_key(record: RankRecord, waits: Collective) -> _CollectiveKey:
    """A send or receive: its group is the pair, if its name says which one."""
    match, progress = _P2P.match(clean_operation(waits.operation)), record.groups.get(waits.group)
    if not match or match[2] is None:
        return _CollectiveKey(UNCOUNTED_CALL, (), 0)
    ranks = progress.ranks if progress else ()
    pair = [ranks[int(index)] if int(index) < len(ranks) else int(index) for index in match.groups()[1:]]
    return _CollectiveKey(f"{PAIR_PREFIX}{waits.group}", tuple(sorted(pair)), 0)


def _build_collectives(
    keys: Mapping[int, _CollectiveKey], records: Mapping[int, RankRecord], world: int
) -> tuple[PendingCollective, ...]:
    groups: dict[tuple[str, tuple[int, ...]], dict[int, set[int]]] = {}
    for rank, key in keys.items():
        groups.setdefault((key.group, key.ranks), {}).setdefault(key.sequence, set()).add(rank)
    collectives = []
    for (name, ranks), sequences in groups.items():
        members = _find_members(_CollectiveKey(name, ranks, 0), records, world).union(*sequences.values())
        waiting_ranks = frozenset().union(*sequences.values())
        for sequence in sorted(sequences)[:MAX_SEQUENCES]:
            if sequence > 0:
                missing = frozenset(rank for rank in members if not _has_joined(records.get(rank), name, sequence))
            else:  # not counted: whoever does not wait there has not come
                missing = members - waiting_ranks
            collectives.append(PendingCollective(name, sequence, members, frozenset(sequences[sequence]), missing))
    return tuple(collectives)


def _find_members(key: _CollectiveKey, records: Mapping[int, RankRecord], world: int) -> frozenset[int]:
    """The ranks of a group; where nobody says which (gloo), those that know the group."""
    if key.ranks:
        return frozenset(key.ranks)
    if key.group in (DEFAULT_GROUP, SETUP, UNCOUNTED_CALL):
        return frozenset(range(world))
    return frozenset(rank for rank, record in records.items() if key.group in record.groups)


def is_stopped(record: RankRecord) -> bool:
    return record.state in ("T", "t")


def _has_joined(record: RankRecord | None, group: str, sequence: int) -> bool:
    """Whether a rank takes part in a call: one that is stopped does not, even if it has called."""
    return count_called(record, group) >= sequence and not (record and is_stopped(record))


def count_called(record: RankRecord | None, group: str) -> int:
    """How many collectives of a group a rank has called, as far as it says so."""
    progress: GroupProgress | None = record.groups.get(group) if record else None
    pending_sequence = record.waits.sequence if record and record.waits and record.waits.group == group else 0
    return max(progress.called if progress else 0, pending_sequence)


def _find_finished_ranks(
    collectives: tuple[PendingCollective, ...], records: Mapping[int, RankRecord]
) -> frozenset[int]:
    """Ranks that only seem to wait: others have completed that call and wait for them in a later one.

    NCCL's completions are seen late, and not at all in a rank whose processor or GIL is taken.
    """
    finished_ranks: set[int] = set()
    for collective in collectives:
        if collective.missing or collective.sequence == 0:
            continue
        later = [
            other for other in collectives if other.group == collective.group and other.sequence > collective.sequence
        ]
        finished_ranks |= {
            rank
            for rank in collective.waiting
            if records[rank].stack and not is_in_collective(records[rank].stack)
            if any(rank in later_collective.missing for later_collective in later)
        }
    return frozenset(finished_ranks)
