"""Tests of a collective that all ranks have called."""

import pytest

from tests.builders.rank_records import build_collective, build_record, build_waiting_record, index_by_rank
from torchyard.diagnosis.hang.calls import describe_call, find_call_groups, find_completed_ranks, find_network_fault
from torchyard.diagnosis.hang.pending_collectives import PendingCollective
from torchyard.model.hang import Collective, GroupProgress, Link, RankRecord

ALL = PendingCollective("0", 6, frozenset(range(4)), frozenset(range(4)), frozenset())


def in_calls(*calls: Collective) -> dict[int, RankRecord]:
    return index_by_rank(*(build_waiting_record(rank, pending=call) for rank, call in enumerate(calls)))


@pytest.mark.parametrize(
    ("other", "sides"),
    [
        (build_collective(), 1),
        (build_collective("barrier"), 2),
        (build_collective(size=500), 2),
        (build_collective().model_copy(update={"dtypes": ("Half",)}), 2),
        (build_collective().model_copy(update={"sizes": ((10, 100),)}), 1),
        (build_collective().model_copy(update={"sizes": (), "dtypes": ()}), 1),
        (build_collective("send 0->1"), 1),
    ],
)
def test_same_call(other: Collective, sides: int) -> None:
    """Calls differ in their operation, number of elements or type, and a missing value is not a difference."""
    assert len(find_call_groups(ALL, in_calls(*[build_collective()] * 3, other))) == sides


@pytest.mark.parametrize("operation", ["all_to_all", "scatter", "all_gather_v", "gather", "coalesced"])
def test_calls_of_different_sizes(operation: str) -> None:
    """Calls of operations whose ranks may have different sizes do not differ by them."""
    records = in_calls(*(build_collective(operation, size=size) for size in range(1, 5)))
    assert len(find_call_groups(ALL, records)) < 2


def test_completed_alone() -> None:
    """A rank that has completed an all_reduce in which others wait is found, but not one ahead in a broadcast."""
    completed = {3: build_record(3, groups={"0": GroupProgress(enqueued=6, completed=6)})}
    collective = ALL._replace(waiting=frozenset({0, 1, 2}))
    assert find_completed_ranks(collective, in_calls(*[build_collective()] * 3) | completed) == {3}
    assert find_completed_ranks(collective, in_calls(*[build_collective("broadcast")] * 3) | completed) == frozenset()


def test_call_is_described() -> None:
    """A call is described by its operation, number of elements and type."""
    assert describe_call(build_collective("gloo:all_reduce")) == "all_reduce of 1,000 float"


def test_connections_without_loss_are_not_a_fault() -> None:
    """A connection that has delivered everything is not a network fault."""
    links = (Link(peer="10.0.0.2:7", retransmits=9, queued=0),)
    assert find_network_fault(ALL, index_by_rank(build_waiting_record(0, links=links))) is None


def test_all_lost_connections_lead_to_one_node() -> None:
    """If several nodes lose what they send to one node, that node is at fault."""
    links = (Link(peer="node-7:4000", retransmits=9, queued=10),)
    records = index_by_rank(
        build_waiting_record(0, links=links),
        build_waiting_record(2, links=links),
        build_waiting_record(3, node="node-7"),
    )
    fault = find_network_fault(ALL, records)
    assert fault is not None
    assert (fault.nodes, fault.is_shared) == (("node-7",), True)


@pytest.mark.parametrize("reports", [(0, 2, 3), (0, 2)], ids=["itself too", "the others alone"])
def test_lost_node_is_found_by_its_address(reports: tuple[int, ...]) -> None:
    """Peers are addresses, and the shared node is the one that has the address common to all lost connections."""
    nodes = {0: ("node-0", "10.0.0.1"), 2: ("node-1", "10.0.0.2"), 3: ("node-2", "10.0.0.3")}

    def links(rank: int) -> tuple[Link, ...]:
        queued = 10 if rank in reports else 0
        peers = [0, 2] if rank == 3 else [3]
        return tuple(Link(peer=nodes[peer][1], local=nodes[rank][1], retransmits=9, queued=queued) for peer in peers)

    records = index_by_rank(
        *(build_waiting_record(rank, node=node, links=links(rank)) for rank, (node, _) in nodes.items())
    )
    fault = find_network_fault(ALL, records)
    assert fault is not None
    assert (fault.nodes, fault.is_shared) == (("node-2",), True)
