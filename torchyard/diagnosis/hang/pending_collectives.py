"""The collectives in which ranks wait, the ranks that have not called them, and the cycles among them."""

import re
from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

from torchyard.model.hang import Collective, Frame, RankRecord

DEFAULT_GROUP = "0"
_DEFAULT_GLOO_GROUP = "0 of gloo"  # the calls of the default group that use gloo, if others use NCCL
DEFAULT_SETUP = "set-up of the default group"  # what a rank waits in before it has any group
SETUP = "set-up"  # of a further group: its members wait for each other, with an older torch all ranks
UNCOUNTED_CALL = "call"  # of torch.distributed, which only the stack shows, because no counter of a group does
PAIR_PREFIX = "pair "  # of a send or receive: the group is the pair of its ranks
_MAX_COUNTER_AGE_S = 3.0
BARRIER = "barrier"
_NCCL_BARRIER = "all_reduce_barrier"  # it reduces a tensor of one element, which the program does not see
MAX_SEQUENCES = 16  # pending collectives of one group that are examined, the oldest first
_DEFAULT_SETUP_CALL = "init_process_group"
_SETUP_BARRIER = "_store_based_barrier"  # of all ranks, at the end of a set-up
_SETUP_CALLS = {
    "new_group",
    "_new_group_with_tag",
    "_new_process_group_helper",
    _SETUP_BARRIER,
    "split_group",
    "init_device_mesh",
}
_COLLECTIVE_FILE = "/torch/distributed/distributed_c10d.py"
_TORCH_CODE = re.compile(r"/torch/(?:autograd|cuda|distributed)/")  # where a rank waits for others, or for its GPU
_FREEZER_WCHAN = re.compile(r"do_freezer_trap|cgroup_.*freez|__refrigerator|get_signal$")
_P2P = re.compile(r"(send|recv|isend|irecv)\b(?: (\d+)(?:->|<-)(\d+))?")


class PendingCollective(NamedTuple):
    """A collective in which ranks wait.

    group: the process group's name in torch, DEFAULT_SETUP, SETUP, UNCOUNTED_CALL, or PAIR_PREFIX and a name.
    sequence: the number of the call in its group, from 1; 0 if it is not counted.
    members: the ranks of the group, as far as the records show them.
    waiting: the stalled ranks that have called it.
    missing: the members that have not called it.
    """

    group: str
    sequence: int
    members: frozenset[int]
    waiting: frozenset[int]
    missing: frozenset[int]


class _CollectiveKey(NamedTuple):
    """A collective as one rank reports it. Ranks whose keys are equal wait in the same one.

    `ranks`: the members of the group, or the two ranks of a send or receive; empty if the rank does not report them.
    """

    group: str
    ranks: tuple[int, ...]
    sequence: int


def find_pending_collectives(
    records: Mapping[int, RankRecord], stalled: Set[int], world: int
) -> tuple[PendingCollective, ...]:
    """Return the collectives in which the ranks of `stalled` wait. `records`: the current record of each rank."""
    keys: dict[int, _CollectiveKey] = {}
    for rank in sorted(stalled):
        if is_stopped(records[rank]) or records[rank].frozen_s > _MAX_COUNTER_AGE_S:
            continue  # its counters are older than its stall: it was stopped, or it is at its end
        key = _find_collective_key(records[rank])
        if key:
            keys[rank] = key
    collectives = _build_collectives(keys, records, world)
    finished_ranks = _find_finished_ranks(collectives, records)
    if not finished_ranks:
        return collectives
    keys = {rank: key for rank, key in keys.items() if rank not in finished_ranks}
    return _build_collectives(keys, records, world)


def find_unfinished_call(records: Mapping[int, RankRecord]) -> PendingCollective | None:
    """Return the first call of a group that some ranks have not made, while all others stand in torch's own code.

    None if all have made as many calls, or one of the others stands elsewhere: it may have completed its calls.
    """
    for name in sorted({name for record in records.values() for name in record.groups}):
        counts = {rank: count_enqueued(record, name) for rank, record in records.items() if name in record.groups}
        fewest = min(counts.values())
        waiting = frozenset(rank for rank, count in counts.items() if count > fewest)
        if waiting and all(_stands_in_torch(records[rank].stack) for rank in waiting):
            members = frozenset(counts)
            return PendingCollective(name, fewest + 1, members, waiting, members - waiting)
    return None


def _stands_in_torch(stack: tuple[Frame, ...]) -> bool:
    return bool(stack) and bool(_TORCH_CODE.search(stack[0].file))


def is_in_collective(stack: tuple[Frame, ...]) -> bool:
    """Whether the main thread is in a call of torch.distributed."""
    return any(_COLLECTIVE_FILE in frame.file for frame in stack)


