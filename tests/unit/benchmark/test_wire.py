"""The traffic on the wire of a node, by the bus bandwidth."""

import pytest

from torchyard.benchmark.wire import get_bus_factor, get_wire_share


@pytest.mark.parametrize(
    ("collective", "ranks_and_nodes", "factor", "share"),
    [
        ("all_reduce", (16, 2), 1.875, 8 / 15),
        ("all_gather", (16, 2), 15 / 16, 8 / 15),
        ("all_to_all", (16, 2), 15 / 16, 64 / 15),
        ("broadcast", (16, 2), 1.0, None),
        ("all_reduce", (8, 1), 1.75, None),
        ("all_reduce", (1, 1), 1.0, None),
        ("all_reduce", (7, 2), 12 / 7, None),
    ],
)
def test_factors(collective: str, ranks_and_nodes: tuple[int, int], factor: float, share: float | None) -> None:
    """The factors are those of nccl-tests; the minimum on a node's wire is that of a hierarchical algorithm."""
    ranks, nodes = ranks_and_nodes
    assert get_bus_factor(collective, ranks) == pytest.approx(factor)
    assert get_wire_share(collective, ranks, nodes) == (share and pytest.approx(share))
