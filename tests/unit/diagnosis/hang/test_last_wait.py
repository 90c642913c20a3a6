"""What a rank waited for when it died, and its last collective."""

import pytest

from tests.builders.rank_records import build_record, build_waiting_record, index_by_rank
from torchyard.diagnosis.hang.last_wait import describe_last_collective, describe_last_wait
from torchyard.model.hang import GroupProgress, RankRecord


def died(rank: int = 0, **fields: object) -> RankRecord:
    return build_waiting_record(rank, kind="end", **fields)


def test_rank_that_waited_names_the_absent_one() -> None:
    """The last wait of a rank that a watchdog ended names the rank that had not called the collective."""
    last_wait = describe_last_wait(0, index_by_rank(died(0), died(1), died(2), build_record(3, kind="end")))
    assert last_wait == "it had waited 12 s for rank 3 in collective number 6 of the default group"


def test_time_after_its_exception_is_no_wait() -> None:
    """A rank that lost its peer and took five seconds to end has not waited for it meanwhile."""
    raised = died(0, stalled_s=12.0, timestamp=1000.0, raised_after=995.0)
    wait = describe_last_wait(0, index_by_rank(raised, died(1), died(2), build_record(3, kind="end")))
    assert wait == "it had waited 7 s for rank 3 in collective number 6 of the default group"


@pytest.mark.parametrize(
    "first",
    [
        build_record(0, kind="end"),
        died(0, stalled_s=0.6),
        died(0, groups={"0": GroupProgress(enqueued=5, completed=5)}),
    ],
    ids=["outside", "just now", "complete"],
)
def test_rank_outside_of_a_collective_waited_for_no_rank(first: RankRecord) -> None:
    """A rank outside of any collective, or that has only just called one, did not wait for another."""
    assert describe_last_wait(0, index_by_rank(first, died(1), build_record(3, kind="end"))) is None


def test_missing_records_show_no_wait() -> None:
    """Without a record of the rank, or of one that had not called, no wait is known."""
    assert describe_last_wait(7, index_by_rank(died(0))) is None
    assert describe_last_wait(0, index_by_rank(died(0), died(1))) is None


def test_rank_that_left_early_has_a_last_collective() -> None:
    """A rank that ended after fewer collectives than others is described by both numbers; one that did all is not."""
    early = build_record(3, kind="end", groups={"0": GroupProgress(enqueued=4, completed=4)})
    records = index_by_rank(died(0), early)
    sentence = "rank 3 took part last in collective number 4 of the default group, of which others began 6"
    assert describe_last_collective(3, records) == sentence
    assert describe_last_collective(0, records) is None
    assert describe_last_collective(7, records) is None


def test_rank_that_has_destroyed_its_groups_has_no_number() -> None:
    """After `destroy_process_group` the last record of a rank does not show in which collective it took part."""
    ended = build_record(3, kind="end", groups={}, collectives=250)
    assert describe_last_collective(3, index_by_rank(died(0), ended)) is None