def is_point_to_point(operation: str) -> bool:
    """Whether an operation is a send or receive between two ranks."""
    return bool(_P2P.match(clean_operation(operation)))


def clean_operation(operation: str) -> str:
    """`nccl:_all_reduce` as `all_reduce`, and `nccl:all_reduce_barrier`, NCCL's barrier, as `barrier`."""
    name = operation.rpartition(":")[2].strip().lower().lstrip("_")
    return BARRIER if name == _NCCL_BARRIER else name


def find_dependents(collectives: tuple[PendingCollective, ...], culprits: Set[int]) -> frozenset[int]:
    """Return all ranks that wait for a culprit, or for a rank that does; without the culprits themselves."""
    blocked = frozenset(culprits)
    remaining = list(collectives)
    while True:
        dependents = [collective for collective in remaining if collective.missing & blocked]
        if not dependents:
            return blocked - culprits
        remaining = [collective for collective in remaining if not collective.missing & blocked]
        blocked = blocked.union(*(collective.waiting for collective in dependents))


def find_cycle(collectives: tuple[PendingCollective, ...]) -> tuple[PendingCollective, ...]:
    """Return collectives of which each misses a rank that waits in the next one; empty if there is no such cycle."""
    by_waiting_rank = {rank: collective for collective in collectives for rank in collective.waiting}
    visited: set[PendingCollective] = set()
    for start in collectives:
        # Depth-first search with its own stack: a chain may be longer than Python's limit of recursion.
        path = [start]
        successors = [_iterate_successors(start, by_waiting_rank)]
        while path and start not in visited:
            successor = next(successors[-1], None)
            if successor in path:
                return tuple(path[path.index(successor) :])
            if successor is None:
                visited.add(path.pop())
                successors.pop()
            elif successor not in visited:
                path.append(successor)
                successors.append(_iterate_successors(successor, by_waiting_rank))
    return ()


def _iterate_successors(
    collective: PendingCollective, by_waiting_rank: Mapping[int, PendingCollective]
) -> Iterator[PendingCollective]:
    """The collectives in which the missing ranks of this one wait, each once."""
    successors = (by_waiting_rank[rank] for rank in sorted(collective.missing) if rank in by_waiting_rank)
    return iter(dict.fromkeys(successors))


def _find_collective_key(record: RankRecord) -> _CollectiveKey | None:
    """What a rank waits in: the oldest call that is not complete, by its counters or its stack; None if in nothing."""
    call = record.pending
    if call and call.peer is not None:
        return _CollectiveKey(f"{PAIR_PREFIX}{call.group}", tuple(sorted((record.rank, call.peer))), 0)
    if call and is_point_to_point(call.operation):
        return _build_pair_key(record, call)
    if call:
        progress = record.groups.get(call.group)
        return _CollectiveKey(call.group, progress.ranks if progress else (), call.sequence)
    for name, progress in sorted(record.groups.items()):
        if progress.enqueued > progress.completed:
            return _CollectiveKey(name, progress.ranks, progress.completed + 1)
    group = _find_uncounted_group(record.stack)
    return _CollectiveKey(group, (), 0) if group else None


def _find_uncounted_group(stack: tuple[Frame, ...]) -> str | None:
    """The set-up, or the call that no counter shows, in which the main thread is; None if in no torch.distributed."""
    functions = [frame.function for frame in stack if _COLLECTIVE_FILE in frame.file]
    if _DEFAULT_SETUP_CALL in functions:
        return DEFAULT_SETUP
    if _SETUP_CALLS.intersection(functions):
        return SETUP
    return UNCOUNTED_CALL if functions else None


def _build_pair_key(record: RankRecord, call: Collective) -> _CollectiveKey:
    """The key of a send or receive, by the two ranks that its operation names (`send 0->1`, numbers in the group)."""
    match = _P2P.match(clean_operation(call.operation))
    if not match or match[2] is None:
        return _CollectiveKey(UNCOUNTED_CALL, (), 0)
    progress = record.groups.get(call.group)
    members = progress.ranks if progress else ()
    pair = []
    for index in (int(match[2]), int(match[3])):
        pair.append(members[index] if index < len(members) else index)
    return _CollectiveKey(f"{PAIR_PREFIX}{call.group}", tuple(sorted(pair)), 0)


