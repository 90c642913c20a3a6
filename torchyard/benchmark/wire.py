"""Convert a bus bandwidth: its factor to the algorithm bandwidth, and the traffic on the wire of each node."""

# busbw / algbw for n ranks, as nccl-tests' doc/PERFORMANCE.md defines them.
_FACTORS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


def get_bus_factor(collective: str, ranks: int) -> float:
    """busbw / algbw: 2 (n - 1) / n for all_reduce, (n - 1) / n for those that move each part once, 1 for others."""
    if collective not in _FACTORS or ranks < 2:
        return 1.0
    return _FACTORS[collective] * (ranks - 1) / ranks


def get_wire_share(collective: str, ranks: int, nodes: int) -> float | None:
    """The minimum traffic on a node's wire for each byte of busbw; None if no such bound is known.

    For k nodes of g ranks, n = k g: at least g (k - 1) / (n - 1) for all_reduce, all_gather and reduce_scatter, which a
    hierarchical algorithm reaches while a ring needs 1; and g times that for all_to_all, whose parts are not combined.
    """
    if nodes < 2 or ranks < 2 or ranks % nodes:
        return None
    per_node = ranks // nodes
    minimum = per_node * (nodes - 1) / (ranks - 1)
    if collective in ("all_reduce", "all_gather", "reduce_scatter"):
        return minimum
    return per_node * minimum if collective == "all_to_all" else None
