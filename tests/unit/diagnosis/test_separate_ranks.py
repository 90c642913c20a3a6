"""When the ends of ranks prove that they did not train together."""

import pytest

from tests.builders.rank_records import build_record
from torchyard.diagnosis.separate_ranks import describe_separate_ranks
from torchyard.model.hang import RankRecord


def build_ends(collectives: list[int | None], worlds: list[int | None], world: int = 4) -> dict[int, RankRecord]:
    """The record of each rank's end, with its collectives and the size of the program's default group."""
    ends: dict[int, RankRecord] = {}
    for rank, (count, program_world) in enumerate(zip(collectives, worlds, strict=True)):
        ends[rank] = build_record(rank, kind="end", world=world, collectives=count, program_world=program_world)
    return ends


def test_ranks_without_a_collective_ran_apart() -> None:
    """No collective of any rank is a warning, with and without a process group."""
    for worlds in ([None] * 4, [4] * 4):
        message = describe_separate_ranks(build_ends([0] * 4, list(worlds)))
        assert str(message).startswith("none of the 4 ranks called a collective")


def test_ranks_of_smaller_groups_trained_apart() -> None:
    """Ranks whose largest process group lacks ranks of the job trained apart, however many collectives they called."""
    message = describe_separate_ranks(build_ends([10] * 4, [2] * 4))
    assert str(message).startswith("the program's process groups have at most 2 of the 4 ranks")


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(build_ends([5] * 4, [4] * 4), id="together"),
        pytest.param(build_ends([0, 0, 0, None], [None] * 4), id="one unknown"),
        pytest.param(build_ends([0, 0, 0, 5], [None, None, None, 4]), id="one called some"),
        pytest.param(build_ends([0] * 3, [None] * 3), id="one missing"),
        pytest.param(build_ends([5, 5, 5, 5], [2, 2, None, None]), id="two groups unknown"),
        pytest.param(build_ends([0], [1], world=1), id="one rank"),
        pytest.param({}, id="no recorder"),
    ],
)
def test_nothing_is_proven(ends: dict[int, RankRecord]) -> None:
    """Ranks that trained together, a missing or unknown record, and a job of one rank are no warning."""
    assert describe_separate_ranks(ends) is None
