"""A collective that all ranks have called, and that does not end: do they call the same, and does the network work?"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torchyard.diagnosis.hang.pending_collectives import PendingCollective, clean_operation
from torchyard.model.hang import Collective, Link, RankRecord

_ONE_SIDED = ("coalesced", "send", "recv")
_SAME_SIZE = {
    "all_reduce",
    "allreduce_coalesced",
    "reduce",
    "broadcast",
    "reduce_scatter",
    "reduce_scatter_base",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_coalesced",
    "all_gather",
    "allgather_base",
    "all_gather_base",
    "all_gather_into_tensor",
    "all_gather_into_tensor_coalesced",
}
_SYMMETRIC = {*_SAME_SIZE, "barrier", "all_reduce_barrier"} - {"reduce", "broadcast"}


class Side(NamedTuple):
    """Ranks that make the same call."""

    ranks: tuple[int, ...]
    call: str  # `all_reduce of 1,000 float32`


def find_sides(gathering: PendingCollective, records: Mapping[int, RankRecord]) -> tuple[Side, ...]:
    """The different calls of the ranks that wait in one collective, the fewest ranks first; one side: all agree."""
    calls = {rank: its for rank in sorted(gathering.waiting) if (its := records[rank].waits)}
    known = {rank: its for rank, its in calls.items() if not clean_operation(its.operation).startswith(_ONE_SIDED)}
    by_size = all(clean_operation(its.operation) in _SAME_SIZE and its.sizes for its in known.values())
    by_type = all(its.dtypes for its in known.values())
    sides: dict[tuple[object, ...], list[int]] = {}
    for rank, its in known.items():
        sizes = tuple(map(math.prod, its.sizes)) if by_size else ()
        key = (clean_operation(its.operation), sizes, its.dtypes if by_type else ())
        sides.setdefault(key, []).append(rank)
    found = [Side(tuple(ranks), describe_call(known[ranks[0]])) for ranks in sides.values()]
    return tuple(sorted(found, key=lambda side: (len(side.ranks), side.ranks)))


def find_completed(gathering: PendingCollective, records: Mapping[int, RankRecord]) -> frozenset[int]:
    """Ranks whose own call of this number is complete, though no rank can be done before all are."""
    operations = {clean_operation(its.operation) for rank in gathering.waiting if (its := records[rank].waits)}
    if not operations or not operations <= _SYMMETRIC:
        return frozenset()
    others = gathering.members - gathering.waiting
    return frozenset(rank for rank in others if _count_completed(records.get(rank), gathering) >= gathering.sequence)


def _count_completed(record: RankRecord | None, gathering: PendingCollective) -> int:
    its = record.groups.get(gathering.group) if record else None
    return its.completed if its else 0


def describe_call(its: Collective) -> str:
    """`all_reduce of 1,000 float32`."""
    elements = sum(map(math.prod, its.sizes))
    of = f"{elements:,} {', '.join(dict.fromkeys(its.dtypes)).lower()}".strip() if its.sizes else ""
    return f"{clean_operation(its.operation)}{f' of {of}' if of else ''}"


class Cut(NamedTuple):
    """Connections that retransmit. `nodes`: the one that all of them share, or those that report them."""

    nodes: tuple[str, ...]
    is_shared: bool
    evidence: tuple[str, ...]


def find_cut(gathering: PendingCollective, records: Mapping[int, RankRecord]) -> Cut | None:
    """Where the network does not deliver, as far as the ranks' own connections show it."""
    lost = [
        (records[rank].node or f"rank {rank}", link)
        for rank in sorted(gathering.members & records.keys())
        for link in records[rank].links
        if link.retransmits > 0 and link.queued > 0
    ]
    if not lost:
        return None
    evidence = tuple(
        f"{node}: {link.queued:,} bytes to {link.peer} are not acknowledged after {link.retransmits:,} retransmits"
        for node, link in lost[:8]
    )
    nodes = tuple(sorted({node for node, _ in lost}))
    shared = _find_shared_node(lost, records)
    return Cut((shared,), True, evidence) if shared else Cut(nodes, False, evidence)


def _find_shared_node(lost: Sequence[tuple[str, Link]], records: Mapping[int, RankRecord]) -> str:
    """The one node to which all lost connections belong; empty if there is only one pair of nodes, or no such node.

    A peer is a node by its name, or by an address that a rank of that node has on a connection of its own.
    """
    owners = {_host(link.local): record.node for record in records.values() for link in record.links if link.local}
    owners |= {record.node: record.node for record in records.values()}
    pairs = {frozenset((node, owners.get(_host(link.peer), _host(link.peer)))) for node, link in lost}
    common = frozenset.intersection(*pairs) & {record.node for record in records.values()}
    return next(iter(common)) if len(pairs) > 1 and len(common) == 1 else ""


def _host(address: str) -> str:
    return address.rpartition(":")[0] if address.count(":") == 1 else address