def _build_collectives(
    keys: Mapping[int, _CollectiveKey], records: Mapping[int, RankRecord], world: int
) -> tuple[PendingCollective, ...]:
    """Join the ranks that wait in the same collective. `keys`: by the rank that waits."""
    groups: dict[tuple[str, tuple[int, ...]], dict[int, set[int]]] = {}  # waiting ranks by sequence, by group
    for rank, key in keys.items():
        groups.setdefault((key.group, key.ranks), {}).setdefault(key.sequence, set()).add(rank)
    collectives = []
    for (name, ranks), sequences in groups.items():
        waiting_ranks = frozenset().union(*sequences.values())
        members = _find_members(name, ranks, records, world)
        if not members:
            continue  # no record shows whom they wait for
        members |= waiting_ranks
        if name == SETUP:
            members = _find_setup_members(waiting_ranks, records) or members
        passed_ranks = _find_ranks_past_setup(name, waiting_ranks, records)
        if passed_ranks and members <= waiting_ranks | passed_ranks:
            continue  # they wait for nobody: the set-up takes them longer
        for sequence in sorted(sequences)[:MAX_SEQUENCES]:
            if sequence > 0:
                missing = frozenset(rank for rank in members if not _has_joined(records.get(rank), name, sequence))
            else:  # not counted: a member that does not wait there is missing
                missing = members - waiting_ranks - passed_ranks
            collectives.append(PendingCollective(name, sequence, members, frozenset(sequences[sequence]), missing))
    return tuple(collectives)


def _find_members(name: str, ranks: tuple[int, ...], records: Mapping[int, RankRecord], world: int) -> frozenset[int]:
    """The ranks of a group; if none are reported (gloo), those that have the group."""
    if ranks:
        return frozenset(ranks)
    if name in (DEFAULT_GROUP, _DEFAULT_GLOO_GROUP, DEFAULT_SETUP, SETUP, UNCOUNTED_CALL):
        return frozenset(range(world))
    return frozenset(rank for rank, record in records.items() if name in record.groups)


def _find_setup_members(waiting: Set[int], records: Mapping[int, RankRecord]) -> frozenset[int] | None:
    """The ranks that must call the set-up of a further group; None if all ranks must, or their list is unknown."""
    members: set[int] = set()
    for rank in waiting:
        record = records[rank]
        is_in_barrier = any(frame.function == _SETUP_BARRIER for frame in record.stack)
        if is_in_barrier or record.pending is None or not record.pending.members:
            return None
        members.update(record.pending.members)
    return frozenset(members) | frozenset(waiting)


def _find_ranks_past_setup(name: str, waiting: Set[int], records: Mapping[int, RankRecord]) -> frozenset[int]:
    """The ranks that have passed a set-up in which others wait, as NCCL lets each do by itself; none for other calls.

    They have the group that the others set up. A torch without counters reports no groups: there, whoever is in a call
    has passed the set-up of the default group.
    """
    if name == DEFAULT_SETUP:
        own_groups = 0
    elif name == SETUP:
        own_groups = max(len(records[rank].groups) for rank in waiting)
    else:
        return frozenset()
    passed_ranks = set()
    for rank, record in records.items():
        is_in_call = name == DEFAULT_SETUP and is_in_collective(record.stack)
        if rank not in waiting and (is_in_call or len(record.groups) > own_groups):
            passed_ranks.add(rank)
    return frozenset(passed_ranks)


def is_stopped(record: RankRecord) -> bool:
    """Whether a signal, a debugger or a frozen control group has stopped the rank's process."""
    return record.state in ("T", "t") or is_frozen(record)


def is_frozen(record: RankRecord) -> bool:
    """Whether the rank's control group is frozen (version 2 or 1), as the kernel function of its thread shows."""
    return bool(_FREEZER_WCHAN.search(record.wchan))


def _has_joined(record: RankRecord | None, group: str, sequence: int) -> bool:
    """Whether a rank takes part in a call: one that is stopped does not, even if it has called."""
    return count_enqueued(record, group) >= sequence and not (record and is_stopped(record))


def count_enqueued(record: RankRecord | None, group: str) -> int:
    """How many collectives of a group a rank has called, as far as its record shows; 0 without a record."""
    if record is None:
        return 0
    progress = record.groups.get(group)
    enqueued = progress.enqueued if progress else 0
    pending_sequence = record.pending.sequence if record.pending and record.pending.group == group else 0
    return max(enqueued, pending_sequence)


def _find_finished_ranks(
    collectives: tuple[PendingCollective, ...], records: Mapping[int, RankRecord]
) -> frozenset[int]:
    """The ranks that only seem to wait: others have completed that call and wait for them in a later one.

    NCCL's completions are observed late, and not at all in a rank whose processor or GIL is taken.
    """
    finished_ranks: set[int] = set()
    for collective in collectives:
        if collective.missing or collective.sequence == 0:
            continue
        missing_later: set[int] = set()
        for other in collectives:
            if other.group == collective.group and other.sequence > collective.sequence:
                missing_later |= other.missing
        for rank in collective.waiting & missing_later:
            stack = records[rank].stack
            if stack and not is_in_collective(stack):
                finished_ranks.add(rank)
    return frozenset(finished_ranks)
