"""What a bus bandwidth means for the network: its factor, and what must have crossed the wire of each node."""

# busbw / algbw for n ranks, as nccl-tests' doc/PERFORMANCE.md defines them.
_FACTORS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


def get_bus_factor(collective: str, ranks: int) -> float:
    """busbw / algbw: 2 (n - 1) / n for all_reduce, (n - 1) / n for those that move every part once, else 1."""
    if collective not in _FACTORS or ranks < 2:
        return 1.0
    return _FACTORS[collective] * (ranks - 1) / ranks


def get_wire_share(collective: str, ranks: int, nodes: int) -> float | None:
    """The least that crosses the wire of a node for each byte of busbw; None if no such bound is known.

    For k nodes of g ranks, n = k g: at least g (k - 1) / (n - 1) for all_reduce, all_gather and reduce_scatter, which a
    hierarchical algorithm reaches while a ring needs 1; and g times that for all_to_all, whose parts nothing combines.
    """
    if nodes < 2 or ranks < 2 or ranks % nodes:
        return None
    per_node = ranks // nodes
    minimum = per_node * (nodes - 1) / (ranks - 1)
    return {
        "all_reduce": minimum,
        "all_gather": minimum,
        "reduce_scatter": minimum,
        "all_to_all": per_node * minimum,
    }.get(collective)
