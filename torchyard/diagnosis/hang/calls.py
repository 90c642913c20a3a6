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


class CallGroup(NamedTuple):
    """Ranks that make the same call."""

    ranks: tuple[int, ...]
    call: str  # `all_reduce of 1,000 float32`


def find_call_groups(collective: PendingCollective, records: Mapping[int, RankRecord]) -> tuple[CallGroup, ...]:
    """The different calls of the ranks that wait in one collective, the fewest ranks first; one side: all agree."""
    calls = {rank: call for rank in sorted(collective.waiting) if (call := records[rank].waits)}
    comparable = {
        rank: call for rank, call in calls.items() if not clean_operation(call.operation).startswith(_ONE_SIDED)
    }
    has_sizes = all(clean_operation(call.operation) in _SAME_SIZE and call.sizes for call in comparable.values())
    has_dtypes = all(call.dtypes for call in comparable.values())
    ranks_by_call: dict[tuple[object, ...], list[int]] = {}
    for rank, call in comparable.items():
        sizes = tuple(map(math.prod, call.sizes)) if has_sizes else ()
        key = (clean_operation(call.operation), sizes, call.dtypes if has_dtypes else ())
        ranks_by_call.setdefault(key, []).append(rank)
    groups = [CallGroup(tuple(ranks), describe_call(comparable[ranks[0]])) for ranks in ranks_by_call.values()]
    return tuple(sorted(groups, key=lambda group: (len(group.ranks), group.ranks)))


def find_completed_ranks(collective: PendingCollective, records: Mapping[int, RankRecord]) -> frozenset[int]:
    """Ranks whose own call of this number is complete, though no rank can be done before all are."""
    operations = {clean_operation(call.operation) for rank in collective.waiting if (call := records[rank].waits)}
    if not operations or not operations <= _SYMMETRIC:
        return frozenset()
    others = collective.members - collective.waiting
    return frozenset(rank for rank in others if _count_completed(records.get(rank), collective) >= collective.sequence)


def _count_completed(record: RankRecord | None, collective: PendingCollective) -> int:
    progress = record.groups.get(collective.group) if record else None
    return progress.completed if progress else 0


def describe_call(call: Collective) -> str:
    """`all_reduce of 1,000 float32`."""
    elements = sum(map(math.prod, call.sizes))
    amount = f"{elements:,} {', '.join(dict.fromkeys(call.dtypes)).lower()}".strip() if call.sizes else ""
    return f"{clean_operation(call.operation)}{f' of {amount}' if amount else ''}"


class NetworkFault(NamedTuple):
    """Connections that retransmit. `nodes`: the one that all of them share, or those that report them."""

    nodes: tuple[str, ...]
    is_shared: bool
    evidence: tuple[str, ...]


def find_network_fault(collective: PendingCollective, records: Mapping[int, RankRecord]) -> NetworkFault | None:
    """Where the network does not deliver, as far as the ranks' own connections show it."""
    bad_links = [
        (records[rank].node or f"rank {rank}", link)
        for rank in sorted(collective.members & records.keys())
        for link in records[rank].links
        if link.retransmits > 0 and link.queued > 0
    ]
    if not bad_links:
        return None
    evidence = tuple(
        f"{node}: {link.queued:,} bytes to {link.peer} are not acknowledged after {link.retransmits:,} retransmits"
        for node, link in bad_links[:8]
    )
    nodes = tuple(sorted({node for node, _ in bad_links}))
    shared_node = _find_shared_node(bad_links, records)
    return NetworkFault((shared_node,), True, evidence) if shared_node else NetworkFault(nodes, False, evidence)


def _find_shared_node(bad_links: Sequence[tuple[str, Link]], records: Mapping[int, RankRecord]) -> str:
    """The one node to which all lost connections belong; empty if there is only one pair of nodes, or no such node.

    A peer is a node by its name, or by an address that a rank of that node has on a connection of its own.
    """
    node_by_host = {
        _parse_host(link.local): record.node for record in records.values() for link in record.links if link.local
    }
    node_by_host |= {record.node: record.node for record in records.values()}
    pairs = {
        frozenset((node, node_by_host.get(_parse_host(link.peer), _parse_host(link.peer)))) for node, link in bad_links
    }
    common_nodes = frozenset.intersection(*pairs) & {record.node for record in records.values()}
    return next(iter(common_nodes)) if len(pairs) > 1 and len(common_nodes) == 1 else ""


def _parse_host(address: str) -> str:
    return address.rpartition(":")[0] if address.count(":") == 1 else address
