"""A collective that all ranks have called and that does not end: do their calls differ, and do connections fail?"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torchyard.diagnosis.hang.pending_collectives import BARRIER, PendingCollective, clean_operation
from torchyard.diagnosis.hang.stack_locations import describe_ranks
from torchyard.model.hang import Collective, Link, RankRecord

_MAX_EVIDENCE = 8
_ONE_SIDED = ("coalesced", "send", "recv")  # the ranks of one such operation need not make the same call
# Operations to which every rank must bring equally many elements.
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
# Operations that no rank can complete before all have called them.
_SYMMETRIC = {*_SAME_SIZE, "barrier", "all_reduce_barrier"} - {"reduce", "broadcast"}
_ROOTED = {"broadcast", "reduce", "gather", "scatter"}
_ROOT_PREPOSITIONS = {"broadcast": "from", "scatter": "from", "reduce": "to", "gather": "to"}


class CallGroup(NamedTuple):
    """Ranks that make the same call."""

    ranks: tuple[int, ...]
    call: str  # `all_reduce of 1,000 float32`


def find_call_groups(collective: PendingCollective, records: Mapping[int, RankRecord]) -> tuple[CallGroup, ...]:
    """Return the different calls of the ranks that wait in one collective, the fewest ranks first.

    One group: all calls are the same. Calls without data, and one-sided ones, are not compared; () if no others exist.
    """
    calls: dict[int, Collective] = {}
    for rank in sorted(collective.waiting):
        call = records[rank].pending
        if call and not clean_operation(call.operation).startswith(_ONE_SIDED):
            calls[rank] = call
    has_sizes = all(clean_operation(call.operation) in _SAME_SIZE and call.sizes for call in calls.values())
    has_dtypes = all(call.dtypes for call in calls.values())
    # A call that has returned shows no root: then those of the others prove no difference.
    has_roots = all(call.root is not None for call in calls.values() if clean_operation(call.operation) in _ROOTED)
    ranks_by_call: dict[tuple[object, ...], list[int]] = {}
    for rank, call in calls.items():
        sizes = tuple(map(math.prod, call.sizes)) if has_sizes else ()
        dtypes = call.dtypes if has_dtypes else ()
        root = call.root if has_roots else None
        key = (clean_operation(call.operation), sizes, dtypes, root, call.members)
        ranks_by_call.setdefault(key, []).append(rank)
    groups = [CallGroup(tuple(ranks), describe_call(calls[ranks[0]])) for ranks in ranks_by_call.values()]
    return tuple(sorted(groups, key=_get_group_order))


def _get_group_order(group: CallGroup) -> tuple[int, tuple[int, ...]]:
    return len(group.ranks), group.ranks


def find_member_groups(
    collective: PendingCollective, collectives: Sequence[PendingCollective], records: Mapping[int, RankRecord]
) -> tuple[CallGroup, ...]:
    """Return the ranks that wait in one call by the members that they gave its group, the fewest ranks first.

    One or none: the members do not differ. Groups of one name without a common rank are different groups.
    `collectives`: all, among them this one.
    """
    call_groups = []
    for other in collectives:
        is_same_call = (other.group, other.sequence) == (collective.group, collective.sequence) and other.sequence > 0
        has_own_members = other is collective or other.members != collective.members
        if is_same_call and has_own_members and other.members & collective.members:
            ranks = tuple(sorted(other.waiting))
            call = records[ranks[0]].pending
            operation = clean_operation(call.operation) if call else "a collective"
            call_groups.append(CallGroup(ranks, f"{operation} in a group of {describe_ranks(other.members)}"))
    return tuple(sorted(call_groups, key=_get_group_order))


def find_completed_ranks(collective: PendingCollective, records: Mapping[int, RankRecord]) -> frozenset[int]:
    """Return the ranks whose call of this number is complete while others wait in theirs, which must differ.

    A broadcast and the like is complete in some ranks before all have called it, but not in most and all others.
    """
    pending_calls = [records[rank].pending for rank in collective.waiting]
    operations = {clean_operation(call.operation) for call in pending_calls if call}
    other_ranks = collective.members - collective.waiting
    completed_ranks = frozenset(
        rank for rank in other_ranks if _count_completed(records.get(rank), collective) >= collective.sequence
    )
    is_symmetric = bool(operations) and operations <= _SYMMETRIC
    is_rooted = bool(operations) and operations <= _ROOTED
    are_all_others = completed_ranks == other_ranks and len(completed_ranks) > len(collective.waiting)
    return completed_ranks if is_symmetric or (is_rooted and are_all_others) else frozenset()


def _count_completed(record: RankRecord | None, collective: PendingCollective) -> int:
    progress = record.groups.get(collective.group) if record else None
    return progress.completed if progress else 0


def describe_call(call: Collective) -> str:
    """`all_reduce of 1,000 float32`, `new_group of ranks 0-2`; the operation alone if the record has no details."""
    operation = clean_operation(call.operation)
    if call.members:
        return f"{operation} of {describe_ranks(call.members)}"
    if call.root is not None:
        operation += f" {_ROOT_PREPOSITIONS.get(operation, 'with')} rank {call.root}"
    if not call.sizes or operation == BARRIER:
        return operation
    elements = sum(map(math.prod, call.sizes))
    dtypes = ", ".join(dict.fromkeys(call.dtypes)).lower()
    return f"{operation} of {elements:,} {dtypes}".rstrip()


class NetworkFault(NamedTuple):
    """Connections that retransmit.

    nodes: the one node that all of them share (`is_shared`), or else the nodes that report them.
    evidence: one sentence for each connection.
    """

    nodes: tuple[str, ...]
    is_shared: bool
    evidence: tuple[str, ...]


class _BadLink(NamedTuple):
    """A connection that retransmits, and the node that reports it, or `rank 3` if its node is unknown."""

    node: str
    link: Link


def find_network_fault(collective: PendingCollective, records: Mapping[int, RankRecord]) -> NetworkFault | None:
    """Return where the network loses what the collective's ranks send; None if all connections deliver."""
    bad_links: list[_BadLink] = []
    for rank in sorted(collective.members & records.keys()):
        for link in records[rank].links:
            if link.retransmits > 0 and link.queued > 0:
                bad_links.append(_BadLink(records[rank].node or f"rank {rank}", link))
    if not bad_links:
        return None
    evidence = tuple(
        f"{node}: {link.queued:,} bytes to {link.peer} are not acknowledged after {link.retransmits:,} retransmits"
        for node, link in bad_links[:_MAX_EVIDENCE]
    )
    shared_node = _find_shared_node(bad_links, records)
    if shared_node is not None:
        return NetworkFault((shared_node,), is_shared=True, evidence=evidence)
    nodes = tuple(sorted({bad_link.node for bad_link in bad_links}))
    return NetworkFault(nodes, is_shared=False, evidence=evidence)


def _find_shared_node(bad_links: Sequence[_BadLink], records: Mapping[int, RankRecord]) -> str | None:
    """The one node that all bad links have in common; None if there is no such node, or only one pair of nodes.

    A peer belongs to a node if it is the node's name, or the own address of a connection that a rank there reports.
    """
    nodes = {record.node for record in records.values()}
    node_by_host: dict[str, str] = {}
    for record in records.values():
        for link in record.links:
            if link.local:
                node_by_host[_parse_host(link.local)] = record.node
    node_by_host |= {node: node for node in nodes}
    pairs = set()
    for bad_link in bad_links:
        peer_host = _parse_host(bad_link.link.peer)
        pairs.add(frozenset((bad_link.node, node_by_host.get(peer_host, peer_host))))
    common_nodes = frozenset.intersection(*pairs) & nodes
    if len(pairs) == 1 or len(common_nodes) != 1:
        return None
    return next(iter(common_nodes)) or None


def _parse_host(address: str) -> str:
    """`10.0.0.1:4000` as `10.0.0.1`; an IPv6 address as it is, because it has several colons."""
    return address.rpartition(":")[0] if address.count(":") == 1 else address
