"""Ranks that did not train together, although their job has ended well: by the records of their ends."""

from collections.abc import Mapping

from torchyard.model.hang import RankRecord


def describe_separate_ranks(ends: Mapping[int, RankRecord]) -> str | None:
    """The warning that no rank called a collective, or that their process groups lack ranks; None if neither is proven.

    `ends`: the record of each rank's end. A rank without one, and one whose torch does not report its collectives, may
    have called some: then nothing is proven.
    """
    world = len(ends)
    if world < 2 or any(record.world != world for record in ends.values()):
        return None
    if all(record.collectives == 0 for record in ends.values()):
        return (
            f"none of the {world} ranks called a collective such as all_reduce: each ran by itself, or ended before "
            "its training. Does the program call init_process_group, and does its framework use all nodes?"
        )
    sizes = {record.program_world for record in ends.values()}
    largest = max((size for size in sizes if size), default=world)
    if None in sizes or largest >= world:
        return None
    return (
        f"the program's process groups have at most {largest} of the {world} ranks, so these trained apart from each "
        "other. Does the program use WORLD_SIZE, and does its framework know the number of nodes?"
    )
